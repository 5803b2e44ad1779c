// The data of the page, what the reader has chosen, and helpers for numbers and elements.
// Text from the study only ever becomes a text node.

const $ = (query, at = document) => at.querySelector(query), $$ = (query, at = document) => [...at.querySelectorAll(query)];
const parsed = id => JSON.parse($('#' + id).textContent);
const tables = Object.fromEntries(Object.entries(parsed('data')).map(([name, table]) =>
  [name, table.rows.map(row => Object.fromEntries(table.columns.map((column, i) => [column, row[i]])))]));
const columns = Object.fromEntries(Object.entries(parsed('data')).map(([name, table]) => [name, table.columns]));
const charts = parsed('charts'), stories = parsed('stories'), config = parsed('config');
const root = document.documentElement;

// what the reader has chosen, kept in the address so that a link opens the same view; `at` is the section
const address = location.hash.slice(1);
const hash = address.includes('=') ? Object.fromEntries(new URLSearchParams(address)) : { at: decodeURIComponent(address) };
const positive = text => Number(text) > 0 ? Number(text) : null;
const chosen = ['model', 'cluster', 'batch_short'].filter(key => key in hash).length;
const same = story => ['model', 'cluster', 'batch_short'].every(key => !(key in hash) || story[key] === hash[key]);
const state = {
  story: stories.find(chosen ? same : story => story.setting_id === Number(root.dataset.opening)) ?? stories[0], size: positive(hash.size), outcome: 'all', sort: [null, -1], series: hash.series ?? 'all', columns: {},
  tokens: positive(hash.tokens), price: positive(hash.price), deadline: positive(hash.deadline), at: hash.at ?? '',
};
const remember = () => {
  const { story } = state, stated = { model: story.model, cluster: story.cluster, batch_short: story.batch_short };
  for (const key of ['size', 'tokens', 'price', 'deadline', 'at']) if (state[key]) stated[key] = state[key];
  if (state.series !== 'all') stated.series = state.series;
  if (state.themed || hash.theme) stated.theme = root.dataset.theme;
  history.replaceState(null, '', '#' + new URLSearchParams(stated));
};
const rowsOf = (rows, story = state.story) => rows.filter(row => 'setting_id' in row ? row.setting_id === story.setting_id : !('cluster' in row) || row.cluster === story.cluster);
const chosenRows = rows => rowsOf(rows).filter(row => state.series === 'all' || !row.series || state.story.offered_as[row.series] === state.series);

// numbers, in the formats of scaling/report/text.py
const { unknown, thin, minus, prefixes, digits, grouped_digits, whole } = parsed('formats');
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
const plainText = x => x == null ? unknown : typeof x === 'number' && !Number.isInteger(x) ? Number(x.toPrecision(5)) : String(x);
const yesNo = value => typeof value === 'boolean' ? (value ? 'yes' : 'no') : plainText(value);
const words = () => ({ ...state.story.words, ...state.story.at_size[state.size]?.words, cost: price() ? 'Cost of the run ($)' : state.story.words.hours });
const fillWords = text => Object.entries(words()).reduce((filled, [name, word]) => filled.replaceAll(`{${name}}`, word), text);
const tokens = (story = state.story) => state.tokens ?? story.tokens;
const price = (story = state.story) => state.price ?? story.price;

const element = (tag, text, name) => { const fresh = document.createElement(tag); if (text != null) fresh.textContent = text; if (name) fresh.className = name; return fresh; };
// A sentence as nodes; no line ends inside every second of them, as `pieces` of scaling/report/text.py
const wholeParts = text => text.split(new RegExp(`(${whole})`)).map((piece, i) => i % 2 ? element('span', piece, 'whole') : piece);
const button = (text, click) => { const fresh = element('button', text); fresh.type = 'button'; fresh.onclick = click; return fresh; };
// Replace the content of an element; focus stays on the control of the same name
function replaceContent(at, ...content) {
  const name = at.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  at.replaceChildren(...content);
  if (name != null) $$('[data-name]', at).find(control => control.dataset.name === name)?.focus({ preventScroll: true });
}
