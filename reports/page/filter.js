// The filter of the table of points: `tp=2 gpus>=64 failed`. A column and a value, or whole words of the row.

// the axes of a layout, and the columns that follow from them
const choices = [...parsed('axes'), { key: 'repeat', title: 'repeat' }];
choices.splice(choices.findIndex(axis => !axis.ranks), 0, { key: 'dp', title: 'dp', always: true });

const GIB = 2 ** 30;
const short = { gpu: 'world_size', gpus: 'world_size', rank: 'world_size', ranks: 'world_size', mbs: 'micro_batch_size', zero: 'zero_stage', step: 'step_time_s', step_s: 'step_time_s', tokens_s: 'tokens_per_s', peak_gib: 'peak_memory_bytes', predicted: 'predicted_tokens_per_s', rate: 'tokens_per_s', memory: 'peak_memory_bytes', gib: 'peak_memory_bytes' };
const simple = text => text.toLowerCase().replace(/[^a-z0-9]+/g, '_').replace(/^_|_$/g, '');
const fields = {};
for (const { key, title } of choices) { fields[simple(title)] = key; fields[simple(key)] = key; }
for (const key of columns.statistics) fields[simple(key)] = key;
Object.assign(fields, short);

// A value as people write it: 2, 1.5M, 40%, yes, none
function valueOf(text) {
  const number = /^([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(%|[kmgtp])?$/i.exec(text);
  if (number) return Number(number[1]) * ({ '%': 0.01, k: 1e3, m: 1e6, g: 1e9, t: 1e12, p: 1e15 }[number[2]?.toLowerCase()] ?? 1);
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
// The words of a row: outcome, series, every choice with its value, what went wrong
function wordsOf(row) {
  const said = [stateOf(row), row.outcome ?? 'not run', row.series, row.layout_name, row.error_message, row.predicted_outcome, ...choices.map(({ key }) => row[key])];
  return new Set(said.filter(part => part != null).flatMap(part => String(part).toLowerCase().split(/[^\p{L}\p{N}.]+/u)));
}

// The test that a line of the filter makes of a row, and what is wrong with the line
function readFilter(text) {
  const parts = text.trim().replace(/\s*(<=|>=|!=|=|<|>|:)\s*/g, '$1').split(/\s+/).filter(Boolean), tests = [];
  let wrong = '';
  for (let i = 0; i < parts.length; i++) {
    const asked = /^([^<>=!:]+)(<=|>=|!=|=|<|>|:)(.*)$/.exec(parts[i]);
    if (asked) {
      const key = fields[simple(asked[1])];
      if (!key) { wrong = `there is no column ${asked[1]}`; tests.push(() => false); }
      else if (asked[3] !== '') { const value = valueOf(asked[3]), sign = asked[2] === ':' ? '=' : asked[2]; tests.push(row => matches(row, key, sign, value)); }
      continue;
    }
    // `tp 2` and `64 GPUs` mean `tp=2` and `gpus=64`
    const own = fields[simple(parts[i])], next = parts[i + 1], later = fields[simple(next ?? '')];
    if (own && next != null && /^\d/.test(next)) { const value = valueOf(next); tests.push(row => matches(row, own, '=', value)); i++; continue; }
    if (later === 'world_size' && /^\d+$/.test(parts[i])) { const value = Number(parts[i]); tests.push(row => row.world_size === value); i++; continue; }
    for (const word of parts[i].toLowerCase().split(/[^\p{L}\p{N}.]+/u).filter(Boolean)) tests.push((row, among) => among.has(word));
  }
  return { keeps: row => { const among = wordsOf(row); return tests.every(test => test(row, among)); }, wrong };
}
