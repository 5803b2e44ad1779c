// What is wrong with what can be seen, as {kind: [words]}; `least` is the smallest type in px.
// A text that is written twice in one place, once as its own halo, is one text.
least => {
  const seen = e => e.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && !e.closest('.unseen, .skip');
  const all = [...document.querySelectorAll('body *')];
  const wide = all.filter(e => seen(e) && !e.closest('.scroll, svg, .rail')
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => `${e.tagName}.${e.className}`);
  const clash = new Set(), cut = new Set(), small = new Set();
  const size = e => parseFloat(getComputedStyle(e).fontSize);
  for (const svg of document.querySelectorAll('figure svg')) {
    if (!svg.checkVisibility()) continue;
    const name = svg.closest('figure').dataset.chart, edge = svg.getBoundingClientRect();
    const scale = edge.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll('text')]
      .filter(at => at.textContent.trim() && getComputedStyle(at).opacity > 0 && seen(at))
      .map(at => ({ at, words: at.textContent, box: at.getBoundingClientRect() }));
    for (const { at, words, box } of texts) {
      const out = Math.max(box.right - edge.right, edge.left - box.left,
        box.bottom - edge.bottom, edge.top - box.top);
      if (out > 6 || words.endsWith('…')) cut.add(`${name}: ${words}`);
      if (scale * size(at) < least) small.add(`${name}: ${words}`);
    }
    texts.forEach((one, i) => texts.slice(i + 1).forEach(two => {
      const a = one.box, b = two.box;
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const halo = one.words === two.words && Math.abs(a.x - b.x) < 1 && Math.abs(a.y - b.y) < 1;
      if (!halo && x > 1 && y > 3) clash.add(`${name}: ${one.words} | ${two.words}`);
    }));
  }
  for (const e of all) {
    const words = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent).join('').trim();
    if (!words || e.closest('svg') || !seen(e)) continue;
    if (size(e) < least) small.add(`${e.tagName}: ${words.slice(0, 20)}`);
    const hides = ['hidden', 'clip'].includes(getComputedStyle(e).overflowX);
    if (hides && e.scrollWidth > e.clientWidth + 1) cut.add(words.slice(0, 40));
  }
  return { wide: wide.slice(0, 5), clash: [...clash], cut: [...cut], small: [...small] };
}
