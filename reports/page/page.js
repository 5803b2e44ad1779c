// The page's behaviour: choose a setting, draw its charts and tables from the one copy of the data.
// Text from the study only ever becomes a text node.

const $ = (query, at = document) => at.querySelector(query), $$ = (query, at = document) => [...at.querySelectorAll(query)];
const parsed = id => JSON.parse($('#' + id).textContent);
const tables = Object.fromEntries(Object.entries(parsed('data')).map(([name, table]) =>
  [name, table.rows.map(row => Object.fromEntries(table.columns.map((column, i) => [column, row[i]])))]));
const columns = Object.fromEntries(Object.entries(parsed('data')).map(([name, table]) => [name, table.columns]));
const charts = parsed('charts'), stories = parsed('stories'), config = parsed('config');

// state, kept in the address so that a link opens the same view
const hash = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const same = story => ['model', 'cluster', 'batch_short'].every(key => !(key in hash) || story[key] === hash[key]);
const state = { story: stories.find(same) ?? stories[0], size: null, outcome: 'all', sort: [null, -1], series: 'all', budget: Number(hash.tokens) || 12, deadline: null };
if (hash.size) state.size = Number(hash.size);
const mine = (rows, story = state.story) => rows.filter(row => 'setting_id' in row ? row.setting_id === story.setting_id : !('cluster' in row) || row.cluster === story.cluster);
const here = (rows, story) => mine(rows, story).filter(row => state.series === 'all' || !row.series || row.series === state.series);

// numbers, in the formats of scaling/report/text/numbers.py
const { unknown, thin, minus, prefixes, digits, grouped_digits } = parsed('formats');
const significant = (x, count = digits) => {
  const rounded = Number(x.toPrecision(count));
  const places = Math.max(0, count - 1 - Number(rounded.toExponential().split('e')[1]));
  return rounded === 0 ? '0' : rounded.toLocaleString('en', { minimumFractionDigits: places, maximumFractionDigits: places }).replaceAll(',', thin).replace('-', minus);
};
const amount = x => {
  if (x == null) return unknown;
  for (const [from, scale, prefix] of prefixes)
    if (Math.abs(x) >= from) return significant(x / scale) + thin + prefix;
  return significant(x, Math.abs(x) >= 1000 ? grouped_digits : digits);
};
const percent = x => x == null ? unknown : (100 * x).toFixed(1).replace('-', minus) + thin + '%';
const seconds = x => x == null ? unknown : significant(x, 4);
const gib = x => x == null ? unknown : significant(x / 2 ** 30);
const plain = x => x == null ? unknown : typeof x === 'number' && !Number.isInteger(x) ? Number(x.toPrecision(5)) : String(x);
const worded = text => Object.entries(state.story.words).reduce((filled, [name, word]) => filled.replaceAll(`{${name}}`, word), text);
const element = (tag, text, name) => { const made = document.createElement(tag); if (text != null) made.textContent = text; if (name) made.className = name; return made; };
const button = (text, click) => { const made = element('button', text); made.type = 'button'; made.onclick = click; return made; };

// theme
const root = document.documentElement;
const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
const setTheme = theme => { root.dataset.theme = theme; $('#theme').textContent = theme === 'dark' ? 'Light' : 'Dark'; $('#theme').setAttribute('aria-label', `Switch to ${theme === 'dark' ? 'light' : 'dark'} colours`); };
setTheme(hash.theme ?? (isDark() ? 'dark' : 'light'));
$('#theme').onclick = () => { setTheme(isDark() ? 'light' : 'dark'); state.themed = true; remember(); };
let before = null;
addEventListener('beforeprint', () => { before = root.dataset.theme; setTheme('light'); });
addEventListener('afterprint', () => setTheme(before));

// tables
function fillTable(at, shown, rows, sort) {
  at.replaceChildren();
  const head = at.createTHead().insertRow();
  for (const column of shown) {
    const cell = element('th', sort ? null : column.title, column.look);
    cell.scope = 'col';
    if (sort) { cell.append(button(column.title, () => sort(column.key))); if (state.sort[0] === column.key) cell.setAttribute('aria-sort', state.sort[1] > 0 ? 'ascending' : 'descending'); }
    head.append(cell);
  }
  const body = at.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    if ('outcome' in row && row.outcome !== 'ok') line.className = row.outcome == null ? 'wait' : 'fail';
    for (const column of shown) {
      const cell = line.insertCell(), value = (column.show ?? plain)(row[column.key], row, cell);
      cell.append(value instanceof Node ? value : String(value));
      if (column.look) cell.classList.add(...column.look.split(' '));
    }
  }
}
const asColumns = (name, rows) => columns[name].filter(key => key !== 'setting_id' && rows.some(row => row[key] != null))
  .map(key => ({ key, title: key, look: rows.every(row => row[key] == null || typeof row[key] === 'string') ? 'l' : '' }));

function outcomeTag(outcome, row) {
  if (outcome == null) return element('span', 'not run', 'tag waiting');
  if (outcome === 'ok') return element('span', row.series, 'tag ' + row.series);
  const tag = element('span', outcome.replaceAll('_', ' '), 'tag failed');
  if (row.error_message) tag.title = row.error_message;
  return tag;
}
// the table of axes, with what follows from it
const choices = [...parsed('axes'), { key: 'repeat', title: 'repeat' }];
choices.splice(choices.findIndex(axis => !axis.ranks), 0, { key: 'dp', title: 'dp', always: true });
const yesNo = value => typeof value === 'boolean' ? (value ? 'yes' : 'no') : plain(value);

function statistics() {
  const all = here(tables.statistics), has = key => all.some(row => row[key] != null), varies = key => new Set(all.map(row => row[key])).size > 1;
  const rate = has('mfu') ? 'mfu' : 'model_flop_per_s_per_gpu', most = Math.max(...all.map(row => row[rate] ?? 0));
  const meter = show => (value, row, cell) => { if (value != null) { cell.classList.add('meter'); cell.style.setProperty('--w', 100 * value / most + '%'); } return show(value); };
  const shown = [
    { key: 'outcome', title: 'Outcome', show: outcomeTag, look: 'l' }, { key: 'world_size', title: worded('{GPUs}') },
    ...choices.filter(axis => axis.always || varies(axis.key)).map(({ key, title }) => ({ key, title, show: yesNo })),
    { key: 'tokens_per_s', title: 'tokens/s', show: amount }, { key: 'tokens_per_s_per_gpu', title: worded('per {GPU}'), show: amount },
    rate === 'mfu' ? { key: 'mfu', title: 'MFU', show: meter(percent) } : { key: rate, title: 'FLOP/s', show: meter(amount) },
    { key: 'step_time_s', title: 'step (s)', show: seconds },
    { key: 'step_time_low_s', title: '95 % ± of one run', show: (low, row) => low == null ? unknown : percent((row.step_time_high_s - low) / 2 / row.step_time_s) },
    { key: 'peak_memory_bytes', title: 'peak GiB', show: gib },
    ...(has('predicted_tokens_per_s') ? [{ key: 'predicted_tokens_per_s', title: 'predicted', show: amount }] : []),
    ...(has('predicted_memory_bytes') ? [{ key: 'predicted_memory_bytes', title: 'pred. GiB', show: gib }] : []),
    ...['mean_power_w', 'energy_j'].filter(has).map(key => ({ key, title: key === 'energy_j' ? 'J per step' : 'W', show: amount })),
    ...(has('error_message') ? [{ key: 'error_message', title: 'what went wrong', look: 'l wide' }] : []),
  ];
  const words = $('#find').value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = row => `${row.world_size} ${worded('{GPUs}')} ${shown.map(c => `${c.title} ${row[c.key]}`).join(' ')} ${row.layout_name} ${row.outcome ?? 'not run'}`.toLowerCase();
  const kinds = { all: () => true, ran: row => row.outcome === 'ok', failed: row => row.outcome != null && row.outcome !== 'ok', 'not run': row => row.outcome == null };
  const present = Object.keys(kinds).filter(kind => kind === 'all' || all.some(kinds[kind]));
  if (!present.includes(state.outcome)) state.outcome = 'all';
  const kept = all.filter(row => kinds[state.outcome](row) && words.every(word => text(row).includes(word)));
  const [key, direction] = state.sort;
  if (key) kept.sort((a, b) => (a[key] == null) - (b[key] == null) || (a[key] > b[key] ? direction : a[key] < b[key] ? -direction : 0));
  const drawn = kept.slice(0, 500);
  fillTable($('#points'), shown, drawn, column => { state.sort = [column, state.sort[0] === column ? -state.sort[1] : -1]; statistics(); });
  $('#count').textContent = `${kept.length} of ${all.length} points` + (kept.length > drawn.length ? `, first ${drawn.length} shown` : '');
  pick($('#outcomes'), present, state.outcome, kind => { state.outcome = kind; statistics(); });
  const fixed = choices.filter(({ key, always, later, default: plain }) => !always && key !== 'repeat' && !varies(key) && all.length && !(later && (all[0][key] ?? null) === plain)).map(({ key, title }) => `${title} ${yesNo(all[0][key])}`);
  $('#same').textContent = fixed.length ? `The same for all: ${fixed.join(', ')}.` : '';
  const refused = here(tables.refused);
  $('#refusals').hidden = !refused.length;
  $('#refusals summary').textContent = `${refused.length} combination${refused.length === 1 ? '' : 's'} not tried: refused, or skipped by a guided sweep`;
  const differs = key => new Set(refused.map(row => row[key])).size > 1;
  fillTable($('#refused'), [{ key: 'world_size', title: worded('{GPUs}') }, ...choices.filter(axis => axis.key in (refused[0] ?? {}) && (axis.always || differs(axis.key))).map(({ key, title }) => ({ key, title, show: yesNo })), { key: 'reason', title: 'why', look: 'l wide' }], refused.slice(0, 1000));
}

// charts: one specification each, drawn with the rows of the selection
const views = {}, leftOut = {};
const rowsFor = (name, chart, panel = {}) => here(tables[name], panel.story).filter(row => (!chart.perSize || !('world_size' in row) || row.world_size === state.size) && (panel.value == null || !(chart.panel in row) || row[chart.panel] === panel.value));
const carries = (chart, panel) => rowsFor(chart.table, chart, panel).some(row => row[chart.needs] != null && Object.entries(chart.where).every(([column, values]) => values.includes(row[column])));
function panelsOf(chart) {  // one without a name, or one for each model, or for each value of a column
  if (!chart.panel) return [{}];
  if (chart.panel !== 'model') return [...new Set(rowsFor(chart.table, chart).map(row => row[chart.panel]))].map(value => ({ value, title: value.replaceAll('_', '-') }));
  const beside = stories.filter(story => story.cluster === state.story.cluster && story.batch_short === state.story.batch_short);
  return beside.map(story => ({ story, title: beside.length > 1 ? story.model : null }));
}
function tablesIn(part, found = new Set()) {
  if (part && typeof part === 'object') { if (part.data?.name) found.add(part.data.name); Object.values(part).forEach(inner => tablesIn(inner, found)); }
  return found;
}
function scaffold(figure) {
  const chart = charts[figure.dataset.chart];
  const tools = element('div', null, 'tools'), details = element('details');
  details.append(element('summary', 'Table'));
  details.ontoggle = () => behind(details, chart);
  tools.append(details, button('SVG', () => saveSvg(figure.dataset.chart)), button('PNG', () => savePng(figure.dataset.chart)), button('CSV', () => saveCsv(chart.table, rowsFor(chart.table, chart))));
  figure.append(element('figcaption'), element('div', null, 'chart'), tools);
}
function behind(details, chart) {
  $('.scroll', details)?.remove();
  if (!details.open) return;
  const box = element('div', null, 'scroll'), table = element('table'), rows = rowsFor(chart.table, chart);
  fillTable(table, asColumns(chart.table, rows), rows.slice(0, 300));
  box.append(table); details.append(box);
}
async function draw(figure) {
  const name = figure.dataset.chart, chart = charts[name], box = $('.chart', figure), section = figure.closest('section');
  const has = column => here(tables[chart.table]).some(row => row[column] != null);
  const other = Object.values(charts).some(one => one.table === chart.table && one.unless === chart.needs);  // says the same where this one cannot
  const panels = panelsOf(chart).filter(panel => carries(chart, panel));
  (views[name] ?? []).forEach(({ view }) => view.finalize()); delete views[name]; delete leftOut[name];
  figure.hidden = chart.unless ? has(chart.unless) : other && !has(chart.needs);
  $('figcaption', figure).textContent = worded(chart.caption);
  $('.tools', figure).hidden = !panels.length;
  if (figure.hidden) return;
  box.replaceChildren();
  if (!panels.length && chart.optional) { figure.hidden = true; leftOut[name] = worded(chart.missing); return; }
  if (!panels.length) { box.append(element('div', `Left out: ${worded(chart.missing)}`, 'empty')); return; }
  section.hidden = false;  // a chart drawn in a hidden place has no width
  const title = $('h2', section).textContent;
  box.classList.toggle('panels', panels.length > 1);
  try {
    views[name] = await Promise.all(panels.map(panel => {
      const frame = element('div'), at = element('div', null, 'vega-embed');  // as wide as its frame from the start
      frame.append(...(panel.title ? [element('h3', panel.title)] : []), at); box.append(frame);
      return embed(at, chart, panel, `${panel.title ? panel.title + ': ' : ''}${worded(chart.alt)} ${title}.`);
    }));
    figure.dataset.drawn = `${state.story.setting_id}/${chart.perSize ? state.size : ''}`;
  } catch (error) {
    box.replaceChildren(element('div', `${name}: ${error.message}`, 'empty'));
    console.error(name, error);
  }
  $$('details[open]', figure).forEach(details => behind(details, chart));
}
async function embed(at, chart, panel, description) {
  const story = panel.story ?? state.story, spec = JSON.parse(worded(JSON.stringify(chart.spec)));
  spec.datasets = Object.fromEntries([...tablesIn(spec)].map(table => [table, rowsFor(table, chart, panel)]));
  const stated = { sizes_: story.sizes, slots_: story.coloured.map(([slot]) => slot), names_: story.names, budget_: state.budget };
  for (const parameter of spec.params) if (parameter.name in stated) parameter.value = stated[parameter.name];
  spec.description = description;  // what a screen reader says
  const { view } = await window.vegaEmbed(at, spec, { renderer: 'svg', actions: false, logLevel: 1, config, tooltip: { theme: 'custom' } });
  return { view, title: panel.title };
}
function listLeftOut() {  // places that hold no chart at all go, and what they would have shown is named
  $$('section[data-optional]').forEach(section => { section.hidden = $$('figure[data-chart]', section).every(figure => figure.hidden); });
  $('#left-out-list').replaceChildren(...Object.entries(leftOut).map(([name, why]) => { const line = element('li'); line.append(element('b', name.replaceAll('_', ' ')), `: ${why}`); return line; }));
  $('#left-out').hidden = !Object.keys(leftOut).length;
}

// saving
function save(name, type, text) {
  const link = element('a');
  link.href = URL.createObjectURL(new Blob([text], { type })); link.download = name; link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function saveCsv(name, rows) {
  const inert = value => typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;  // no spreadsheet takes it for a formula
  const quoted = value => value == null ? '' : /[",\n\r]/.test(value) ? `"${String(inert(value)).replaceAll('"', '""')}"` : inert(value);
  save(name + '.csv', 'text/csv', [columns[name], ...rows.map(row => columns[name].map(key => row[key]))].map(line => line.map(quoted).join(',')).join('\n') + '\n');
}
async function svgsOf(name) {  // a file has no page to give it the variables
  const style = getComputedStyle(root), named = text => text.replace(/var\((--[\w-]+)\)/g, (_, variable) => style.getPropertyValue(variable).trim()).replaceAll('url(#hatch)', style.getPropertyValue('--hatch').trim());
  return Promise.all(views[name].map(async ({ view, title }) => [title ? `${name}-${title}` : name, named(await view.toSVG())]));
}
async function saveSvg(name) { for (const [file, text] of await svgsOf(name)) save(file + '.svg', 'image/svg+xml', text); }
async function savePng(name, scale = 2) {
  for (const [file, text] of await svgsOf(name)) {
    const image = new Image(), canvas = element('canvas'), url = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }));
    image.src = url; await image.decode(); URL.revokeObjectURL(url);
    Object.assign(canvas, { width: scale * image.width, height: scale * image.height });
    const brush = canvas.getContext('2d');
    brush.fillStyle = getComputedStyle(root).getPropertyValue('--surface'); brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(image, 0, 0, canvas.width, canvas.height);
    save(file + '.png', 'image/png', await new Promise(done => canvas.toBlob(done, 'image/png')));
  }
}

// selection
function pick(at, options, current, choose, possible = () => true) {
  at.replaceChildren(...options.map(option => { const made = button(String(option), () => choose(option)); made.setAttribute('aria-pressed', option === current); made.disabled = !possible(option); if (made.disabled) made.title = 'Not in this study with the other choices'; return made; }));
}
function choose(wanted) {  // the setting nearest to the wish: the same model first, then cluster, then batch
  const now = { ...state.story, ...wanted }, keys = [...Object.keys(wanted), 'model', 'cluster', 'batch_short'];
  const score = story => keys.reduce((sum, key, i) => sum + (story[key] === now[key]) * 2 ** (keys.length - i), 0);
  state.story = stories.reduce((best, story) => score(story) > score(best) ? story : best);
  update();
}
const distinct = (key, among = stories) => [...new Set(among.map(story => story[key]))];
const remember = () => history.replaceState(null, '', '#' + new URLSearchParams({ model: state.story.model, cluster: state.story.cluster, batch_short: state.story.batch_short, ...(state.size ? { size: state.size } : {}), ...(state.budget !== 12 ? { tokens: state.budget } : {}), ...(state.themed || hash.theme ? { theme: root.dataset.theme } : {}) }));

function selectors() {
  const { story } = state, sameModel = stories.filter(other => other.model === story.model), samePlace = sameModel.filter(other => other.cluster === story.cluster);
  const rows = [['model', distinct('model'), () => true], ['cluster', distinct('cluster'), cluster => sameModel.some(other => other.cluster === cluster)], ['batch', distinct('batch_short', samePlace), () => true]];
  for (const [name, options, possible] of rows) {
    const key = name === 'batch' ? 'batch_short' : name, at = $(`#pick-${name}`);
    at.hidden = options.length < 2;
    pick($('.set', at), options, story[key], option => choose({ [key]: option }), possible);
  }
  const shown = ['all', ...story.series];
  if (!shown.includes(state.series)) state.series = 'all';
  $('#pick-series').hidden = story.series.length < 2;
  pick($('#pick-series .set'), shown, state.series, series => { state.series = series; update(); });
  if (!story.tried.includes(state.size)) state.size = story.shown_size;
  pick($('#pick-size'), story.tried, state.size, size => { state.size = size; atSize(); });
}
function sentences() {
  const { story } = state;
  $('#batch').textContent = story.batch;
  $('#answer').replaceChildren(...story.answer.map(([text, strong]) => strong ? element('b', text) : text));
  $('#note').textContent = story.note;
  $('#figures').replaceChildren(...story.figures.map(([name, value, what]) => { const box = element('div'), number = element('dd', value); number.append(element('small', what)); box.append(element('dt', name), number); return box; }));
  $('#answer').classList.toggle('predicted', story.basis === 'predicted');
  $('#beyond').textContent = story.beyond;
  for (const [key, title] of Object.entries(story.titles)) $(`[data-title=${key}]`).textContent = title;
  $$('[data-line]').forEach(at => { at.textContent = story[at.dataset.line]; at.hidden = !story[at.dataset.line]; });
  $$('[data-word]').forEach(at => { at.textContent = worded(`{${at.dataset.word}}`); });
  const present = new Set(mine(tables.contenders).map(row => row.series));
  $$('[data-series]').forEach(at => { at.hidden = !present.has(at.dataset.series); });
  const variants = other => stories.filter(s => s.model === other.model && s.cluster === other.cluster).length > 1;
  $('#others').replaceChildren(...stories.filter(other => other !== story).map(other => { const line = element('li'); line.append(button(`${other.model} on ${other.cluster}${variants(other) ? ', ' + other.batch_short : ''}`, () => { state.story = other; update(); scrollTo({ top: 0 }); }), ` – ${other.brief}`); return line; }));
}
function atSize() {  // what depends on the GPU count chosen
  selectors();
  $$('[data-size-title]').forEach(at => { at.textContent = state.story.at_size[state.size]?.[at.dataset.sizeTitle] ?? 'No layout has been tried yet'; });
  remember();
  return Promise.all($$('figure[data-chart]').filter(figure => charts[figure.dataset.chart].perSize).map(draw)).then(listLeftOut);
}
// cost of a run
const days = x => x < 0.1 ? `${amount(24 * x)} hours` : `${amount(x)} days`;
function bill() {
  const tokens = 10 ** state.budget, money = mine(tables.costs).some(row => row.usd_per_token != null);
  const rows = here(tables.costs).map(row => ({ ...row, days: tokens * row.hours_per_token / 24, gpu_hours: tokens * row.gpu_hours_per_token, kwh: row.joules_per_token == null ? null : tokens * row.joules_per_token / 3.6e6, usd: row.usd_per_token == null ? null : tokens * row.usd_per_token }));
  const price = row => money ? `$${amount(row.usd)}` : `${amount(row.gpu_hours)} ${worded('{GPU}')}-hours`, paid = row => money ? row.usd : row.gpu_hours;
  const said = row => `${days(row.days)} for ${price(row)} on ${row.world_size} ${worded(row.world_size === 1 ? '{GPU}' : '{GPUs}')}${row.series === 'predicted' ? ' (predicted)' : ''}`;
  const all = `${amount(tokens)} tokens`;
  const firm = rows.some(row => row.series !== 'predicted') ? rows.filter(row => row.series !== 'predicted') : rows;
  const cheap = firm.reduce((best, row) => !best || paid(row) < paid(best) ? row : best, null), fast = firm.reduce((best, row) => !best || row.days < best.days ? row : best, null);
  $('#tokens-said').textContent = all;
  $('#cost-title').textContent = !rows.length ? 'What a run costs is not known: nothing ran' : cheap === fast ? `${all}: ${said(cheap)}` : `${all}: ${said(cheap)}, or ${said(fast)}`;
  const everywhere = tables.costs.filter(row => stories.some(story => story.setting_id === row.setting_id && story.model === state.story.model && story.batch_short === state.story.batch_short) && (state.series === 'all' || row.series === state.series));
  const inTime = state.deadline == null ? [] : everywhere.map(row => ({ ...row, days: tokens * row.hours_per_token / 24, usd: row.usd_per_token == null ? null : tokens * row.usd_per_token, gpu_hours: tokens * row.gpu_hours_per_token, cluster: stories.find(story => story.setting_id === row.setting_id).cluster })).filter(row => row.days <= state.deadline && (!money || row.usd != null));
  const choice = inTime.filter(row => money || row.setting_id === state.story.setting_id).reduce((best, row) => !best || paid(row) < paid(best) ? row : best, null);
  $('#cheapest').textContent = state.deadline == null ? '' : choice ? `Cheapest that finishes within ${amount(state.deadline)} days: ${said(choice)} with ${choice.layout_name}, on ${choice.cluster}.` : `No size finishes ${all} within ${amount(state.deadline)} days.`;
  fillTable($('#bill'), [
    { key: 'world_size', title: worded('{GPUs}') }, { key: 'series', title: 'value is', look: 'l' }, { key: 'layout_name', title: 'layout', look: 'l' },
    { key: 'days', title: 'days', show: amount }, { key: 'gpu_hours', title: worded('{GPU}-hours'), show: amount }, { key: 'kwh', title: 'kWh', show: amount },
    { key: 'joules_from', title: 'energy from', look: 'l' }, ...(money ? [{ key: 'usd', title: 'dollar', show: amount }] : []), { key: 'on_front', title: 'on the front', show: yesNo },
  ], rows);
}
function budget(change) {
  Object.assign(state, change);
  bill(); remember();
  return Promise.all(['cost_money', 'cost_hours'].flatMap(name => views[name] ?? []).map(({ view }) => view.signal('budget_', state.budget).runAsync()));
}
async function update() {
  selectors(); sentences(); statistics(); bill();
  const perSize = atSize();
  await Promise.all([perSize, ...$$('figure[data-chart]').filter(figure => !charts[figure.dataset.chart].perSize).map(draw)]);
  listLeftOut();
  root.dataset.ready = state.story.setting_id;
}

$('#live').hidden = false;
$$('figure[data-chart]').forEach(scaffold);
$('#find').oninput = statistics;
$('#tokens').value = state.budget;
$('#tokens').oninput = event => budget({ budget: Number(event.target.value) });
$('#deadline').oninput = event => budget({ deadline: event.target.value === '' ? null : Number(event.target.value) });
$('#downloads .dl').append(...Object.keys(tables).filter(name => tables[name].length).map(name => { const made = button(`${name}.csv `, () => saveCsv(name, tables[name])); made.append(element('small', `${tables[name].length} rows`)); return made; }));
update();
