JSON.parse(document.getElementById("data").textContent).forEach((picture, i) => {
  const common = {...LOOK, height: 430, margin: {l: 70, r: 20, t: 20, b: 60}, legend: {orientation: "v"}};
  const layout = Object.assign(common, picture.layout);
  for (const axis of ["xaxis", "yaxis"]) layout[axis] = Object.assign({...AXIS}, layout[axis]);
  Plotly.newPlot("plot" + i, picture.data, layout, {displayModeBar: false, responsive: true});
});
