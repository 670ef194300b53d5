// Figures by keyboard: with one focused, arrows go from point to point or from bar to bar, Enter chooses as a click does.
(function () {
  const places = new WeakMap();
  function points(figure) {
    const found = [];
    (figure._fullData || []).forEach((trace, curveNumber) => {
      if (trace.visible !== true || trace.hoverinfo === "skip" || !["bar", "scatter"].includes(trace.type)) return;
      const count = Math.min((trace._length ?? (trace.x || []).length) || 0, 5000);
      for (let pointNumber = 0; pointNumber < count; pointNumber++) {
        if (trace.x[pointNumber] !== null && trace.x[pointNumber] !== undefined) found.push({ curveNumber, pointNumber });
      }
    });
    return found;
  }
  document.addEventListener("keydown", (event) => {
    const holder = document.activeElement;
    if (!holder || !holder.classList.contains("figure") || holder.closest("#timeline-frame")) return;
    if (!["ArrowLeft", "ArrowRight", "Enter", "Escape"].includes(event.key)) return;
    const figure = holder.querySelector(".js-plotly-plot");
    if (!figure || !figure._fullLayout) return;
    const all = points(figure), at = places.get(figure);
    if (event.key === "Escape") { window.Plotly.Fx.unhover(figure); return; }
    if (!all.length) return;
    event.preventDefault();
    if (event.key === "Enter") {
      const one = all[at ?? 0], trace = figure.data[one.curveNumber], custom = trace.customdata;
      const point = { ...one, customdata: custom && (custom[one.pointNumber] ?? custom), x: trace.x[one.pointNumber], y: trace.y && trace.y[one.pointNumber] };
      window.dash_clientside.set_props(holder.querySelector(".dash-graph").id, { clickData: { points: [point] } });
      return;
    }
    const next = at === undefined ? 0 : (at + (event.key === "ArrowRight" ? 1 : -1) + all.length) % all.length;
    places.set(figure, next);
    window.Plotly.Fx.hover(figure, [all[next]]);
  });
})();
