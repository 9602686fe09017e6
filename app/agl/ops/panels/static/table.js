// Tables: of a panel's own, and the table of values that stands for any chart.

import { reduceAny } from "panels/calcs.js";
import { h, put } from "panels/dom.js";
import { configured, dataLinks, display, fieldsOf } from "panels/fields.js";
import { linked } from "panels/links.js";
import { faded, textOn, visible } from "panels/palette.js";
import { moment } from "panels/times.js";
import { compare, tableOf } from "panels/transforms.js";

const MOST = 500;

/** A panel of the type table. */
export function table(panel, data, body, context) {
  const { columns, rows, unknown } = tableOf(panel, data);
  for (const id of unknown) context.note(`the transformation ${id} is not known here and left out`);
  if (!rows.length) return context.empty();
  const fields = columnsOf(panel, columns, rows).filter(({ field }) => !field.custom.hidden && !field.custom.hideFrom?.viz);
  const saved = panel.options?.sortBy?.[0];
  const state = context.state(() => ({ by: saved?.displayName ?? null, desc: Boolean(saved?.desc) }));
  const place = h("div", { class: "table-place", tabindex: "0", role: "group", "aria-label": panel.title || "Table" });
  put(body, place);
  const draw = () => put(place, grid(fields, rows, state, draw, panel.options?.showHeader !== false, context));
  draw();
}

function columnsOf(panel, columns, rows) {
  const fields = columns.map((column, at) => ({ name: column.source ?? column.name, shown: column.name, kind: column.kind, refId: column.refId, labels: column.labels ?? {}, values: rows.map((row) => row[at]) }));
  const renamed = new Map(fields.map((field) => [field.name, field.shown]));
  configured(panel, fields);
  return fields.map((field, at) => {
    if (field.title === field.name && renamed.get(field.name) !== field.name) {
      // Overrides may name the column as it was or as it is called now.
      const again = configured(panel, [{ name: field.shown, kind: field.kind, refId: field.refId, labels: field.labels, values: field.values }])[0];
      if (Object.keys(again.config).length >= Object.keys(field.config).length) return { at, field: again };
      field.title = field.shown;
    }
    return { at, field };
  });
}

function grid(fields, rows, state, changed, header, context) {
  const sorted = state.by === null ? rows : ordered(fields, rows, state);
  if (sorted.length > MOST) context.note(`${rows.length} rows; the first ${MOST} are shown`);
  const head = h("thead", {}, h("tr", {}, fields.map(({ field }) => heading(field, state, changed))));
  const body = h("tbody", {}, sorted.slice(0, MOST).map((row) => h("tr", {}, fields.map(({ at, field }) => cell(field, row[at], row, fields)))));
  return h("table", { class: "values" }, header ? head : null, body);
}

function ordered(fields, rows, { by, desc }) {
  const found = fields.find(({ field }) => field.title === by);
  if (!found) return rows;
  return [...rows].sort((a, b) => (desc ? -1 : 1) * compare(a[found.at], b[found.at]));
}

function heading(field, state, changed) {
  const active = state.by === field.title;
  const sort = active ? (state.desc ? "descending" : "ascending") : "none";
  const press = () => {
    Object.assign(state, active ? { desc: !state.desc } : { by: field.title, desc: false });
    changed();
  };
  return h("th", { scope: "col", "aria-sort": sort, class: field.kind === "number" ? "number" : null }, h("button", { type: "button", onclick: press }, field.title, active ? (state.desc ? " ↓" : " ↑") : ""));
}

function cell(field, value, row, fields) {
  const right = field.kind === "number" ? "number" : null;
  if (field.kind === "time" && !field.config.unit) return h("td", {}, typeof value === "number" ? moment(value / 1000) : "");
  const raw = field.kind === "string" && !field.config.mappings?.length ? { text: value ?? "", color: null } : display(field, value);
  const kind = field.custom.cellOptions?.type ?? field.custom.displayMode ?? "auto";
  const color = raw.color;
  const style = kind === "color-text" && color ? { color: visible(color, 4.5) } : kind.startsWith("color-background") && color ? { background: color, color: textOn(color) } : {};
  const withRow = { ...field, row: Object.fromEntries(fields.map(({ at, field: other }) => [other.name, row[at]])) };
  const shown = kind === "gauge" && typeof value === "number" ? barCell(field, value, raw) : h("span", {}, raw.text);
  return h("td", { class: right, style }, linked(shown, dataLinks(withRow, value)));
}

function barCell(field, value, { text, color }) {
  const known = field.values.filter(Number.isFinite);
  const [low, high] = [field.config.min ?? Math.min(0, ...known), field.config.max ?? Math.max(...known)];
  const share = high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0;
  return h("span", { class: "bar-cell" }, h("span", { class: "bar-track" }, h("span", { class: "bar", style: { width: `${share * 100}%`, background: faded(color, 0.8) } })), h("span", {}, text));
}

/** The values of any panel: what each series came down to in the range. */
export function summary(panel, data) {
  const fields = fieldsOf(panel, data);
  // A heatmap's unit is that of its buckets; what is in them are counts.
  if (panel.type === "heatmap") for (const field of fields) field.config.unit = "short";
  if (!fields.length) return h("p", { class: "quiet" }, "No data.");
  const calcs = fields.every((field) => field.instant) ? [["Value", "lastNotNull"]] : [["Min", "min"], ["Mean", "mean"], ["Max", "max"], ["Last", "lastNotNull"]];
  return h(
    "table",
    { class: "values" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Series"), calcs.map(([name]) => h("th", { scope: "col", class: "number" }, name)))),
    h("tbody", {}, fields.map((field) => h("tr", {}, h("th", { scope: "row" }, field.title || "value"), calcs.map(([, id]) => h("td", { class: "number" }, display(field, reduceAny(id, field.values)).text))))),
  );
}
