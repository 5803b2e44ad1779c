// The table of points: its filter, its columns.

const records = name => { const { rows, columns } = parsed('data')[name]; return Array.from({ length: rows }, (_, i) => Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, Array.isArray(values) ? values[i] : values.all]))); };
const points = records('statistics'), refused = records('refused');
const choices = [...parsed('axes'), { key: 'repeat', title: 'repeat' }];
choices.splice(choices.findIndex(axis => !axis.ranks), 0, { key: 'dp', title: 'dp', always: true });
const view = { columns: {}, sort: [null, -1] };

const GIB = 2 ** 30;
const simple = text => text.toLowerCase().replace(/[^a-z0-9]+/g, '_').replace(/^_|_$/g, '');
const fields = {};  // a word -> the columns that it may mean, the first with a value counts
for (const { key, title } of choices) { fields[simple(title)] = [key]; fields[simple(key)] = [key]; }
for (const key of Object.keys(points[0] ?? {})) fields[simple(key)] = [key];
const rate = ['tokens_per_s', 'predicted_tokens_per_s'], memory = ['peak_memory_bytes', 'predicted_memory_bytes'], step = ['step_time_s', 'predicted_step_time_s'];
Object.assign(fields, { gpu: ['world_size'], gpus: ['world_size'], rank: ['world_size'], ranks: ['world_size'], mbs: ['micro_batch_size'], zero: ['zero_stage'], rate, tokens_s: rate, memory, gib: memory, peak_gib: memory, step, step_s: step });

function valueOf(text) {
  const number = /^([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(%|[kmgtp])?$/i.exec(text);
  if (number) return Number(number[1]) * (number[2] === '%' ? 0.01 : scales[number[2]?.toLowerCase()] ?? 1);
  const named = { yes: true, true: true, no: false, false: false, none: null, '–': null }, name = text.toLowerCase();
  return name in named ? named[name] : name;
}
const comparable = (row, key) => key.endsWith('_bytes') && row[key] != null ? row[key] / GIB : typeof row[key] === 'string' ? row[key].toLowerCase() : row[key];
const compare = {
  '=': (a, b) => a === b || (a == null && b == null) || String(a) === String(b), '!=': (a, b) => !compare['='](a, b),
  '<': (a, b) => a != null && a < b, '<=': (a, b) => a != null && a <= b, '>': (a, b) => a != null && a > b, '>=': (a, b) => a != null && a >= b,
};
// `none` is a value of some axes and the absence of one on others
const matches = (row, key, sign, value) => value === null && row[key] === 'none' ? sign === '=' : compare[sign](comparable(row, key), value);
const stateOf = row => row.outcome == null ? (row.predicted_outcome == null ? 'waiting' : 'predicted') : row.outcome === 'ok' ? 'ran' : 'failed';
const words = text => String(text).toLowerCase().split(/[^\p{L}\p{N}.]+/u).filter(Boolean);
const wordsOf = row => new Set([stateOf(row), row.outcome ?? 'not run', row.source, row.layout_name, row.error_message, row.predicted_outcome, ...choices.map(({ key }) => row[key])].filter(part => part != null).flatMap(words));

// The test that a line of the filter makes of a row, and what is wrong with the line
function readFilter(text, rows) {
  const parts = text.trim().replace(/\s*(<=|>=|!=|=|<|>|:)\s*/g, '$1').split(/\s+/).filter(Boolean), tests = [];
  let wrong = '';
  const column = word => {  // the first of its columns in which a row here has a value
    const keys = fields[simple(word)];
    if (!keys) { wrong = `there is no column ${word}`; return null; }
    const known = keys.find(key => rows.some(row => row[key] != null));
    if (!known && !choices.some(({ key }) => key === keys[0])) { wrong = `no point here has a value of ${word}`; return null; }
    return known ?? keys[0];
  };
  for (let i = 0; i < parts.length; i++) {
    const asked = /^([^<>=!:]+)(<=|>=|!=|=|<|>|:)(.*)$/.exec(parts[i]), next = parts[i + 1];
    if (asked) {
      const key = column(asked[1]), sign = asked[2] === ':' ? '=' : asked[2];
      if (key && asked[3] !== '') { const value = valueOf(asked[3]); tests.push(row => matches(row, key, sign, value)); }
    } else if (fields[simple(parts[i])] && next != null && /^\d/.test(next)) {  // `tp 2`
      const key = column(parts[i]), value = valueOf(next);
      if (key) tests.push(row => matches(row, key, '=', value));
      i++;
    } else if (/^\d+$/.test(parts[i]) && fields[simple(next ?? '')]?.[0] === 'world_size') {  // `64 GPUs`
      const value = Number(parts[i]);
      tests.push(row => row.world_size === value); i++;
    } else for (const word of words(parts[i])) tests.push((row, among) => among.has(word));
  }
  return { keeps: row => { const among = wordsOf(row); return tests.every(test => test(row, among)); }, wrong };
}

const differs = (rows, { key, default: usual }) => new Set(rows.map(row => row[key]).filter(value => value != null || usual === null)).size > 1;
const plainText = x => x == null ? unknown : typeof x === 'boolean' ? (x ? 'yes' : 'no') : typeof x === 'number' && !Number.isInteger(x) ? String(Number(x.toPrecision(5))) : String(x);
const seconds = x => x == null ? unknown : significant(x, 4), gib = x => x == null ? unknown : significant(x / GIB);
function outcomeTag(outcome, row) {
  if (outcome == null) return element('span', row.predicted_outcome == null ? 'not run' : row.predicted_outcome === 'ok' ? 'predicted' : `predicted ${row.predicted_outcome.replaceAll('_', ' ')}`, 'tag predicted');
  return element('span', outcome === 'ok' ? row.source : outcome.replaceAll('_', ' '), `tag ${outcome === 'ok' ? row.source : 'failed'}`);
}
function pointColumns(all, gpus) {
  const has = key => all.some(row => row[key] != null), ran = has('tokens_per_s');
  return [
    { key: 'outcome', title: 'outcome', show: outcomeTag, look: 'l', usual: true }, { key: 'world_size', title: gpus, usual: true }, { key: 'layout_name', title: 'layout', look: 'l', usual: true },
    ...choices.map(axis => ({ ...axis, usual: axis.always || differs(all, axis) })),
    { key: 'tokens_per_s', title: 'tokens/s', show: amount, usual: ran }, { key: 'mfu', title: 'MFU', show: percent, usual: ran }, { key: 'step_time_s', title: 'step (s)', show: seconds, usual: ran },
    { key: 'peak_memory_bytes', title: 'peak GiB', show: gib, usual: true },
    { key: 'predicted_tokens_per_s', title: 'predicted tokens/s', show: amount, usual: true }, { key: 'predicted_step_time_s', title: 'pred. step (s)', show: seconds, usual: !ran }, { key: 'predicted_memory_bytes', title: 'pred. GiB', show: gib, usual: true },
    { key: 'mean_power_w', title: 'W', show: amount, usual: true }, { key: 'energy_j', title: 'J per step', show: amount }, { key: 'exposed_comm_s', title: 'exposed (s)', show: seconds }, { key: 'duration_s', title: 'took (s)', show: seconds },
    { key: 'stack_fingerprint', title: 'stack', look: 'l' }, { key: 'point_id', title: 'point', look: 'l' }, { key: 'error_message', title: 'what went wrong', look: 'l wide', usual: true },
  ].filter(({ key, always }) => always || has(key)).map(column => ({ ...column, shown: view.columns[column.key] ?? Boolean(column.usual) }));
}
function fillTable(at, columns, rows, sort) {
  const head = element('thead'), body = element('tbody'), line = head.appendChild(element('tr')), focus = at.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  for (const { key, title, look } of columns) {
    const cell = line.appendChild(element('th', sort ? null : title, look));
    cell.scope = 'col';
    if (!sort) continue;
    const control = cell.appendChild(element('button', title));
    control.type = 'button'; control.dataset.name = key; control.onclick = () => sort(key);
    if (view.sort[0] === key) cell.setAttribute('aria-sort', view.sort[1] > 0 ? 'ascending' : 'descending');
  }
  for (const row of rows) {
    const line = body.insertRow();
    for (const { key, show, look } of columns) {
      const cell = line.insertCell(), value = (show ?? plainText)(row[key], row);
      cell.append(value);
      if (look) cell.className = look;
    }
  }
  at.replaceChildren(head, body);
  if (focus) $$('[data-name]', at).find(control => control.dataset.name === focus)?.focus({ preventScroll: true });
}
// Examples that find something in these rows
function examples(all, gpus) {
  const first = all[0], axis = choices.find(one => one.always && differs(all, one)) ?? choices[0], known = key => all.find(row => row[key] != null);
  const found = [`${simple(axis.title)}=${first[axis.key]}`, `${gpus.toLowerCase()}>=${first.world_size}`];
  const held = memory.find(known);
  if (held) found.push(`memory>${Math.floor(known(held)[held] / GIB * 10) / 20}`);
  if (known('mfu')) found.push(`mfu>=${Math.floor(100 * known('mfu').mfu)}%`);
  return [...found, stateOf(first)];
}
function showPoints(id, gpus) {
  const all = points.filter(row => row.group_id === id), every = pointColumns(all, gpus), { keeps, wrong } = readFilter($('#find').value, all), kept = all.filter(keeps), [key, direction] = view.sort;
  if (key) kept.sort((a, b) => (a[key] == null) - (b[key] == null) || (a[key] > b[key] ? direction : a[key] < b[key] ? -direction : 0));
  fillTable($('#rows'), every.filter(column => column.shown), kept.slice(0, 500), column => { view.sort = [column, view.sort[0] === column ? -view.sort[1] : -1]; showPoints(id, gpus); });
  $('#count').textContent = wrong || `${kept.length} of ${all.length} points${kept.length > 500 ? ', first 500 shown' : ''}`;
  $('#count').classList.toggle('wrong', Boolean(wrong));
  $('#columns .checks').replaceChildren(...every.map(({ key, title, shown }) => {
    const label = element('label'), box = label.appendChild(element('input'));
    box.type = 'checkbox'; box.checked = shown; box.onchange = () => { view.columns[key] = box.checked; showPoints(id, gpus); $(`#columns input[data-name="${key}"]`).focus(); }; box.dataset.name = key;
    label.append(' ' + title);
    return label;
  }));
  $('#find-help').replaceChildren('A column and a value (', ...(all.length ? examples(all, gpus) : []).flatMap((one, i) => [i ? ', ' : '', element('code', one)]), '), or whole words of the row. All must hold.');
  const missed = refused.filter(row => row.group_id === id);
  $('#refusals').hidden = !missed.length;
  $('#refusals summary').textContent = `${missed.length} ${missed.length === 1 ? 'combination was' : 'combinations were'} refused or skipped`;
  fillTable($('#refused'), [{ key: 'world_size', title: gpus }, ...choices.filter(axis => axis.key in (missed[0] ?? {}) && (axis.always || differs(missed, axis))), { key: 'reason', title: 'why', look: 'l wide' }], missed.slice(0, 500));
}
