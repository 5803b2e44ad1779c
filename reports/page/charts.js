// Charts: one specification each, drawn with the rows of the selection. scaling/report/charts/charts.py
// (`drawable`) decides which have something to draw, and in which panels.

const views = {};
const drawnHere = () => state.story.drawn[state.series] ?? {};
const panelsOf = name => drawnHere()[name]?.[charts[name].perSize ? state.size : ''] ?? [];
const rowsFor = (table, chart, panel = null) => chosenRows(tables[table]).filter(row => (!chart.perSize || !('world_size' in row) || row.world_size === state.size) && (panel == null || !(chart.panel in row) || row[chart.panel] === panel));
function tablesIn(part, names = new Set()) {
  if (part && typeof part === 'object') { if (part.data?.name) names.add(part.data.name); Object.values(part).forEach(inner => tablesIn(inner, names)); }
  return names;
}
const titleOf = section => state.story.at_size[state.size]?.[section] ?? state.story.titles[section] ?? '';

function scaffold(figure) {
  const name = figure.dataset.chart, chart = charts[name], title = name.replaceAll('_', ' ');
  const tools = element('div', null, 'tools'), details = element('details');
  details.append(element('summary', 'Table'));
  details.ontoggle = () => showRows(details, chart);
  const save = (kind, action) => { const control = button(kind, action); control.setAttribute('aria-label', `${kind} of ${title}`); return control; };
  tools.append(details, save('SVG', () => saveSvg(name)), save('PNG', () => savePng(name)), save('CSV', () => saveCsv(chart.table, rowsFor(chart.table, chart), titleOf(chart.section))));
  const link = element('a', '#', 'self');
  link.href = '#' + figure.id; link.setAttribute('aria-label', `Link to ${title}`);
  tools.append(link);
  figure.append(element('figcaption'), element('div', null, 'chart'), tools);
}
function showRows(details, chart) {
  $('.scroll', details)?.remove();
  if (!details.open) return;
  const box = element('div', null, 'scroll'), table = element('table'), rows = rowsFor(chart.table, chart);
  box.tabIndex = 0; box.setAttribute('role', 'region'); box.setAttribute('aria-label', `Table of ${chart.table}`);
  fillTable(table, asColumns(chart.table, rows), rows.slice(0, 300));
  box.append(table); details.append(box);
}
async function draw(figure) {
  const name = figure.dataset.chart, chart = charts[name], box = $('.chart', figure), panels = panelsOf(name);
  (views[name] ?? []).forEach(({ view }) => view.finalize()); delete views[name];
  if (figure.hidden) return;
  $('figcaption', figure).replaceChildren(...wholeParts(fillWords(chart.caption)));
  box.replaceChildren();
  box.classList.toggle('panels', panels.length > 1);
  try {
    views[name] = await Promise.all(panels.map(panel => {
      const title = panel == null ? '' : String(panel).replaceAll('_', '-'), frame = element('div'), at = element('div', null, 'vega-embed');  // as wide as its frame from the start
      frame.append(...(panel == null ? [] : [element('h3', title)]), at); box.append(frame);
      return embed(at, specification(name, panel), `${title ? title + ': ' : ''}${fillWords(chart.alt)} ${titleOf(chart.section)}.`).then(({ view }) => ({ view, panel }));
    }));
    figure.dataset.drawn = `${state.story.setting_id}/${chart.perSize ? state.size : ''}`;
  } catch (error) {
    box.replaceChildren(element('div', `${name}: ${error.message}`, 'empty'));
    console.error(name, error);
  }
  $$('details[open]', figure).forEach(details => showRows(details, chart));
}
function specification(name, panel) {
  const chart = charts[name], spec = JSON.parse(fillWords(JSON.stringify(chart.spec)));
  spec.datasets = Object.fromEntries([...tablesIn(spec)].map(table => [table, rowsFor(table, chart, panel)]));
  const stated = { ...state.story.parameters, tokens_: tokens(), price_: price() };
  for (const parameter of spec.params) if (parameter.name in stated) parameter.value = stated[parameter.name];
  return spec;
}
async function embed(at, spec, description) {
  if (description) spec.description = description;  // what a screen reader says
  const embedded = await window.vegaEmbed(at, spec, { renderer: 'svg', actions: false, logLevel: 1, config, tooltip: { theme: 'custom' } });
  // Vega gives groups of marks the role of a picture but no name, also on every resize; only the chart has a name
  const unclaim = () => { for (const group of $$('[role=graphics-symbol]:not([aria-label])', at)) { group.removeAttribute('role'); group.removeAttribute('aria-roledescription'); } };
  unclaim();
  new MutationObserver(unclaim).observe(at, { subtree: true, childList: true, attributeFilter: ['role'] });
  return embedded;
}
// Hide sections without a chart, and their links; Method lists what is not shown.
// Runs before the charts are drawn, because each takes the width of its place.
function showSections() {
  $$('figure[data-chart]').forEach(figure => { figure.hidden = !panelsOf(figure.dataset.chart).length; });
  $$('section[data-charts]').forEach(section => { section.hidden = $$('figure[data-chart]', section).every(figure => figure.hidden); });
  $$('.two').forEach(pair => { const seen = $$('section', pair).filter(section => !section.hidden).length; pair.hidden = !seen; pair.classList.toggle('lonely', seen < 2); });
  $$('.pair').forEach(pair => { const seen = $$('figure', pair).filter(figure => !figure.hidden).length; pair.classList.toggle('lonely', seen < 2); pair.classList.toggle('three', seen === 3); });
  $$('.rail li').forEach(line => { const section = document.getElementById(line.dataset.for); line.hidden = !section || section.hidden; });
  const sized = ['memory', 'layouts'].filter(id => !document.getElementById(id).hidden).join(' and ');
  $('#sizes').hidden = state.story.tried.length < 2 || !sized;
  $('#sized').textContent = `${sized.charAt(0).toUpperCase()}${sized.slice(1)} at`;
  const missing = Object.entries(charts).filter(([name]) => !panelsOf(name).length);
  replaceContent($('#not-shown-list'), ...missing.map(([name, chart]) => { const line = element('li'); line.append(element('b', name.replaceAll('_', ' ')), `: ${fillWords(chart.missing)}`); return line; }));
  $('#not-shown').hidden = !missing.length;
}
