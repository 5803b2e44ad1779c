// Helpers, and numbers as people read and write them. Text from the study only ever becomes a text node.

const $ = (query, at = document) => at.querySelector(query), $$ = (query, at = document) => [...at.querySelectorAll(query)];
const parsed = id => JSON.parse($('#' + id).textContent);
const element = (tag, text, name) => { const fresh = document.createElement(tag); if (text != null) fresh.textContent = text; if (name) fresh.className = name; return fresh; };

// formats of scaling/report/text.py
const { unknown, thin, minus, prefixes, digits, grouped_digits, times } = parsed('formats');
const significant = (x, count = digits) => {
  const rounded = Number(x.toPrecision(count));
  const places = Math.max(0, count - 1 - Number(rounded.toExponential().split('e')[1]));
  return rounded === 0 ? '0' : rounded.toLocaleString('en', { minimumFractionDigits: places, maximumFractionDigits: places }).replaceAll(',', thin).replace('-', minus);
};
const amount = x => {
  if (x == null) return unknown;
  for (const [from, scale, prefix] of prefixes) if (Math.abs(x) >= from) return significant(x / scale) + thin + prefix;
  return significant(x, Math.abs(x) >= 1000 ? grouped_digits : digits);
};
const percent = x => x == null ? unknown : (100 * x).toFixed(1).replace('-', minus) + thin + '%';
const duration = (hours, beside = hours) => { const [, perHour, unit] = times.find(([from]) => beside >= from); return `${amount(hours * perHour)}\u00a0${unit}`; };

// A number above zero as people write it: 0.5T, 0,5 T, 140 billion, 1e12, 140G, 1,000,000. {value} or {wrong}; null where empty.
const scales = { k: 1e3, thousand: 1e3, m: 1e6, million: 1e6, g: 1e9, b: 1e9, billion: 1e9, t: 1e12, trillion: 1e12, p: 1e15 };
function readNumber(text, units = scales) {
  const plain = text.trim().replace(/^\$\s*/, '').replace(/[\s\u202f\u00a0_']+/g, ' ').replace(/(\d) (?=\d{3}(?!\d))/g, '$1');
  if (!plain) return null;
  const found = /^([\d.,]+(?:e[+-]?\d+)?) ?([a-z]*)(?: tokens)?$/i.exec(plain), unit = found?.[2].toLowerCase() ?? '';
  let number = found?.[1] ?? '';
  if (/^[1-9]\d{0,2}(,\d{3})+(\.\d+)?$/.test(number)) number = number.replaceAll(',', '');  // 1,000,000
  else if (/^\d*,\d+(e[+-]?\d+)?$/i.test(number)) number = number.replace(',', '.');  // 0,5
  const scale = unit === '' || unit === 'tokens' ? 1 : units[unit];
  const value = /^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(number) && scale ? Number(number) * scale : NaN;
  return value > 0 && value < Infinity ? { value } : { wrong: `not a number above 0, such as ${Object.keys(units).includes('t') ? '0.5T, 140 billion or 1e12' : '2.5'}` };
}
