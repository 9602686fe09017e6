// A report: the alerts that fired, the boards as they were, and a table of all values.

import { showBoard } from "panels/board.js";
import { h, put } from "panels/dom.js";
import { Recorded } from "panels/source.js";
import { summary } from "panels/table.js";
import { labelText, links, severityClass } from "panels/texts.js";
import { moment, setZone, zoneName } from "panels/times.js";
import { themeButton } from "panels/toolbar.js";
import { duration } from "panels/units.js";

/** Shows what the file carries. Times are in UTC, since readers may be anywhere. */
export function showReport(app, content) {
  setZone("utc");
  const shown = [];
  const span = `${moment(content.from).slice(0, 19)} to ${moment(content.to).slice(0, 19)} ${zoneName()}`;
  put(
    app,
    h("header", { class: "top" }, h("div", { class: "top-line" }, h("h1", {}, content.title), h("div", { class: "spacer" }), themeButton(() => shown.forEach((board) => board.redraw())))),
    h(
      "main",
      { class: "report" },
      h("p", {}, h("strong", {}, span), ` · ${duration(content.to - content.from)}`),
      h("p", { class: "quiet" }, `Made ${content.made.replace("T", " ").replace("+00:00", " UTC")} by agl-stack ${content.version}.`),
      content.problems.length ? h("details", { class: "note warn", open: content.problems.length <= 5 }, h("summary", {}, `${content.problems.length} thing${content.problems.length === 1 ? "" : "s"} could not be drawn`), h("ul", {}, content.problems.map((problem) => h("li", {}, problem)))) : null,
      h("nav", { "aria-label": "Contents" }, h("ul", { class: "contents" }, h("li", {}, h("a", { href: "#alerts" }, "Alerts that fired")), content.boards.map(({ board }) => h("li", {}, h("a", { href: `#board-${board.uid}` }, board.title))), h("li", {}, h("a", { href: "#values" }, "Table of values")))),
      h("section", { id: "alerts" }, h("h2", {}, "Alerts that fired"), alerts(content)),
      content.boards.map((recorded) => boardSection(recorded, content, shown)),
      h("section", { id: "values" }, h("h2", {}, "Table of values"), content.boards.map(valuesOf)),
    ),
  );
  addEventListener("beforeprint", () => document.querySelectorAll("details.row, section#values details").forEach((part) => (part.open = true)));
}

function alerts({ alerts: fired, from, to }) {
  if (!fired.length) return h("p", { class: "all-well" }, "No alert fired in this time.");
  return h("div", { class: "table-place", tabindex: "0", role: "group", "aria-label": "Alerts that fired" }, h("table", { class: "values alerts-table" }, h("thead", {}, h("tr", {}, ["Alert", "Severity", "Fired", "Duration", "Course", "Labels"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, fired.map((alert) => alertRow(alert, from, to)))));
}

function alertRow(alert, from, to) {
  const { periods, step } = alert;
  const first = periods[0];
  const total = periods.reduce((sum, period) => sum + period.end - period.start + step, 0);
  const times = periods.slice(0, 4).map((period) => h("div", {}, `${moment(period.start)} – ${period.open ? "still firing" : moment(period.end)}`));
  const place = (seconds) => `${Math.min(100, Math.max(0, ((seconds - from) / (to - from)) * 100))}%`;
  const track = h("div", { class: "course", role: "img", "aria-label": `${periods.length} periods` }, periods.map((period) => h("span", { class: severityClass(alert.severity), style: { left: place(period.start - step), width: `max(3px, ${((period.end - period.start + step) / (to - from)) * 100}%)` } })));
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, alert.name, alert.summary ? h("div", { class: "quiet" }, alert.summary) : null, links(alert)),
    h("td", {}, h("span", { class: `badge ${severityClass(alert.severity)}` }, alert.severity || "none")),
    h("td", {}, times, periods.length > 4 ? h("div", { class: "quiet" }, `and ${periods.length - 4} more`) : null),
    h("td", { title: `to ${step} s` }, first ? duration(total) : ""),
    h("td", {}, track),
    h("td", { class: "quiet" }, labelText(alert.labels)),
  );
}

function boardSection(recorded, content, shown) {
  const { board } = recorded;
  const root = h("div");
  const events = recorded.annotations.events;
  const page = { source: new Recorded(recorded, content.alerts), zoom: () => {}, events: () => events, shared: () => board.sharedCrosshair };
  const chosen = board.variables.filter((variable) => !variable.hidden && variable.kind !== "datasource").map((variable) => `${variable.label}: ${variable.chosen.map((value) => (value === "$__all" ? "All" : value)).join(" + ") || "none"}`);
  const section = h("section", { id: `board-${board.uid}` }, h("h2", {}, board.title), board.description ? h("p", { class: "quiet" }, board.description) : null, chosen.length ? h("p", { class: "quiet" }, chosen.join(" · ")) : null, root);
  // The panels need the width they get, which is known once they are in the page.
  requestAnimationFrame(() => shown.push(showBoard(root, { ...board, rows: board.rows.map((row) => ({ ...row, collapsed: false })) }, page, { all: true })));
  return section;
}

function valuesOf({ board, data }) {
  const panels = board.rows.flatMap((row) => row.panels).filter((panel) => (data[panel.key]?.results ?? []).some((result) => (result.series ?? []).length));
  return h("details", { open: true }, h("summary", {}, h("h3", {}, board.title)), panels.map((panel) => h("div", { class: "values-panel" }, h("h4", {}, panel.title || "Untitled panel"), h("div", { class: "table-place", tabindex: "0", role: "group", "aria-label": panel.title }, told(panel, data[panel.key])))));
}

/** A panel whose settings make no sense leaves the other tables as they are. */
function told(panel, data) {
  try {
    return summary(panel, data);
  } catch (error) {
    return h("p", { class: "note error" }, `its settings make no sense here: ${error.message}`);
  }
}
