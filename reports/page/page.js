// The page: choose a selection, and everything follows.

// theme
const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
const setTheme = theme => { root.dataset.theme = theme; $('#theme').textContent = theme === 'dark' ? 'Light' : 'Dark'; $('#theme').setAttribute('aria-label', `${$('#theme').textContent} colours`); };
setTheme(hash.theme ?? (isDark() ? 'dark' : 'light'));
$('#theme').onclick = () => { setTheme(isDark() ? 'light' : 'dark'); state.themed = true; remember(); };
let before = null;
addEventListener('beforeprint', () => { before = root.dataset.theme; setTheme('light'); });
addEventListener('afterprint', () => setTheme(before));

// selection
const MOST_BUTTONS = matchMedia('(max-width: 760px)').matches ? 2 : 6;  // in a group; more options become a list
function pick(at, options, current, choose, possible = () => true, most = MOST_BUTTONS) {
  if (options.length > most) { pickFromList(at, options, current, choose, possible); return; }
  replaceContent(at, ...options.map(option => {
    const control = button(String(option), () => choose(option));
    control.dataset.name = option; control.setAttribute('aria-pressed', option === current);
    control.disabled = !possible(option);
    if (control.disabled) control.title = 'Not in this study with the other choices';
    return control;
  }));
}
function pickFromList(at, options, current, choose, possible) {
  const list = element('select');
  list.dataset.name = 'list'; list.setAttribute('aria-label', at.closest('[aria-label]').getAttribute('aria-label'));
  list.append(...options.map((option, i) => { const line = element('option', String(option)); line.value = i; line.selected = option === current; line.disabled = !possible(option); return line; }));
  list.onchange = () => choose(options[list.value]);
  replaceContent(at, list);
}
function choose(wanted) {  // the nearest setting there is: the wish counts most, then the same model, cluster, batch
  const now = { ...state.story, ...wanted }, keys = [...Object.keys(wanted), 'model', 'cluster', 'batch_short'];
  const score = story => keys.reduce((sum, key, i) => sum + (story[key] === now[key]) * 2 ** (keys.length - i), 0);
  select(stories.reduce((best, story) => score(story) > score(best) ? story : best));
}
function select(story) {
  state.story = story;
  update();
  $('#chosen').textContent = `Shown: ${place()}`;
}
const distinct = (key, among = stories) => [...new Set(among.map(story => story[key]))];
function selectors() {
  const { story } = state, sameModel = stories.filter(other => other.model === story.model), samePlace = sameModel.filter(other => other.cluster === story.cluster);
  const rows = [['model', distinct('model'), () => true], ['cluster', distinct('cluster'), cluster => sameModel.some(other => other.cluster === cluster)], ['batch', distinct('batch_short', samePlace), () => true]];
  for (const [name, options, possible] of rows) {
    const key = name === 'batch' ? 'batch_short' : name, at = $(`#pick-${name}`);
    at.hidden = options.length < 2;
    pick($('.set', at), options, story[key], option => choose({ [key]: option }), possible);
  }
  const shown = Object.keys(story.drawn);
  if (!shown.includes(state.series)) state.series = 'all';
  $('#pick-series').hidden = shown.length < 3;
  pick($('#pick-series .set'), shown, state.series, series => { state.series = series; update(); });
  if (!story.tried.includes(state.size)) state.size = story.shown_size;
  pick($('#pick-size'), story.tried, state.size, size => { state.size = size; atSize(); }, () => true, MOST_BUTTONS < 6 ? 4 : 16);
}
function titles() {
  $$('[data-title]').forEach(at => at.replaceChildren(...wholeParts(titleOf(at.dataset.title))));
}
function sentences() {
  const { story } = state, rows = rowsOf(tables.contenders), present = new Set(rows.filter(row => row.outcome === 'ok').map(row => row.series));
  $$('.selection').forEach(article => { article.hidden = Number(article.dataset.setting) !== story.setting_id; });
  $$('.choose').forEach(link => { link.setAttribute('aria-current', Number(link.dataset.setting) === story.setting_id); });
  replaceContent($('#figures'), ...story.figures.map(([name, value, what]) => { const box = element('div'), number = element('dd', value); const small = number.appendChild(element('small')); small.append(...wholeParts(what)); box.append(element('dt', name), number); return box; }));
  $$('[data-line]').forEach(at => { at.replaceChildren(...wholeParts(story[at.dataset.line] ?? '')); at.hidden = !story[at.dataset.line]; });
  $$('[data-word]').forEach(at => { at.textContent = fillWords(`{${at.dataset.word}}`); });
  $$('[data-series]').forEach(at => { at.hidden = !present.has(at.dataset.series); });
  $('.reading').hidden = !rows.length;  // nothing is drawn
  $('[data-failed]').hidden = rows.every(row => row.outcome === 'ok');
  $('[data-colours]').hidden = !present.size;
  $('#tokens').placeholder = amount(story.tokens);
  $('#price').placeholder = story.price || 'none';
}
function atSize() {  // what depends on the GPU count chosen
  selectors(); titles(); remember(); showSections();
  return Promise.all($$('figure[data-chart]').filter(figure => charts[figure.dataset.chart].perSize).map(draw));
}
async function update() {
  selectors(); sentences(); statistics(); updateBudget();
  await Promise.all([atSize(), ...$$('figure[data-chart]').filter(figure => !charts[figure.dataset.chart].perSize).map(draw)]);
  root.dataset.ready = state.story.setting_id;
}

// links to sections: the address also holds the selection, so the page scrolls itself
function go(id) {
  const place = id && document.getElementById(id);
  if (!place) return;
  state.at = id; remember();
  place.scrollIntoView();
  if (!place.hasAttribute('tabindex')) place.tabIndex = -1;
  place.focus({ preventScroll: true });
}
document.addEventListener('click', event => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.matches('.choose')) select(stories.find(story => story.setting_id === Number(link.dataset.setting)));
  else go(link.getAttribute('href').slice(1));
});
addEventListener('hashchange', () => { if (!location.hash.includes('=')) go(decodeURIComponent(location.hash.slice(1))); });

$$('[data-live]').forEach(at => { at.hidden = false; });
$$('figure[data-chart]').forEach(scaffold);
$('#find').oninput = statistics;
budgetControls();
$('#downloads .dl').append(...Object.keys(tables).filter(name => tables[name].length).map(name => { const control = button(`${name}.csv `, () => saveCsv(name, tables[name])); control.append(element('small', `${tables[name].length} row${tables[name].length === 1 ? '' : 's'}`)); return control; }));
update().then(() => go(hash.at));
