// Files: each carries its title, study, series and level of the intervals.

function save(name, type, text) {
  const link = element('a');
  link.href = URL.createObjectURL(new Blob([text], { type })); link.download = name; link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const study = $('h1 code').textContent;
const place = () => `${state.story.model} on ${state.story.cluster}, ${state.story.batch}`;
function saveCsv(name, rows, title = name) {
  const inert = value => typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;  // so that no spreadsheet runs it as a formula
  const quoted = value => value == null ? '' : /[",\n\r]/.test(value) ? `"${String(inert(value)).replaceAll('"', '""')}"` : inert(value);
  const origin = { title, study, selection: place(), interval: state.story.interval };
  save(name + '.csv', 'text/csv', [[...columns[name], ...Object.keys(origin)], ...rows.map(row => [...columns[name].map(key => row[key]), ...Object.values(origin)])].map(line => line.map(quoted).join(',')).join('\n') + '\n');
}
// The heading of a chart outside the page; scaling/report/charts/svg.py writes the same
function heading(chart, panel) {
  const wrapped = (text, most) => text.split(/\s+/).reduce((lines, word) => { const last = lines.length - 1; if (lines[last] && lines[last].length + word.length >= most) lines.push(word); else lines[last] = `${lines[last]} ${word}`.trim(); return lines; }, ['']);
  const where = `${study}: ${place()}${panel == null ? '' : `; ${panel}`}`;
  return {
    text: wrapped(titleOf(chart.section) || chart.section, 70), subtitle: [...wrapped(where, 100), ...wrapped(state.story.key, 100)], anchor: 'start', frame: 'group',
    fontSize: 14, subtitleFontSize: 11, color: 'var(--ink)', subtitleColor: 'var(--ink-2)', offset: 12,
  };
}
async function svgsOf(name) {  // a file outside the page has no CSS variables
  const style = getComputedStyle(root), named = text => text.replace(/var\((--[\w-]+)\)/g, (_, variable) => style.getPropertyValue(variable).trim()).replaceAll('url(#hatch)', style.getPropertyValue('--hatch').trim());
  return Promise.all(panelsOf(name).map(async panel => {
    const spec = specification(name, panel), { view, finalize } = await embed(element('div'), { ...spec, width: 640, title: heading(charts[name], panel) });
    const text = named(await view.toSVG());
    finalize();
    return [panel == null ? name : `${name}-${panel}`, text];
  }));
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
