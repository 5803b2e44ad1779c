// The budget: tokens, price and deadline of a run; days and cost of every size follow.

const units = [['h', 1], ['min', 60], ['s', 3600]];
const duration = hours => {
  const [unit, perHour] = units.find(([, many]) => hours * many >= 1) ?? units.at(-1);
  return hours >= 48 ? `${amount(hours / 24)}${thin}d` : `${significant(hours * perHour)}${thin}${unit}`;
};
const run = (size, story = state.story) => {
  const { hours_per_token, gpu_hours_per_token, tokens_per_step } = size, hours = tokens(story) * gpu_hours_per_token;
  return { days: tokens(story) * hours_per_token / 24, hours, cost: hours * (price(story) || 1), steps: tokens(story) / tokens_per_step };
};
const paid = (value, story = state.story) => price(story) ? `$${thin}${amount(value)}` : `${amount(value)} ${story.words.GPU}-hours`;

function bill() {
  const { story } = state, { at_size: sizes, kind } = story.advice, late = [], inTime = [];
  const article = $(`.selection[data-setting="${story.setting_id}"]`);
  for (const [size, values] of Object.entries(sizes)) {
    const made = run(values);
    (state.deadline != null && made.days > state.deadline ? late : inTime).push({ size: Number(size), ...made });
    for (const [sum, value] of [['days', duration(24 * made.days)], ['cost', amount(made.cost)], ['steps', amount(made.steps)]]) {
      const cell = $(`tr[data-sum=${sum}] td[data-size="${size}"]`, article);
      if (cell) { cell.textContent = value; cell.classList.toggle('late', state.deadline != null && made.days > state.deadline); }
    }
  }
  const label = $('tr[data-sum=cost] th span', article), spent = $('.for', article);
  if (label) label.textContent = price() ? 'cost ($)' : `${story.words.GPU}-hours`;
  if (spent) spent.textContent = `for ${amount(tokens())} tokens`;
  const told = ({ size, days: time, cost }) => `${duration(24 * time)} for ${paid(cost)} on ${size} ${story.words[size === 1 ? 'GPU' : 'GPUs']}`;
  const least = (rows, key) => rows.reduce((best, row) => !best || row[key] < best[key] ? row : best, null);
  const every = [...inTime, ...late], cheap = least(every, 'cost'), fast = least(every, 'days'), choice = least(inTime, 'cost');
  $('#cheapest').textContent = state.deadline == null || !every.length ? '' : choice ? `Cheapest within ${amount(state.deadline)} days: ${told(choice)}.` : `No size finishes within ${amount(state.deadline)} days.`;
  const predicted = kind === 'predicted' ? 'Predicted: ' : '';
  story.titles.cost = !every.length ? 'What a run costs is not known: nothing ran' : `${predicted}${amount(tokens())} tokens take ${told(cheap)}${cheap.size === fast.size ? '' : `, or ${told(fast)}`}`;
  $('#budget').hidden = !every.length;
}
function readTokens(text) {  // 140e9, 140G, 140B, 1.5 T; empty: as many as the model asks for
  const number = /^([\d.]+(?:e\d+)?)\s*([kmgbtp])?$/i.exec(text.trim().replace(/[\s\u202f_,]/g, ''));
  return number ? positive(Number(number[1]) * ({ k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, p: 1e15 }[number[2]?.toLowerCase()] ?? 1)) : null;
}
function budget(change) {
  Object.assign(state, change);
  bill(); remember(); titles();
  return draw($('figure[data-chart=cost]')).then(settle);
}
function budgetControls() {
  $('#tokens').value = state.tokens ? amount(state.tokens) : '';
  $('#price').value = state.price ?? ''; $('#deadline').value = state.deadline ?? '';
  $('#tokens').oninput = event => budget({ tokens: readTokens(event.target.value) });
  $('#price').oninput = event => budget({ price: positive(event.target.value) });
  $('#deadline').oninput = event => budget({ deadline: positive(event.target.value) });
}
