// In a narrow window the legend lies above the figure, and long names of bars take two lines: beside them nothing is left for bars.
const tight = innerWidth < 800;
function inTwoLines(name) {
  const dots = [...name.matchAll(/\./g)].map(m => m.index), middle = name.length / 2;
  if (name.length < 24 || !dots.length) return name;
  const at = dots.reduce((a, b) => Math.abs(a - middle) <= Math.abs(b - middle) ? a : b) + 1;
  return name.slice(0, at) + "<br>" + name.slice(at);
}
JSON.parse(document.getElementById("data").textContent).forEach((picture, i) => {
  const legend = tight ? {orientation: "h", y: 1.02, yanchor: "bottom"} : {orientation: "v"};
  const common = {...LOOK, height: 430, margin: {l: 70, r: 20, t: 20, b: 60}, legend};
  const layout = Object.assign(common, picture.layout);
  for (const axis of ["xaxis", "yaxis"]) layout[axis] = Object.assign({...AXIS}, layout[axis]);
  const lying = picture.data.filter(trace => trace.orientation === "h");
  if (tight && lying.length) {
    const names = [...new Set(lying.flatMap(trace => trace.y))];
    Object.assign(layout.yaxis, {tickmode: "array", tickvals: names, ticktext: names.map(inTwoLines), tickfont: {size: 9}});
  }
  Plotly.newPlot("plot" + i, picture.data, layout, {displayModeBar: false, responsive: true});
});
