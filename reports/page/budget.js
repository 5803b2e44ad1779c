// The budget: tokens, price and deadline of a run; days and cost of every size follow.

const units = [['h', 1], ['min', 60], ['s', 3600]];
const duration = hours => {
  const [unit, perHour] = units.find(([, many]) => hours * many >= 1) ?? units.at(-1);
  return hours >= 48 ? `${amount(hours / 24)}${thin}d` : `${significant(hours * perHour)}${thin}${unit}`;
};
const run = ({ hours_per_token, gpu_hours_per_token, tokens_per_step }) =>
  ({ days: tokens() * hours_per_token / 24, cost: tokens() * gpu_hours_per_token * (price() || 1), steps: tokens() / tokens_per_step });
const costText = value => price() ? `$${thin}${amount(value)}` : `${amount(value)} ${state.story.words.GPU}-hours`;

function updateBudget() {
  const { story } = state, { at_size: sizes } = story.advice, inTime = [];
  const article = $(`.selection[data-setting="${story.setting_id}"]`);
  for (const [size, values] of Object.entries(sizes)) {
    const made = run(values), late = state.deadline != null && made.days > state.deadline;
    if (!late) inTime.push({ size: Number(size), ...made });
    for (const [sum, value] of [['days', duration(24 * made.days)], ['cost', amount(made.cost)], ['steps', amount(made.steps)]]) {
      const cell = $(`tr[data-sum=${sum}] td[data-size="${size}"]`, article);
      if (cell) { cell.textContent = value; cell.classList.toggle('late', late); }
    }
  }
  const label = $('tr[data-sum=cost] th span', article), spent = $('.for', article);
  if (label) label.textContent = price() ? 'cost ($)' : `${story.words.GPU}-hours`;
  if (spent) spent.textContent = `for ${amount(tokens())} tokens`;
  const cheapest = inTime.reduce((best, row) => !best || row.cost < best.cost ? row : best, null), within = `within ${amount(state.deadline)} days`;
  const choice = ({ size, days, cost }) => `Cheapest ${within}: ${duration(24 * days)} for ${costText(cost)} on ${size} ${story.words[size === 1 ? 'GPU' : 'GPUs']}.`;
  $('#cheapest').textContent = state.deadline == null ? '' : cheapest ? choice(cheapest) : `No size finishes ${within}.`;
  $('#budget').hidden = !Object.keys(sizes).length;
}
function readTokens(text) {  // 140e9, 140G, 140B, 1.5 T; null where empty
  const number = /^([\d.]+(?:e\d+)?)\s*([kmgbtp])?$/i.exec(text.trim().replace(/[\s\u202f_,]/g, ''));
  return number ? positive(Number(number[1]) * ({ k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, p: 1e15 }[number[2]?.toLowerCase()] ?? 1)) : null;
}
function budget(change) {
  Object.assign(state, change);
  updateBudget(); remember();
}
function budgetControls() {
  $('#tokens').value = state.tokens ? amount(state.tokens) : '';
  $('#price').value = state.price ?? ''; $('#deadline').value = state.deadline ?? '';
  $('#tokens').oninput = event => budget({ tokens: readTokens(event.target.value) });
  $('#price').oninput = event => budget({ price: positive(event.target.value) });
  $('#deadline').oninput = event => budget({ deadline: positive(event.target.value) });
}
