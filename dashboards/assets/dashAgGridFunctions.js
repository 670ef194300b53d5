// How cells of tables are written; the same rules as `format_seconds` of the twin.
const dagfuncs = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
const minus = (text) => text.replace(/^-/, "−");
dagfuncs.seconds = (value) => {
  if (value === null || value === undefined || value === "") return "";
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  if (!Number.isFinite(value) || value === 0) return `${value} s`;
  const [factor, unit] = units.find(([one]) => Math.abs(value / one) >= 0.9995) || units[3];
  const scaled = value / factor;
  const text = Math.abs(scaled) >= 999.5 ? Math.round(scaled).toLocaleString("en") : String(Number(scaled.toPrecision(3)));
  return minus(`${text} ${unit}`);
};
dagfuncs.number = (value) => {
  if (value === null || value === undefined || value === "") return "";
  if (!Number.isFinite(value) || value === 0) return String(value);
  if (Math.abs(value) >= 1000) return minus(Math.round(value).toLocaleString("en"));
  if (Math.abs(value) >= 0.001) return minus(String(Number(value.toPrecision(4))));
  const [digits, power] = value.toExponential(2).split("e");
  return minus(`${Number(digits)}`) + `·10${[...String(Number(power))].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || "⁻").join("")}`;
};
// A figure whose unit stands behind its name, such as "memory of a rank (B)": in a cell with the prefix that suits it.
const UNIT = / ?\((s|B|B\/s|J)\)$/;
dagfuncs.unitless = (name) => String(name).replace(UNIT, "");
dagfuncs.quantity = (value, name) => {
  const unit = (UNIT.exec(name) || [])[1];
  if (!unit || value === null || value === undefined || !Number.isFinite(value)) return dagfuncs.number(value);
  if (unit === "s") return dagfuncs.seconds(value);
  const prefixes = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const [factor, prefix] = prefixes.find(([one]) => Math.abs(value) >= 0.9995 * one) || prefixes[5];
  return minus(`${Number((value / factor).toPrecision(3))} ${prefix}${unit}`);
};
dagfuncs.moment = (value) =>
  value ? new Date(value).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "";
// The unit stands in the cells; a file has plain numbers, and the unit in its heading.
dagfuncs.heading = (params) => {
  const name = params.colDef.headerName || "";
  return params.location === "csv" ? name : dagfuncs.unitless(name);
};
