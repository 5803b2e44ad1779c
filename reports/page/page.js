// The page: a selection, a size and three inputs; everything follows. The address holds them, so that a link opens the same view.

const stories = parsed('stories'), root = document.documentElement;
const inputs = { tokens: scales, price: { dollars: 1 }, deadline: { d: 1, day: 1, days: 1, h: 1 / 24, hours: 1 / 24, w: 7, weeks: 7 } };
const state = { story: stories[0], size: null, tokens: null, price: null, deadline: null };
const dollars = (hours, price, words) => price ? `$${amount(hours * price)}` : `${amount(hours)} ${words.GPU}-hours`;
const tokensOf = story => state.tokens ?? story.tokens, priceOf = story => state.price ?? story.price;
const bill = option => `${duration(option.hours * tokensOf(state.story))}, ${dollars(option.gpu_hours * tokensOf(state.story), priceOf(state.story), state.story.words).replace(' ', '\u00a0').replace('-', '\u2011')}`;
// the interval of the time in the unit of its middle, and that of the cost
function ends({ hours, gpu_hours, low, high }) {
  const tokens = tokensOf(state.story), costs = [low, high].map(end => dollars(end / hours * gpu_hours * tokens, priceOf(state.story), state.story.words));
  return [duration(low * tokens, hours * tokens).split('\u00a0')[0], duration(high * tokens, hours * tokens), costs[0].split(' ')[0], costs[1].replace(' ', '\u00a0').replace('-', '\u2011')];
}
// the chance that a run ends in time: the normal distribution of ln hours, within 0.0002 (Bowling et al. 2009)
function chance({ hours, low, high, level }) {
  const x = Math.log(24 * state.deadline / hours / tokensOf(state.story)) / Math.log(high / low) * 2 * { 80: 1.2816, 95: 1.96 }[level];
  const sure = Math.round(100 / (1 + Math.exp(-0.07056 * x ** 3 - 1.5976 * x)));
  return sure > 99 ? 'over 99' : sure < 1 ? 'below 1' : sure;
}
const least = (options, key) => options.reduce((best, one) => !best || one[key] < best[key] ? one : best, null);

// As `choose` of scaling/report/sections/purchase.py: the cheapest in time, else the fastest; without a deadline the size that opens
function choose({ options, opening }) {
  const inTime = options.filter(one => state.deadline == null || one.hours * tokensOf(state.story) <= 24 * state.deadline);
  const use = state.deadline == null ? options.find(one => one.size === opening) : least(inTime, 'gpu_hours') ?? least(options, 'hours');
  return { use, late: !inTime.length, cheaper: least(options.filter(one => one.gpu_hours < use.gpu_hours), 'hours'), faster: least(options.filter(one => one.hours < use.hours), 'gpu_hours') };
}
function answer() {
  const { story } = state, article = $(`#answer .selection[data-id="${story.id}"]`);
  $('#inputs').hidden = !story.options.length;
  if (!story.options.length) return;
  const { use, late, cheaper, faster } = choose(story), tokens = tokensOf(story), at = name => $(`[data-is=${name}]`, article);
  const slow = state.deadline == null ? '' : `${late ? ` No size finishes within ${amount(state.deadline)} days; this is the fastest.` : ''} The chance to finish in time is ${chance(use)}${thin}%.`;
  at('headline').textContent = use.undecided ? `${use.undecided}.` : `${use.verb} ${use.what}: ${bill(use)} for ${amount(tokens)} tokens.`;
  at('headline').title = use.exact;
  const [low, high, cheap, dear] = ends(use);
  at('between').textContent = `${use.undecided ? `These runs say ${use.what}: ${bill(use)}. ` : ''}Between ${low} and ${high}, ${cheap} and ${dear} (${use.level}${thin}% interval).${slow}`;
  at('close').textContent = use.close;
  at('returns').textContent = use.returns;
  at('health').replaceChildren(...use.health.map(([look, words]) => element('li', words, look)));
  for (const [name, one] of Object.entries({ cheaper, faster })) {
    at(name).hidden = !one;
    if (one) $('span', at(name)).textContent = `${one.what}: ${bill(one)} (${ends(one).slice(0, 2).join('–')}, ${one.level}${thin}% interval), ${one.source}${state.deadline != null && one.hours * tokens > 24 * state.deadline ? ', too late' : ''}`;
  }
  for (const cell of $$('#matrix td[data-size]')) {
    const of = stories.find(one => one.id === Number(cell.parentNode.dataset.id)), option = of.options.find(one => one.size === Number(cell.dataset.size));
    $('[data-is=time]', cell).textContent = duration(option.hours * tokensOf(of));
    $('[data-is=cost]', cell).textContent = dollars(option.gpu_hours * tokensOf(of), priceOf(of), of.words);
    cell.classList.toggle('chosen', of === story && option === use);
    $('a', cell).ariaCurrent = of === story && option === use ? 'true' : null;
    cell.classList.toggle('late', state.deadline != null && option.hours * tokensOf(of) > 24 * state.deadline);
  }
}
function show() {
  const { story } = state;
  $$('.selection').forEach(article => { article.hidden = Number(article.dataset.id) !== story.id; });
  $('#pick').value = story.id;
  $('#tokens').placeholder = amount(story.tokens); $('#price').placeholder = story.price || 'none'; $('#unit').textContent = story.words.GPU;
  const sizes = $$(`#evidence .selection[data-id="${story.id}"] .size`), wanted = sizes.find(one => Number(one.dataset.size) === state.size);
  if (wanted) sizes.forEach(one => { one.open = one === wanted; });
  answer();
  showPoints(story.id, story.words.GPUs);
  root.dataset.ready = story.id;
}

// the address
const address = () => '#' + new URLSearchParams({ model: state.story.model, cluster: state.story.cluster, batch: state.story.batch, ...Object.fromEntries(['size', ...Object.keys(inputs)].filter(key => state[key]).map(key => [key, state[key]])), ...($('#find').value && { find: $('#find').value }), ...(state.theme && { theme: state.theme }) });
function read() {
  const said = Object.fromEntries(new URLSearchParams(location.hash.slice(1))), keys = ['model', 'cluster', 'batch'];
  const fits = story => keys.filter(key => key in said).every(key => story[key] === said[key]);
  state.story = (keys.some(key => key in said) && stories.find(fits)) || stories.find(story => story.id === Number(root.dataset.opening)) || stories[0];
  state.size = Number(said.size) || null;
  for (const key of Object.keys(inputs)) { state[key] = Number(said[key]) > 0 ? Number(said[key]) : null; $('#' + key).value = state[key] == null ? '' : key === 'tokens' ? amount(state[key]) : state[key]; $(`#${key}-error`).textContent = ''; }
  $('#find').value = said.find ?? '';
  if (said.theme) setTheme(said.theme);
}
const go = change => { Object.assign(state, change); history.pushState(null, '', address()); show(); $('#chosen').textContent = `Shown: ${state.story.model} on ${state.story.cluster}`; };
addEventListener('popstate', () => { read(); show(); });

// theme
const setTheme = theme => { root.dataset.theme = theme; $('#theme').textContent = theme === 'dark' ? 'Light' : 'Dark'; $('#theme').setAttribute('aria-label', `${$('#theme').textContent} colours`); };
setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
$('#theme').onclick = () => { state.theme = root.dataset.theme === 'dark' ? 'light' : 'dark'; setTheme(state.theme); history.replaceState(null, '', address()); };
let before = null;
addEventListener('beforeprint', () => { before = root.dataset.theme; setTheme('light'); });
addEventListener('afterprint', () => setTheme(before));

// inputs: an error stands beside the field, and the last good value stays
for (const [key, units] of Object.entries(inputs)) $('#' + key).oninput = event => {
  const said = readNumber(event.target.value, units);
  $(`#${key}-error`).textContent = said?.wrong ?? '';
  event.target.setAttribute('aria-invalid', Boolean(said?.wrong));
  if (said?.wrong) return;
  state[key] = said?.value ?? null;
  history.replaceState(null, '', address());
  answer();
};
$('#inputs').onsubmit = event => event.preventDefault();
$('#find').oninput = () => { history.replaceState(null, '', address()); showPoints(state.story.id, state.story.words.GPUs); };
$('#pick').onchange = event => go({ story: stories.find(story => story.id === Number(event.target.value)), size: null });
document.addEventListener('click', event => {
  const link = event.target.closest('#matrix a');
  if (link) {
    event.preventDefault();
    const size = $(link.getAttribute('href'));
    go({ story: stories.find(story => story.id === Number(size.closest('.selection').dataset.id)), size: Number(size.dataset.size) });
    size.scrollIntoView({ block: 'start' }); $('summary', size).focus({ preventScroll: true });
  }
  const copy = event.target.closest('.copy');
  if (copy) navigator.clipboard.writeText($('pre', copy.closest('.run')).textContent).then(() => { copy.textContent = 'Copied'; }, () => getSelection().selectAllChildren($('pre', copy.closest('.run'))));
});

// tooltips from the marks' own labels: pointer, tap, or arrow keys in a focused chart
const tip = $('#tip');
function point(mark) {
  tip.hidden = !mark;
  if (!mark) return;
  if (mark.title) { mark.dataset.tip = mark.title; mark.removeAttribute('title'); }  // a browser's own would stand beside ours
  tip.textContent = mark.dataset.tip;
  const box = mark.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, innerWidth - tip.offsetWidth - 8)) + scrollX}px`;
  tip.style.top = `${(box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 8 : box.bottom + 8) + scrollY}px`;
}
for (const kind of ['pointerover', 'pointerdown']) document.addEventListener(kind, event => point(event.target.closest?.('[data-tip], .layouts [title]')));
document.addEventListener('focusout', () => point(null));
document.addEventListener('keydown', event => {
  const chart = document.activeElement.closest?.('figure svg'), by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === 'Escape') point(null);
  if (!chart || !by) return;
  event.preventDefault();
  const marks = $$('[data-tip]', chart), now = marks.findIndex(mark => mark === chart.pointed);
  point(chart.pointed = marks[(now + by + marks.length) % marks.length]);
});

if (stories.length) {
  $$('[data-live]').forEach(at => { at.hidden = false; });
  $('#pick-place').hidden = stories.length < 2;
  read();
  show();
}
