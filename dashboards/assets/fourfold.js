// The few things that happen in the browser alone.
let settled = false, place = "";
// An address without the window of the timeline.
function placeOf(text) {
  const query = new URLSearchParams(text);
  query.delete("window");
  return window.location.pathname + "?" + query.toString();
}
// Tells when the timeline's picture is seen: true, or false if the page has none, or it is left.
function pictured() {
  return new Promise((done) => {
    const look = () => {
      if (!document.getElementById("timeline-frame")) done(false);
      else if (document.querySelector("#timeline .xtick")) window.requestAnimationFrame(() => window.setTimeout(() => done(true)));
      else window.setTimeout(look, 20);
    };
    look();
  });
}
// What comes when the picture is seen (`later.py`): fields cost a browser as much as the picture. Their room is kept.
window.fourfold = {
  Later({ width, height, children }) {
    const React = window.React, [come, setCome] = React.useState(false);
    React.useEffect(() => {
      let here = true;
      pictured().then(() => here && setCome(true));
      return () => { here = false; };
    }, []);
    return come ? children : React.createElement("div", { style: { width, height } });
  },
};
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
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.fourfold = {
  // Controls' values go into the address, so that it can be shared; empty ones are left out.
  keep(values, ids, known) {
    const query = new URLSearchParams(window.location.search);
    ids.forEach((id, i) => {
      const value = values[i];
      if (value === null || value === undefined || value === "" || value.length === 0) query.delete(id.key);
      else query.set(id.key, Array.isArray(value) ? value.join(",") : String(value));
    });
    const text = query.toString();
    const address = window.location.pathname + (text ? "?" + text : "");
    if (address !== window.location.pathname + window.location.search) {
      // another window of the timeline is a step that Back undoes; what a page says when it opens is none
      const before = new URLSearchParams(window.location.search).get("window");
      const how = settled && before !== query.get("window") ? "pushState" : "replaceState";
      window.history[how](window.history.state, "", address);
    }
    settled = ids.some((id) => id.key === "window");
    place = placeOf(window.location.search);
    const state = Object.fromEntries(ids.map((id, i) => [id.key, values[i]]));
    // the menu depends on what is chosen alone: a zoom has it asked for nothing
    const chosen = Object.fromEntries(["run", "other"].filter((key) => key in state).map((key) => [key, state[key]]));
    return [state, JSON.stringify(chosen) === JSON.stringify(known || {}) ? window.dash_clientside.no_update : chosen];
  },
  // Plotly is read while the server makes the first page. Until it is there its name stands for the promise of it,
  // which is what Dash waits for.
  prepare() {
    const named = document.querySelector("meta[name=plotly]");
    if (named && !window.Plotly) {
      window.Plotly = new Promise((done, wrong) => {
        const script = document.createElement("script");
        script.onload = done;
        script.onerror = wrong;
        script.src = named.content;
        document.body.appendChild(script);
      });
    }
    return window.dash_clientside.no_update;
  },
  // A lever's slider is in powers of 2, its number in times; the one that was moved sets the other.
  lever(octaves, times) {
    const same = window.dash_clientside.no_update, triggered = window.dash_clientside.callback_context.triggered[0];
    if (!triggered) return [same, same];
    if (triggered.prop_id.includes('"type":"times"')) {
      if (!(times > 0)) return [same, same];
      const found = Number(Math.log2(times).toFixed(6));
      return [Math.abs(found - octaves) < 1e-5 ? same : found, same];
    }
    const found = Number((2 ** (octaves || 0)).toPrecision(6));
    return [same, Math.abs(found - times) < 1e-4 * found ? same : found];
  },
  // The tab's title names page and run.
  title(text) {
    if (text) document.title = text;
    return window.dash_clientside.no_update;
  },
  // When the what-if page asked, by a clock that only goes forward.
  asked() {
    return window.performance.now();
  },
  // Note what moved the time axis; anything else that a figure reports is left out.
  moved() {
    const [told] = window.dash_clientside.callback_context.triggered, data = told && told.value;
    if (data && Object.keys(data).some((key) => key.startsWith("xaxis"))) {
      window.dash_clientside.set_props("timeline-moved", { data });
    }
  },
  // When the timeline's first picture is seen: what stands below it is asked for then.
  drawn() {
    return pictured().then((seen) => (seen ? 1 : window.dash_clientside.no_update));
  },
  // New points of trainings, and what stands beside the figures.
  grow(news) {
    if (news) growing[news.anew ? "forget" : "take"](news);
  },
  // Note the row of a table that was chosen; nothing of a table that is new.
  picked(rows) {
    if (rows && rows.length) window.dash_clientside.set_props("timeline-picked", { data: rows });
  },
  // The timeline as it is seen, as a file for a paper.
  svg(_clicks) {
    const figure = document.querySelector("#timeline-frame .js-plotly-plot");
    if (figure && figure._fullLayout) {
      const { width, height } = figure._fullLayout;
      window.Plotly.downloadImage(figure, { format: "svg", filename: "timeline", width, height });
    }
    return window.dash_clientside.no_update;
  },
  // A table's button saves it as CSV.
  download(_clicks) {
    const triggered = window.dash_clientside.callback_context.triggered[0];
    if (triggered && triggered.value) {
      const id = JSON.parse(triggered.prop_id.slice(0, triggered.prop_id.lastIndexOf(".")));
      window.dash_ag_grid.getApi(id.table).exportDataAsCsv();
    }
    return window.dash_clientside.no_update;
  },
};

// Back undoes a zoom: the figure moves to the window of the address, and nothing is loaded.
window.addEventListener("popstate", (event) => {
  const figure = document.querySelector("#timeline-frame .js-plotly-plot"), here = placeOf(window.location.search);
  if (!figure || place !== here) { place = here; return; }
  event.stopImmediatePropagation();
  const ends = (new URLSearchParams(window.location.search).get("window") || "").split("..").map(Number);
  if (ends.length === 2 && ends.every(Number.isFinite)) {
    window.Plotly.relayout(figure, { "xaxis.range[0]": ends[0], "xaxis.range[1]": ends[1] });
  } else document.getElementById("timeline-all").click();
}, true);

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
