// The legend: names with their values, as a list or a table; each entry hides and shows its series.

import { calcName, reduceAny } from "panels/calcs.js";
import { h } from "panels/dom.js";
import { display } from "panels/fields.js";

/** A legend for fields; `state.hidden` holds the titles that are hidden, `changed` is called after. */
export function legend(options, fields, state, changed) {
  const { showLegend = true, displayMode = "list", placement = "bottom", calcs = [] } = options ?? {};
  const shown = fields.filter((field) => !field.custom.hideFrom?.legend);
  if (showLegend === false || displayMode === "hidden" || !shown.length) return null;
  const columns = calcs.length ? calcs : ["lastNotNull"];
  const place = placement === "right" ? "right" : "bottom";
  const table = displayMode === "table";
  const entries = shown.map((field) => entry(field, columns, fields, state, changed, table));
  if (table) {
    return h(
      "div",
      { class: `legend legend-table ${place}`, tabindex: "0", role: "group", "aria-label": "Legend" },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Series"), columns.map((id) => h("th", { scope: "col", class: "number" }, calcName(id))))), h("tbody", {}, entries)),
    );
  }
  return h("ul", { class: `legend legend-list ${place}`, "aria-label": "Legend" }, entries);
}

function entry(field, columns, fields, state, changed, table) {
  const hidden = state.hidden.has(field.title);
  const button = h(
    "button",
    {
      type: "button",
      class: "legend-name",
      "aria-pressed": String(!hidden),
      title: `${field.title}\nClick: show only this. Ctrl or Shift and click: hide or show it.`,
      onclick: (event) => {
        toggle(field.title, fields, state, event.ctrlKey || event.metaKey || event.shiftKey);
        changed();
      },
    },
    h("span", { class: "swatch line", style: { background: field.color } }),
    h("span", {}, field.title || "value"),
  );
  const values = columns.map((id) => display(field, reduceAny(id, field.values)).text);
  if (table) return h("tr", { class: hidden ? "off" : null }, h("th", { scope: "row" }, button), values.map((text) => h("td", { class: "number" }, text)));
  return h("li", { class: hidden ? "off" : null }, button, h("span", { class: "legend-value" }, columns.map((id, i) => (columns.length > 1 ? `${calcName(id)}: ${values[i]}` : values[i])).join("  ")));
}

/** As Grafana does: a click leaves only this one, or all when it is alone already. */
function toggle(title, fields, state, single) {
  const { hidden } = state;
  if (single) {
    if (!hidden.delete(title)) hidden.add(title);
    return;
  }
  const alone = !hidden.has(title) && fields.every((field) => field.title === title || hidden.has(field.title));
  hidden.clear();
  if (!alone) for (const field of fields) if (field.title !== title) hidden.add(field.title);
}
