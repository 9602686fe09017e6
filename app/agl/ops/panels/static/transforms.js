// Tables: rows and columns out of series, and the transformations that dashboards apply to them.

import { calcName, reduceAny } from "panels/calcs.js";
import { regexp } from "panels/fields.js";

/** A table {columns: [{name, kind, labels, refId}], rows: [[...]]} for each query. */
function tablesOf(data) {
  return (data.results ?? []).filter((result) => (result.series ?? []).length).map((result) => (result.format === "table" || result.instant ? wide(result) : long(result)));
}

/** As Grafana's format "table": a column for each label, and the value. */
function wide(result) {
  const labels = [...new Set(result.series.flatMap((series) => Object.keys(series.labels)))].sort();
  const rows = result.series.flatMap((series) => series.values.flatMap((value, i) => (value === null ? [] : [[(result.start + i * (result.step ?? 0)) * 1000, ...labels.map((name) => series.labels[name] ?? ""), numeric(value)]])));
  const columns = [{ name: "Time", kind: "time" }, ...labels.map((name) => ({ name, kind: "string" })), { name: "Value", kind: "number", refId: result.refId }];
  return { refId: result.refId, columns, rows };
}

/** Series over time: a column for each. */
function long(result) {
  const columns = [{ name: "Time", kind: "time" }, ...result.series.map((series) => ({ name: series.name, kind: "number", labels: series.labels, refId: result.refId }))];
  const length = Math.max(...result.series.map((series) => series.values.length));
  const rows = Array.from({ length }, (_, i) => [(result.start + i * result.step) * 1000, ...result.series.map((series) => numeric(series.values[i] ?? null))]);
  return { refId: result.refId, columns, rows: rows.filter((row) => row.slice(1).some((value) => value !== null)).reverse() };
}

const numeric = (value) => (value === "+Inf" ? Infinity : value === "-Inf" ? -Infinity : value);

/** The table of a panel, and the names of transformations that are not known here. */
export function tableOf(panel, data) {
  let tables = tablesOf(data);
  if (tables.length > 1) tables = tables.map((table) => ({ ...table, columns: table.columns.map((column) => (column.name === "Value" ? { ...column, name: `Value #${table.refId}` } : column)) }));
  const unknown = [];
  for (const { id, options = {}, disabled } of panel.transformations ?? []) {
    if (disabled) continue;
    if (!Object.hasOwn(STEPS, id)) unknown.push(String(id));
    else tables = STEPS[id](tables, options ?? {});
  }
  const table = tables.length > 1 ? merge(tables)[0] : (tables[0] ?? { columns: [], rows: [] });
  return { ...table, unknown };
}

const indexOf = (table, name) => table.columns.findIndex((column) => column.name === name);

/** Rows whose labels agree become one. */
function merge(tables) {
  const names = [...new Set(tables.flatMap((table) => table.columns.map((column) => column.name)))];
  const values = new Set(tables.flatMap((table) => table.columns.filter((column) => column.kind === "number").map((column) => column.name)));
  const columns = names.map((name) => tables.flatMap((table) => table.columns).find((column) => column.name === name));
  const keys = names.filter((name) => !values.has(name));
  const found = new Map();
  for (const table of tables) {
    for (const row of table.rows) {
      const cells = Object.fromEntries(table.columns.map((column, i) => [column.name, row[i]]));
      const key = JSON.stringify(keys.map((name) => cells[name] ?? ""));
      const known = found.get(key) ?? {};
      found.set(key, { ...known, ...cells });
    }
  }
  return [{ columns, rows: [...found.values()].map((cells) => names.map((name) => cells[name] ?? null)) }];
}

function joinBy(tables, { byField = "Time", mode = "outer" }) {
  const usable = tables.filter((table) => indexOf(table, byField) >= 0);
  if (!usable.length) return tables;
  const keyColumn = usable[0].columns[indexOf(usable[0], byField)];
  const others = usable.map((table) => table.columns.map((column, i) => ({ column, i })).filter(({ column }) => column.name !== byField));
  const found = new Map();
  usable.forEach((table, t) => {
    const at = indexOf(table, byField);
    for (const row of table.rows) {
      const key = String(row[at]);
      if (!found.has(key)) found.set(key, { key: row[at], parts: usable.map(() => null) });
      found.get(key).parts[t] ??= row;
    }
  });
  const kept = [...found.values()].filter(({ parts }) => mode !== "inner" || parts.every(Boolean));
  return [{ columns: [keyColumn, ...others.flat().map(({ column }) => column)], rows: kept.map(({ key, parts }) => [key, ...others.flatMap((list, t) => list.map(({ i }) => parts[t]?.[i] ?? null))]) }];
}

function organize(tables, { excludeByName = {}, indexByName = {}, renameByName = {}, includeByName = {} }) {
  const included = Object.keys(includeByName).filter((name) => includeByName[name]);
  return tables.map((table) => {
    const kept = table.columns.map((column, i) => ({ column, i })).filter(({ column }) => !excludeByName[column.name] && (!included.length || included.includes(column.name)));
    kept.sort((a, b) => (indexByName[a.column.name] ?? 1e6 + a.i) - (indexByName[b.column.name] ?? 1e6 + b.i));
    return picked(table, kept.map(({ i }) => i), (name) => renameByName[name] || name);
  });
}

function picked(table, indexes, rename = (name) => name) {
  return {
    ...table,
    columns: indexes.map((i) => ({ ...table.columns[i], source: table.columns[i].source ?? table.columns[i].name, name: rename(table.columns[i].name) })),
    rows: table.rows.map((row) => indexes.map((i) => row[i])),
  };
}

function filterByName(tables, { include, exclude }) {
  const rule = (part) => {
    const pattern = part?.pattern ? regexp(part.pattern) : null;
    const names = part?.names ?? [];
    return part && (pattern || names.length) ? (name) => names.includes(name) || Boolean(pattern?.test(name)) : null;
  };
  const [wanted, unwanted] = [rule(include), rule(exclude)];
  return tables.map((table) => picked(table, table.columns.flatMap(({ name }, i) => ((!wanted || wanted(name)) && !unwanted?.(name) ? [i] : []))));
}

function sortBy(tables, { sort = [] }) {
  return tables.map((table) => {
    const rules = sort.map(({ field, desc }) => [indexOf(table, field), desc ? -1 : 1]).filter(([at]) => at >= 0);
    return { ...table, rows: [...table.rows].sort((a, b) => rules.map(([at, way]) => way * compare(a[at], b[at])).find(Boolean) ?? 0) };
  });
}

/** Numbers by size, texts by letter and number, nothing at the end. */
export function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function reduceTables(tables, { reducers = ["lastNotNull"], includeTimeField = false }) {
  const rows = tables.flatMap((table) => table.columns.flatMap((column, i) => (column.kind === "number" || (includeTimeField && column.kind === "time") ? [[column.name, ...reducers.map((id) => reduceAny(id, [...table.rows].reverse().map((row) => row[i])))]] : [])));
  return [{ columns: [{ name: "Field", kind: "string" }, ...reducers.map((id) => ({ name: calcName(id), kind: "number" }))], rows }];
}

function groupBy(tables, { fields = {} }) {
  return tables.map((table) => {
    const keys = table.columns.flatMap((column, i) => (fields[column.name]?.operation === "groupby" ? [i] : []));
    const calcs = table.columns.flatMap((column, i) => (fields[column.name]?.operation === "aggregate" ? (fields[column.name].aggregations ?? []).map((id) => ({ i, id, column })) : []));
    const groups = new Map();
    for (const row of table.rows) {
      const key = JSON.stringify(keys.map((i) => row[i]));
      groups.set(key, [...(groups.get(key) ?? []), row]);
    }
    return {
      ...table,
      columns: [...keys.map((i) => table.columns[i]), ...calcs.map(({ id, column }) => ({ ...column, name: `${column.name} (${calcName(id).toLowerCase()})` }))],
      rows: [...groups.values()].map((rows) => [...keys.map((i) => rows[0][i]), ...calcs.map(({ i, id }) => reduceAny(id, rows.map((row) => row[i])))]),
    };
  });
}

function labelsToFields(tables, { mode = "columns", keepLabels, valueLabel }) {
  if (mode === "rows") return tables;
  return tables.map((table) => {
    const numbers = table.columns.map((column, i) => ({ column, i })).filter(({ column }) => column.labels);
    if (!numbers.length) return table;
    const labels = [...new Set(numbers.flatMap(({ column }) => Object.keys(column.labels)))].filter((name) => name !== "__name__" && name !== valueLabel && (!keepLabels || keepLabels.includes(name)));
    const rows = numbers.flatMap(({ column, i }) => table.rows.filter((row) => row[i] !== null).map((row) => [row[0], ...labels.map((name) => column.labels[name] ?? ""), row[i]]));
    return { ...table, columns: [table.columns[0], ...labels.map((name) => ({ name, kind: "string" })), { name: "Value", kind: "number" }], rows };
  });
}

function renameByRegex(tables, { regex, renamePattern = "" }) {
  const pattern = regexp(regex);
  if (!pattern) return tables;
  return tables.map((table) => ({ ...table, columns: table.columns.map((column) => ({ ...column, source: column.source ?? column.name, name: column.name.replace(pattern, renamePattern) })) }));
}

function calculate(tables, { mode = "reduceRow", reduce = {}, binary = {}, alias, replaceFields }) {
  return tables.map((table) => {
    const value = mode === "binary" ? binaryOf(table, binary) : reducedOf(table, reduce);
    if (!value) return table;
    const column = { name: alias || value.name, kind: "number" };
    const kept = replaceFields ? table.columns.flatMap((item, i) => (item.kind === "number" ? [] : [i])) : table.columns.map((_, i) => i);
    return { ...table, columns: [...kept.map((i) => table.columns[i]), column], rows: table.rows.map((row) => [...kept.map((i) => row[i]), value.of(row)]) };
  });
}

function binaryOf(table, { left, right, operator = "+" }) {
  const side = (given) => {
    const name = given?.matcher?.options ?? given?.fixed ?? given;
    const at = indexOf(table, name);
    return at >= 0 ? (row) => row[at] : Number.isFinite(Number(name)) ? () => Number(name) : null;
  };
  const [a, b] = [side(left), side(right)];
  const apply = { "+": (x, y) => x + y, "-": (x, y) => x - y, "*": (x, y) => x * y, "/": (x, y) => x / y }[operator];
  if (!a || !b || !apply) return null;
  return { name: `${left?.matcher?.options ?? left} ${operator} ${right?.matcher?.options ?? right}`, of: (row) => (a(row) === null || b(row) === null ? null : apply(a(row), b(row))) };
}

function reducedOf(table, { reducer = "sum", include }) {
  const used = table.columns.flatMap((column, i) => (column.kind === "number" && (!include?.length || include.includes(column.name)) ? [i] : []));
  return { name: calcName(reducer), of: (row) => reduceAny(reducer, used.map((i) => row[i])) };
}

function filterByValue(tables, { filters = [], type = "include", match = "any" }) {
  const tests = {
    greater: (v, o) => v > o.value, greaterOrEqual: (v, o) => v >= o.value, lower: (v, o) => v < o.value, lowerOrEqual: (v, o) => v <= o.value,
    equal: (v, o) => String(v) === String(o.value), notEqual: (v, o) => String(v) !== String(o.value),
    isNull: (v) => v === null, isNotNull: (v) => v !== null, regex: (v, o) => Boolean(regexp(o.value)?.test(String(v))), range: (v, o) => v >= o.from && v <= o.to,
  };
  return tables.map((table) => {
    const rules = filters.map(({ fieldName, config }) => [indexOf(table, fieldName), tests[config?.id], config?.options ?? {}]).filter(([at, test]) => at >= 0 && test);
    if (!rules.length) return table;
    const hit = (row) => (match === "all" ? rules.every(([at, test, o]) => test(row[at], o)) : rules.some(([at, test, o]) => test(row[at], o)));
    return { ...table, rows: table.rows.filter((row) => hit(row) === (type === "include")) };
  });
}

const STEPS = {
  merge,
  joinByField: joinBy,
  seriesToColumns: joinBy,
  organize,
  filterFieldsByName: filterByName,
  filterByRefId: (tables, { include }) => tables.filter((table) => (include ? (regexp(include)?.test(table.refId ?? "") ?? true) : true)),
  filterByValue,
  sortBy,
  reduce: reduceTables,
  groupBy,
  labelsToFields,
  renameByRegex,
  calculateField: calculate,
  limit: (tables, { limitField = 10 }) => tables.map((table) => ({ ...table, rows: table.rows.slice(0, limitField) })),
};
