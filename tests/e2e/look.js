// What a page looks like, once it is loaded. Contrasts are WCAG's, of each text against the nearest
// background behind it; a picture's text has the colour of its fill.
(() => {
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => {
      const part = v / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = (colour) => colour.startsWith("rgb") && (parts(colour)[3] ?? 1) > 0.5;
  // A picture that is inverted for the dark is seen as the negative of its colours: a filter's
  // invert(part) moves a value v of 0..1 to v + part * (1 - 2 v); turning the hue by half a circle
  // afterwards leaves its lightness nearly as it was.
  const shown = (colour, element) => {
    const filter = element.closest("svg") && getComputedStyle(element.closest("svg")).filter;
    const part = Number((/invert\(([\d.]+)\)/.exec(filter) || [0, 0])[1]);
    return parts(colour).slice(0, 3).map((v) => v + part * (255 - 2 * v));
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (seen(style.backgroundColor)) return parts(style.backgroundColor).slice(0, 3);
    }
    return [255, 255, 255];
  };
  const contrast = (one, other) => {
    const [less, more] = [light(one), light(other)].sort((a, b) => a - b);
    return (more + 0.05) / (less + 0.05);
  };
  for (const details of document.querySelectorAll("details")) details.open = true;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || parent.closest("style, script") || !parent.getClientRects().length) continue;
    const style = getComputedStyle(parent);
    const ink = parent.closest("svg") ? style.fill : style.color;
    texts.push([contrast(shown(ink, parent), behind(parent)), text.slice(0, 40)]);
  }
  const root = document.documentElement;
  return {
    title: document.title,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    width: innerWidth,
    page_width: Math.max(root.scrollWidth, document.body.scrollWidth),
    paper: behind(document.body),
    card: behind(document.querySelector("section")),
    texts: texts.length,
    faintest: texts.sort((a, b) => a[0] - b[0]).slice(0, 5),
    images: [...document.images].map((image) => image.complete && image.naturalWidth > 0),
    drawings: [...document.querySelectorAll("main svg")].map((svg) => {
      const box = svg.getBoundingClientRect();
      return [box.width, box.height, svg.getAttribute("aria-label") || ""];
    }),
    cut: [...document.querySelectorAll("section")].filter((section) =>
      section.scrollWidth > section.clientWidth + 1
      && !["auto", "scroll"].includes(getComputedStyle(section).overflowX)).length,
    height: root.scrollHeight,
  };
})()
