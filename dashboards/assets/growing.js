// A training's page is drawn on while the training writes, on its processors perhaps: what nobody sees is not drawn, and
// looks come as seldom as it takes for drawing to stay below SHARE of the time: a browser spends about four times that.
const growing = (function () {
  const SHARE = 0.004, SHORTEST = 3000, LONGEST = 60000;
  let waiting = {}, latest = {};
  const set = (id, props) => window.dash_clientside.set_props(id, props);
  const page = () => document.getElementById("training-drawn");
  function seen(id) {
    const box = (document.getElementById(id) || { getBoundingClientRect: () => ({ height: 0 }) }).getBoundingClientRect();
    return !document.hidden && box.height > 0 && box.bottom > 0 && box.top < window.innerHeight;
  }
  function add(id, points) {
    const figure = document.querySelector(`#${id} .js-plotly-plot`), at = [], x = [], y = [];
    if (!figure || !figure.data) return;
    for (const [number, along, values] of points) {
      const trace = figure.data.findIndex((one) => one.meta === number);
      if (trace >= 0) { at.push(trace); x.push(along); y.push(values); }
    }
    if (at.length) window.Plotly.extendTraces(figure, { x, y }, at);
  }
  // Draw what waits and is seen; tells how long that took.
  function draw() {
    const began = window.performance.now();
    for (const id of Object.keys(waiting).filter(seen)) {
      const points = waiting[id];
      delete waiting[id];
      add(id, points);
    }
    for (const id of Object.keys(latest).filter(seen)) {
      const props = latest[id];
      delete latest[id];
      set(id, props);
    }
    return window.performance.now() - began;
  }
  function merged(before, news) {
    const found = new Map((before || []).map(([number, x, y]) => [number, [x, y]]));
    for (const [number, x, y] of news) {
      const [a, b] = found.get(number) || [[], []];
      found.set(number, [a.concat(x), b.concat(y)]);
    }
    return [...found].map(([number, [x, y]]) => [number, x, y]);
  }
  function take({ points, figures, said, rows }) {
    for (const [name, one] of Object.entries(points)) waiting[`training-${name}`] = merged(waiting[`training-${name}`], one);
    for (const [name, figure] of Object.entries(figures)) {
      delete waiting[`training-${name}`];
      latest[`training-${name}`] = { figure };
    }
    for (const { id, props } of said) set(id, props);
    latest["training-table"] = { rowData: rows };
    const spent = draw();
    set("training-look", { interval: Math.round(Math.min(LONGEST, Math.max(SHORTEST, spent / SHARE))) });
  }
  // All is drawn anew: what waited is in it.
  function forget() { waiting = {}; latest = {}; }
  document.addEventListener("scroll", () => page() && draw(), { passive: true, capture: true });
  document.addEventListener("visibilitychange", () => {
    if (!page()) return;
    set("training-look", { disabled: document.hidden });
    if (!document.hidden) draw();
  });
  return { take, forget };
})();
