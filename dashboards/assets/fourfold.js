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
  // A lever's slider is in powers of 2, its number in times; the one that was moved sets the other. An empty number is
  // as it was, and stays empty: who types another begins so.
  lever(octaves, times) {
    const same = window.dash_clientside.no_update, triggered = window.dash_clientside.callback_context.triggered[0];
    if (!triggered) return [same, same];
    if (triggered.prop_id.includes('"type":"times"')) {
      if (times === "" || times === null || times === undefined) return [octaves ? 0 : same, same];
      if (!(times > 0)) return [same, same];
      const found = Number(Math.log2(times).toFixed(6));
      return [Math.abs(found - octaves) < 1e-4 ? same : found, same];
    }
    if (!octaves && times === "") return [same, same];
    const found = Number((2 ** (octaves || 0)).toPrecision(6));
    return [same, Math.abs(found - times) < 1e-4 * found ? same : found];
  },
  // A lever of whole powers of 2: its box offers them.
  powers(octaves, chosen) {
    const same = window.dash_clientside.no_update, triggered = window.dash_clientside.callback_context.triggered[0];
    if (!triggered || Number(chosen) === 2 ** octaves) return [same, same];
    return triggered.prop_id.includes('"type":"times"') ? [Math.log2(chosen), same] : [same, String(2 ** octaves)];
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

// A table behind a tab had no width when its columns were fitted: they are again when it is seen first.
function fit(grid, tries) {
  if (!document.contains(grid)) return;
  if (grid.offsetWidth === 0 || !grid.querySelector(".ag-row")) {
    if (tries > 0) window.setTimeout(fit, 50, grid, tries - 1);
    return;
  }
  grid.dataset.fitted = "yes";
  window.dash_ag_grid.getApi(grid.id).autoSizeAllColumns({ scaleUpToFitGridWidth: true });
}
for (const kind of ["click", "keyup"]) {
  document.addEventListener(kind, (event) => {
    const tab = event.target instanceof Element && event.target.closest("[role=tab]");
    const panel = tab && document.getElementById(tab.getAttribute("aria-controls"));
    if (panel) panel.querySelectorAll(".grid:not([data-fitted])").forEach((grid) => fit(grid, 40));
  });
}

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
