// The few things that happen in the browser alone.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.fourfold = {
  // Controls' values go into the address, so that it can be shared; empty ones are left out.
  keep(values, ids) {
    const query = new URLSearchParams(window.location.search);
    ids.forEach((id, i) => {
      const value = values[i];
      if (value === null || value === undefined || value === "" || value.length === 0) query.delete(id.key);
      else query.set(id.key, Array.isArray(value) ? value.join(",") : String(value));
    });
    const text = query.toString();
    const address = window.location.pathname + (text ? "?" + text : "");
    if (address !== window.location.pathname + window.location.search) {
      window.history.replaceState(window.history.state, "", address);
    }
    return Object.fromEntries(ids.map((id, i) => [id.key, values[i]]));
  },
  // When the what-if page asked, by a clock that only goes forward.
  asked() {
    return window.performance.now();
  },
  // What moved the time axis; anything else that a figure reports is left out.
  moved(data) {
    const about = Object.keys(data || {}).some((key) => key.startsWith("xaxis"));
    return about ? data : window.dash_clientside.no_update;
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

// Keys move the timeline: arrows or A D pan, + - or W S zoom, Home shows all, Escape leaves it.
(function () {
  const PAN = 0.25, ZOOM = 0.6, AGAIN_MILLISECONDS = 30;
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
    if (!figure || !figure.layout) return;
    if (event.key === "Escape") { document.activeElement.blur(); return; }
    if (event.key === "Home") { document.getElementById("timeline-all").click(); event.preventDefault(); return; }
    if (moved(event.key, 0, 1)) {
      event.preventDefault();
      move(figure, event.key);
    }
  });
  // Dash hears of what moves a figure only when it has drawn it: a key pressed before would move the
  // axis, and the words, the ops and the address would stay behind.
  function move(figure, key) {
    if (figure.classList.contains("dash-graph--pending")) {
      if (figure.isConnected) window.setTimeout(() => move(figure, key), AGAIN_MILLISECONDS);
      return;
    }
    const range = moved(key, ...figure.layout.xaxis.range);
    window.Plotly.relayout(figure, { "xaxis.range[0]": range[0], "xaxis.range[1]": range[1] });
  }
})();
