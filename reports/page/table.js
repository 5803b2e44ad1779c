// Tables: any rows as a table, and the table of every point with its filter and its columns.

function fillTable(at, shown, rows, sort) {
  const head = element('thead'), body = element('tbody'), line = head.appendChild(element('tr'));
  for (const column of shown) {
    const cell = element('th', sort ? null : column.title, column.look);
    cell.scope = 'col';
    if (sort) {
      const control = button(column.title, () => sort(column.key));
      control.dataset.name = column.key;
      cell.append(control);
      if (state.sort[0] === column.key) cell.setAttribute('aria-sort', state.sort[1] > 0 ? 'ascending' : 'descending');
    }
    line.append(cell);
  }
  for (const row of rows) {
    const line = body.insertRow();
    if ('outcome' in row && row.outcome !== 'ok') line.className = row.outcome != null ? 'fail' : row.predicted_outcome != null ? 'only-predicted' : 'wait';
    for (const column of shown) {
      const cell = line.insertCell(), value = (column.show ?? plainText)(row[column.key], row, cell);
      cell.append(value instanceof Node ? value : String(value));
      if (column.look) cell.classList.add(...column.look.split(' '));
    }
  }
  replaceContent(at, head, body);
}
const asColumns = (name, rows) => columns[name].filter(key => key !== 'setting_id' && rows.some(row => row[key] != null))
  .map(key => ({ key, title: key, look: rows.every(row => row[key] == null || typeof row[key] === 'string') ? 'l' : '' }));

function outcomeTag(outcome, row) {
  if (outcome == null && row.predicted_outcome != null) return element('span', row.predicted_outcome === 'ok' ? 'predicted' : `predicted ${row.predicted_outcome.replaceAll('_', ' ')}`, 'tag predicted');
  if (outcome == null) return element('span', 'not run', 'tag waiting');
  if (outcome === 'ok') return element('span', row.series, 'tag ' + row.series);
  const tag = element('span', outcome.replaceAll('_', ' '), 'tag failed');
  if (row.error_message) tag.title = row.error_message;
  return tag;
}

// Whether rows differ in a choice; null is a value of an axis whose default it is, else unknown
const differs = (rows, { key, default: usual }) => new Set(rows.map(row => row[key]).filter(value => value != null || usual === null)).size > 1;
// Every column that the table of points can show; `usual` ones show until the reader changes it
function pointColumns(all) {
  const has = key => all.some(row => row[key] != null);
  const ran = has('tokens_per_s'), predicted = has('predicted_tokens_per_s'), rate = has('mfu') ? 'mfu' : 'model_flop_per_s_per_gpu';
  const levels = [...new Set(all.filter(row => row.step_time_low_s != null).map(row => row.series === 'extended' ? 80 : 95))].sort().reverse();
  const most = Math.max(...all.map(row => row[rate] ?? 0));
  const meter = show => (value, row, cell) => { if (value != null) { cell.classList.add('meter'); cell.style.setProperty('--w', 100 * value / most + '%'); } return show(value); };
  const perGpu = (value, row) => value == null ? unknown : amount(value / row.world_size);
  return [
    { key: 'outcome', title: 'outcome', show: outcomeTag, look: 'l', usual: true }, { key: 'world_size', title: fillWords('{GPUs}'), usual: true },
    ...choices.map(axis => ({ ...axis, show: yesNo, usual: axis.always || differs(all, axis) })),
    { key: 'tokens_per_s', title: 'tokens/s', show: amount, usual: ran }, { key: 'tokens_per_s_per_gpu', title: fillWords('per {GPU}'), show: amount, usual: ran },
    { key: 'mfu', title: 'MFU', show: meter(percent), usual: has('mfu') }, { key: 'model_flop_per_s_per_gpu', title: 'FLOP/s', show: has('mfu') ? amount : meter(amount), usual: ran && !has('mfu') },
    { key: 'step_time_s', title: 'step (s)', show: seconds, usual: ran },
    { key: 'step_time_low_s', title: `± ${levels.join(' or ') || 95} %`, show: (low, row) => low == null ? unknown : percent((row.step_time_high_s - low) / 2 / row.step_time_s), usual: has('step_time_low_s') },
    { key: 'step_time_p95_s', title: 'p95 step (s)', show: seconds, usual: has('step_time_p95_s') },
    { key: 'peak_memory_bytes', title: 'peak GiB', show: gib, usual: has('peak_memory_bytes') },
    { key: 'predicted_tokens_per_s', title: ran ? 'predicted' : 'predicted tokens/s', show: amount, usual: predicted },
    { key: 'predicted_per_gpu', title: fillWords('pred. per {GPU}'), show: (_, row) => perGpu(row.predicted_tokens_per_s, row), usual: predicted && !ran },
    { key: 'predicted_step_time_s', title: 'pred. step (s)', show: seconds, usual: predicted && !ran },
    { key: 'predicted_memory_bytes', title: 'pred. GiB', show: gib, usual: has('predicted_memory_bytes') },
    { key: 'mean_power_w', title: 'W', show: amount, usual: has('mean_power_w') }, { key: 'energy_j', title: 'J per step', show: amount, usual: has('energy_j') },
    { key: 'exposed_comm_s', title: 'exposed (s)', show: seconds, usual: false }, { key: 'duration_s', title: 'took (s)', show: seconds, usual: false },
    { key: 'stack_fingerprint', title: 'stack', look: 'l', usual: false }, { key: 'point_id', title: 'point', look: 'l', usual: false },
    { key: 'error_message', title: 'what went wrong', look: 'l wide', usual: has('error_message') },
  ].filter(column => column.usual || has(column.key) || column.key in state.columns);
}
function statistics() {
  const all = chosenRows(tables.statistics), every = pointColumns(all), shown = every.filter(({ key, usual }) => state.columns[key] ?? usual);
  const { keeps, wrong } = readFilter($('#find').value);
  const kinds = { all: () => true, ran: row => stateOf(row) === 'ran', failed: row => stateOf(row) === 'failed', predicted: row => stateOf(row) === 'predicted', 'not run': row => stateOf(row) === 'waiting' };
  const present = Object.keys(kinds).filter(kind => kind === 'all' || all.some(kinds[kind]));
  if (!present.includes(state.outcome)) state.outcome = 'all';
  const kept = all.filter(row => kinds[state.outcome](row) && keeps(row));
  const ran = all.some(row => row.tokens_per_s != null), [key, direction] = state.sort[0] ? state.sort : [ran ? null : 'predicted_tokens_per_s', -1];
  if (key) kept.sort((a, b) => (a[key] == null) - (b[key] == null) || (a[key] > b[key] ? direction : a[key] < b[key] ? -direction : 0));
  const drawn = kept.slice(0, 500);
  fillTable($('#points'), shown, drawn, column => { state.sort = [column, state.sort[0] === column ? -state.sort[1] : -1]; statistics(); });
  $('#count').textContent = `${kept.length} of ${all.length} points` + (kept.length > drawn.length ? `, first ${drawn.length} shown` : '') + (wrong ? `: ${wrong}` : '');
  pick($('#outcomes'), present, state.outcome, kind => { state.outcome = kind; statistics(); });
  replaceContent($('#columns .checks'), ...every.map(({ key, title }) => {
    const label = element('label'), box = element('input');
    box.type = 'checkbox'; box.dataset.name = key; box.checked = shown.some(column => column.key === key);
    box.onchange = () => { state.columns[key] = box.checked; statistics(); };
    label.append(box, ' ' + title);
    return label;
  }));
  const stated = ({ key }) => all.find(row => row[key] != null)?.[key];
  const fixed = choices.filter(axis => !axis.always && axis.key !== 'repeat' && !differs(all, axis) && stated(axis) != null && !(axis.later && stated(axis) === axis.default)).map(axis => `${axis.title} ${yesNo(stated(axis))}`);
  $('#same').textContent = fixed.length ? `The same wherever stated: ${fixed.join(', ')}.` : '';
  const first = all[0], axis = choices.find(axis => axis.always && differs(all, axis));
  if (first) $('#find').placeholder = `${axis ? `${simple(axis.title)}=${first[axis.key]} ` : ''}gpus>=${first.world_size}`;  // an example that finds something
  refusals();
}
function refusals() {
  const refused = chosenRows(tables.refused);
  $('#refusals').hidden = !refused.length;
  $('#refusals summary').textContent = `${refused.length} combination${refused.length === 1 ? '' : 's'} not tried: refused, or skipped by a guided sweep`;
  fillTable($('#refused'), [{ key: 'world_size', title: fillWords('{GPUs}') }, ...choices.filter(axis => axis.key in (refused[0] ?? {}) && (axis.always || differs(refused, axis))).map(({ key, title }) => ({ key, title, show: yesNo })), { key: 'reason', title: 'why', look: 'l wide' }], refused.slice(0, 1000));
}
