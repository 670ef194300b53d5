// Keys move the timeline: arrows or A D pan, + - or W S zoom, Home shows all, Escape leaves it.
(function () {
  const PAN = 0.25, ZOOM = 0.6;
  function moved(key, low, high) {
    const width = high - low, middle = (low + high) / 2;
    switch (key) {
      case "ArrowLeft": case "a": return [low - PAN * width, high - PAN * width];
      case "ArrowRight": case "d": return [low + PAN * width, high + PAN * width];
      case "+": case "=": case "w": return [middle - (width * ZOOM) / 2, middle + (width * ZOOM) / 2];
      case "-": case "s": return [middle - width / ZOOM / 2, middle + width / ZOOM / 2];
      default: return null;
    }
  }
  document.addEventListener("keydown", (event) => {
    const frame = document.getElementById("timeline-frame");
    if (!frame || !frame.contains(document.activeElement) || event.ctrlKey || event.metaKey || event.altKey) return;
    const figure = frame.querySelector(".js-plotly-plot");
    if (!figure || !figure._fullLayout) return;
    if (event.key === "Escape") { document.querySelectorAll(".measured").forEach((one) => one.remove()); document.activeElement.blur(); return; }
    if (event.key === "Home") { document.getElementById("timeline-all").click(); event.preventDefault(); return; }
    if (event.key === "n" || event.key === "p") { event.preventDefault(); choose(figure, event.key === "n" ? 1 : -1); return; }
    if (moved(event.key, 0, 1)) {
      event.preventDefault();
      zoom(figure, moved(event.key, ...(wanted || span(figure).range.map(Number))), 0);
    }
  });
  // N and P go from op to op of the window, in the order of time, and choose them as a click does.
  function choose(figure, way) {
    const [low, high] = figure.layout.xaxis.range, ops = [];
    (figure.data || []).forEach((trace, curveNumber) => {
      if (trace.type !== "bar" || !trace.customdata || !trace.base) return;
      Array.from(trace.customdata).forEach((key, pointNumber) => {
        const start = trace.base[pointNumber];
        if (start >= low && start <= high) ops.push({ key, start, lane: trace.y[pointNumber], curveNumber, pointNumber });
      });
    });
    if (!ops.length) return;
    ops.sort((a, b) => a.start - b.start || a.lane - b.lane);
    const now = ops.findIndex((op) => op.key === figure.dataset.op);
    const next = ops[now < 0 ? (way > 0 ? 0 : ops.length - 1) : (now + way + ops.length) % ops.length];
    figure.dataset.op = next.key;
    window.dash_clientside.set_props("timeline", { clickData: { points: [{ customdata: next.key, curveNumber: next.curveNumber, pointNumber: next.pointNumber }] } });
  }
  // Keys and the wheel zoom at once: the picture that is there is stretched, clipped to its axes, and the server is
  // asked without waiting for Plotly to draw the old one again; what it answers takes the place of the stretched one.
  const WHEEL = 0.0015, REST_MILLISECONDS = 120;
  let wanted = null, timer = 0;
  const watched = new WeakSet(), span = (figure) => figure._fullLayout.xaxis;
  const stretched = (figure) => figure.querySelectorAll(".imagelayer, .barlayer, .shapelayer");
  const layers = (figure) => figure.querySelectorAll(".layer-below, .layer-subplot, .layer-between, .layer-above");
  function stretch(figure) {
    const axis = span(figure), [a, b] = axis.range.map(Number), [low, high] = wanted, scale = (b - a) / (high - low);
    const left = axis._offset + ((a - low) / (high - low)) * axis._length - axis._offset * scale;
    for (const layer of layers(figure)) layer.setAttribute("clip-path", `url(#clip${figure._fullLayout._uid}xy)`);
    for (const part of stretched(figure)) {
      part.setAttribute("transform", part.classList.contains("barlayer") ? `translate(${left - axis._offset * (1 - scale)},0) scale(${scale},1)` : `translate(${left},0) scale(${scale},1)`);
    }
  }
  // Drawn anew, for whatever reason: only a wheel that still turns goes on stretching.
  function drawn(figure) {
    if (timer) { stretch(figure); return; }
    for (const part of stretched(figure)) part.removeAttribute("transform");
    for (const layer of layers(figure)) layer.removeAttribute("clip-path");
    wanted = null;
  }
  function zoom(figure, range, rest) {
    if (!watched.has(figure)) { watched.add(figure); figure.on("plotly_afterplot", () => drawn(figure)); }
    wanted = range;
    stretch(figure);
    window.clearTimeout(timer);
    timer = 0;
    const ask = () => {
      timer = 0;
      window.dash_clientside.set_props("timeline-moved", { data: { "xaxis.range[0]": range[0], "xaxis.range[1]": range[1] } });
    };
    if (rest) timer = window.setTimeout(ask, rest);
    else ask();
  }
  document.addEventListener("wheel", (event) => {
    const frame = document.getElementById("timeline-frame");
    if (!frame || !frame.contains(event.target) || event.shiftKey) return;
    const figure = frame.querySelector(".js-plotly-plot");
    if (!figure || !figure._fullLayout) return;
    const axis = span(figure), x = event.clientX - figure.getBoundingClientRect().left - axis._offset;
    if (x < 0 || x > axis._length) return;
    event.preventDefault();
    const [low, high] = wanted || axis.range.map(Number), at = low + (x / axis._length) * (high - low);
    const factor = Math.exp(Math.max(-300, Math.min(300, event.deltaY)) * WHEEL);
    zoom(figure, [at - (at - low) * factor, at + (high - at) * factor], REST_MILLISECONDS);
  }, { passive: false });
  // Shift and a drag measure the time between two points; the band stays until the next drag or Escape.
  let band = null, from = null;
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const written = (t) => { const [f, u] = units.find(([f]) => t >= f) || units[3]; return `${Number((t / f).toPrecision(4))} ${u}`; };
  document.addEventListener("mousedown", (event) => {
    if (band) { band.remove(); band = null; }
    const frame = document.getElementById("timeline-frame");
    if (!event.shiftKey || !frame || !frame.contains(event.target)) return;
    const figure = frame.querySelector(".js-plotly-plot");
    if (!figure || !figure._fullLayout) return;
    event.preventDefault();
    event.stopPropagation();
    const box = figure.getBoundingClientRect(), axis = span(figure);
    from = { figure, box, axis, x: event.clientX - box.left };
    band = document.createElement("div");
    band.className = "measured";
    figure.style.position = "relative";
    figure.appendChild(band);
  }, true);
  document.addEventListener("mousemove", (event) => {
    if (!from || !band) return;
    const x = event.clientX - from.box.left, left = Math.min(x, from.x), width = Math.abs(x - from.x);
    const [low, high] = from.axis.range.map(Number);
    band.style.left = `${left}px`;
    band.style.width = `${width}px`;
    band.textContent = written((width / from.axis._length) * (high - low));
  });
  document.addEventListener("mouseup", () => { from = null; });
})();

// A click on a lane's name folds its rank into one lane, or unfolds it: the field with those ranks says which.
document.addEventListener("click", (event) => {
  const name = event.target.closest && event.target.closest("#timeline .ytick"), field = document.querySelector("input[id*='\"turned\"']");
  const rank = name && field && (/^rank (\d+)\b/.exec(name.textContent) || [])[1];
  if (!rank) return;
  const now = field.value.split(",").map((one) => one.trim()).filter(Boolean);
  const value = (now.includes(rank) ? now.filter((one) => one !== rank) : [...now, rank]).join(",");
  window.dash_clientside.set_props({ type: "state", key: "turned" }, { value });
});

// What the pointer shows of a place of the timeline's picture: shares travel as numbers, and are words when it comes.
(function () {
  const SOME = 0.05;
  function worded(trace) {
    const { lanes, kinds, width } = trace.meta;
    const said = (place, lane, column) => {
      const parts = kinds.map((kind, i) => [kind, place[i]]).filter(([, share]) => share > SOME);
      const busy = parts.length ? parts.map(([kind, share]) => `${kind} ${Number(share.toPrecision(3))} %`) : ["nothing"];
      return [lane, ...busy, `around ${Number((trace.x0 + column * trace.dx).toPrecision(6))} s, ${width}`].join("<br>");
    };
    return lanes.map((lane, n) => Array.from(trace.customdata[n], (place, column) => said(place, lane, column)));
  }
  document.addEventListener("pointermove", (event) => {
    const figure = event.target.closest && event.target.closest(".js-plotly-plot");
    for (const [one] of (figure && figure.calcdata) || []) {
      if (one && !one.text && one.trace && one.trace.type === "heatmap" && (one.trace.meta || {}).kinds) one.text = worded(one.trace);
    }
  }, true);
})();
