// Reducers: what a series comes down to in a legend, a stat or a table.

const finite = (values) => values.filter((value) => value !== null && value !== undefined);
const sum = (values) => values.reduce((total, value) => total + value, 0);

function deltaOf(values) {
  let total = 0;
  for (let i = 1; i < values.length; i++) total += values[i] >= values[i - 1] ? values[i] - values[i - 1] : values[i];
  return total;
}

const CALCS = {
  lastNotNull: ["Last", (v) => v[v.length - 1]],
  last: ["Last", (v, all) => all[all.length - 1] ?? null],
  firstNotNull: ["First", (v) => v[0]],
  first: ["First", (v, all) => all[0] ?? null],
  min: ["Min", (v) => v.reduce((a, b) => Math.min(a, b))],
  max: ["Max", (v) => v.reduce((a, b) => Math.max(a, b))],
  mean: ["Mean", (v) => sum(v) / v.length],
  median: ["Median", (v) => [...v].sort((a, b) => a - b)[Math.floor((v.length - 1) / 2)]],
  sum: ["Total", (v) => sum(v)],
  count: ["Count", (v) => v.length],
  range: ["Range", (v) => v.reduce((a, b) => Math.max(a, b)) - v.reduce((a, b) => Math.min(a, b))],
  delta: ["Delta", (v) => deltaOf(v)],
  diff: ["Difference", (v) => v[v.length - 1] - v[0]],
  diffperc: ["Difference percent", (v) => (v[v.length - 1] - v[0]) / v[0]],
  variance: ["Variance", (v) => sum(v.map((x) => (x - sum(v) / v.length) ** 2)) / v.length],
  stdDev: ["StdDev", (v) => Math.sqrt(sum(v.map((x) => (x - sum(v) / v.length) ** 2)) / v.length)],
  changeCount: ["Change count", (v) => v.slice(1).filter((x, i) => x !== v[i]).length],
  distinctCount: ["Distinct count", (v) => new Set(v).size],
  allIsNull: ["All null", (v) => Number(v.length === 0)],
  allIsZero: ["All zero", (v) => Number(v.every((x) => x === 0))],
};
const OLD = { current: "lastNotNull", avg: "mean", total: "sum" };

/** The name of a reducer for people. */
export function calcName(id) {
  return (CALCS[OLD[id] ?? id] ?? CALCS.lastNotNull)[0];
}

/** What values come down to; null when there are none. Unknown reducers take the last value. */
export function reduce(id, values) {
  const known = finite(values);
  const name = OLD[id] ?? id;
  if (!known.length) return name === "count" ? 0 : name === "allIsNull" ? 1 : null;
  return (CALCS[name] ?? CALCS.lastNotNull)[1](known, values);
}

/** Percentiles are written p95. */
export function reduceAny(id, values) {
  const percentile = /^p(\d{1,2})$/.exec(id);
  if (!percentile) return reduce(id, values);
  const sorted = finite(values).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.ceil((Number(percentile[1]) / 100) * sorted.length) - 1)] : null;
}
