// The pipeline as its papers draw it: a lane a stage, a box a pass, in it the number of its micro-batch.
const pipes = pipeline.lanes, pipeline_graph = document.getElementById("pipeline");
const PIPE = Math.max(14, Math.min(30, 900 / pipes.length));
function tell(lane, i) {
  const long = lane.end[i] - lane.start[i];
  return `<b>${kindOf(lane, i)}, micro-batch ${lane.micro[i]}</b><br>${lane.name}<br>${long.toFixed(3)} ms from ${lane.start[i].toFixed(3)} ms, ${lane.computing[i].toFixed(3)} ms of it computing`;
}
function said(found, from, to) {
  const all = pipeline.micro_batches.toLocaleString(), several = pipeline.micro_batches > 1 ? "micro-batches" : "micro-batch";
  if (found.merged) return `${found.merged.toLocaleString()} passes of ${all} ${several} are too many for this zoom: each column of a crowded lane is as thick as it is busy, and its colours share that thickness by time; their order within a column says nothing.`;
  const seen = new Set(found.out.map(b => b.lane.micro[b.i]));
  return `${found.out.length.toLocaleString()} passes of ${seen.size.toLocaleString()} of ${all} ${several}, each by itself; a number is its micro-batch's and vanishes where it has no room.`;
}
function pipe(from, to) {
  const found = bars(pipes, from, to, Math.max(400, pipeline_graph.clientWidth - 160)), traces = {};
  for (const b of found.out) {
    const t = traces[b.kind] ||= {type: "bar", orientation: "h", name: b.kind, base: [], x: [], y: [], width: [], text: [], hovertext: [], hovertemplate: "%{hovertext}<extra></extra>",
      marker: {color: pipeline.colours[b.kind], line: {width: 1, color: colour("page")}}, textposition: "inside", insidetextanchor: "middle", textangle: 0, showlegend: false};
    const alone = b.i !== undefined;
    const side = alone && b.lane.side ? b.lane.side[b.i] : 0;  // of two at once one is drawn above the other
    t.base.push(b.start); t.x.push(b.end - b.start); t.y.push(b.row + [0, -.215, .215][side] + .86 * b.shift);
    t.width.push(side ? .43 : Math.max(.04, .86 * b.share));
    t.text.push(alone ? String(b.lane.micro[b.i]) : "");
    t.hovertext.push(alone ? tell(b.lane, b.i) : `<b>${b.count} passes, ${b.kind}</b><br>${(100 * b.busy).toFixed(0)} % of ${(b.end - b.start).toFixed(3)} ms; zoom in to tell them apart`);
    if (!alone) t.marker.line.width = 0;
  }
  document.getElementById("pipeline-note").textContent = said(found, from, to);
  const layout = {
    ...LOOK, barmode: "overlay", height: 90 + PIPE * pipes.length, margin: {l: 10, r: 20, t: 16, b: 45}, dragmode: "zoom",
    uniformtext: {minsize: 8, mode: "hide"},
    xaxis: {...AXIS, showgrid: false, title: {text: "time since the step began (ms)"}, range: [from, to], zeroline: false, separatethousands: true, tickformat: ",~r"},
    yaxis: {...AXIS, showgrid: false, tickvals: pipes.map((_, i) => i), ticktext: pipes.map(l => l.name), range: [pipes.length - .5, -.5], fixedrange: true, automargin: true, zeroline: false},
    uirevision: "keep"};
  return Plotly.react(pipeline_graph, Object.values(traces), layout, CONFIG);
}
let piping = false;
function pass(from, to) { piping = true; return pipe(from, to).then(() => { piping = false; }); }
pass(0, pipeline.step).then(() => pipeline_graph.on("plotly_relayout", change => {
  if (piping) return;
  if (change["xaxis.autorange"]) pass(0, pipeline.step);
  else if ("xaxis.range[0]" in change) pass(Math.max(0, change["xaxis.range[0]"]), Math.min(pipeline.step * 1.02, change["xaxis.range[1]"]));
}));
window.addEventListener("resize", () => { const [a, b] = pipeline_graph.layout.xaxis.range; pass(a, b); });
document.getElementById("pipeline-whole").onclick = () => pass(0, pipeline.step);
for (const {words, colours: shades} of pipeline.legend) {
  const item = document.createElement("span");
  for (const shade of shades) {
    const swatch = document.createElement("i");
    swatch.style.background = shade;
    item.append(swatch);
  }
  item.append(words + (shades.length > 1 ? `, chunks 0 to ${shades.length - 1}` : ""));
  document.getElementById("pipeline-legend").append(item);
}
