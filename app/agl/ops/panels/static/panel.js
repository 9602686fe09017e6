// One panel: its frame, its state (waiting, drawn, empty, failed) and what can be done with it.

import { h, put } from "panels/dom.js";
import { heatmap } from "panels/heatmap.js";
import { anchor } from "panels/links.js";
import { bargauge, gauge, piechart, stat } from "panels/stat.js";
import { stateTimeline, statusHistory } from "panels/states.js";
import { summary, table } from "panels/table.js";
import { alertlist, dashlist, text } from "panels/texts.js";
import { timeseries } from "panels/timeseries.js";
import { format } from "panels/units.js";

const DRAW = {
  timeseries, graph: timeseries, trend: timeseries, stat, singlestat: stat, gauge, bargauge, piechart,
  table, "table-old": table, heatmap, "state-timeline": stateTimeline, "status-history": statusHistory,
};
const ALONE = { text, alertlist, dashlist };

/** A panel of a board; `load(width)` gets its data, `page` is what all panels share. */
export class PanelView {
  constructor(panel, page) {
    this.panel = panel;
    this.page = page;
    this.states = new Map();
    this.notes = [];
    this.data = null;
    this.drawn = null;
    this.asTable = false;
    this.serial = 0;
    this.build();
  }

  build() {
    const { panel } = this;
    const id = `panel-${panel.key}`;
    this.body = h("div", { class: "panel-body" });
    this.foot = h("div", { class: "panel-notes" });
    this.spinner = h("span", { class: "spinner", hidden: true, role: "status", "aria-label": "loading" });
    const charted = !ALONE[panel.type] && !panel.problem;
    this.tableButton = h("button", { type: "button", class: "icon as-table", title: "Values as a table", "aria-label": `Values of ${panel.title || "this panel"} as a table`, "aria-pressed": "false", onclick: () => this.toggleTable() }, "▤");
    this.header = h(
      "header",
      { class: "panel-head" },
      h("h3", { id, title: panel.title }, panel.title),
      this.spinner,
      panel.links?.length ? ways(panel) : null,
      panel.description ? info(panel) : null,
      charted ? this.tableButton : null,
      h("button", { type: "button", class: "icon enlarge", title: "Enlarge (Escape closes)", "aria-label": `Enlarge ${panel.title || "this panel"}`, onclick: () => this.enlarge() }, "⤢"),
    );
    this.element = h("section", { class: `panel type-${panel.type}${panel.transparent ? " transparent" : ""}`, "aria-labelledby": id, "data-key": panel.key }, this.header, this.body, this.foot);
    if (!panel.title) this.element.classList.add("untitled");
  }

  /** Asks for the data and draws it; what is shown stays until the new is there. */
  async refresh() {
    const { panel } = this;
    const serial = ++this.serial;
    if (panel.problem) return this.fail("This panel cannot be drawn", panel.problem);
    this.spinner.hidden = false;
    try {
      if (ALONE[panel.type]) {
        this.clear();
        await ALONE[panel.type](panel, this.body, this.page);
        return;
      }
      const width = Math.round(this.body.clientWidth || 600);
      const data = await this.page.source.data(panel.key, width);
      if (serial !== this.serial) return;
      this.data = data;
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError" && serial === this.serial) this.fail("No answer", error.message);
    } finally {
      if (serial === this.serial) this.spinner.hidden = true;
    }
  }

  clear() {
    this.drawn?.destroy();
    this.drawn = null;
    this.notes = [];
    this.element.classList.remove("failed", "empty");
    put(this.foot);
  }

  /** Draws the data at hand, also after a change of the theme. */
  draw() {
    const { data, panel } = this;
    if (!data) return;
    this.clear();
    if (data.error) return this.fail("This panel cannot be drawn", data.error);
    const failed = data.results.filter((result) => result.error);
    if (failed.length && failed.length === data.results.length) return this.fail(failed[0].kind === "down" ? "Prometheus cannot be reached" : failed[0].kind === "limit" ? "Too much to draw" : "The query failed", failed[0].error, failed[0].expression);
    for (const result of failed) this.notes.push(["error", `query ${result.refId} failed: ${result.error}`]);
    this.noteLimits();
    try {
      if (this.asTable) put(this.body, h("div", { class: "table-place", tabindex: "0", role: "group", "aria-label": `Values of ${panel.title}` }, summary(panel, data)));
      else this.drawn = this.drawer()(panel, data, this.body, this.context()) ?? null;
    } catch (error) {
      console.error(panel.title, error);
      return this.fail("This panel cannot be drawn", `its settings make no sense here: ${error.message}`);
    }
    this.showNotes();
  }

  drawer() {
    const { type } = this.panel;
    if (Object.hasOwn(DRAW, type)) return DRAW[type];
    return (panel, data, body) => {
      this.notes.push(["", `panels of the type ${type} are shown as a table here`]);
      put(body, h("div", { class: "table-place", tabindex: "0" }, summary(panel, data)));
    };
  }

  noteLimits() {
    for (const { total, series, refId, warnings = [] } of this.data.results) {
      if (series && total > series.length) this.notes.push(["warn", `query ${refId} has ${format(total, "locale")} series; the ${series.length} with the largest values are drawn`]);
      // What Prometheus calls an info is about the query's wording: for whoever looks closely.
      for (const warning of warnings) if (this.asTable || !warning.startsWith("PromQL info")) this.notes.push(["warn", `Prometheus says: ${warning}`]);
    }
    if (this.data.note) this.notes.push(["", this.data.note]);
  }

  showNotes() {
    put(this.foot, this.notes.map(([kind, text]) => h("p", { class: `note ${kind}` }, text)));
  }

  context() {
    const { page } = this;
    return {
      ...page,
      source: page.source,
      state: (make) => {
        if (!this.states.has("view")) this.states.set("view", make());
        return this.states.get("view");
      },
      note: (text) => this.notes.push(["warn", text]),
      empty: (reason) => this.showEmpty(reason),
    };
  }

  showEmpty(reason) {
    const asked = this.data.results;
    const wished = this.panel.fieldConfig?.defaults?.noValue;
    this.element.classList.add("empty");
    put(
      this.body,
      h(
        "div",
        { class: "message" },
        h("p", { class: "message-title" }, wished || "No data"),
        wished ? null : h("p", {}, asked.length ? (reason ?? "Prometheus has no such series in this time range.") : "This panel has no query."),
        asked.length ? expressions(asked) : null,
      ),
    );
    return null;
  }

  fail(title, reason, expression) {
    this.clear();
    this.element.classList.add("failed");
    put(this.body, h("div", { class: "message", role: "alert" }, h("p", { class: "message-title" }, h("span", { "aria-hidden": "true" }, "⚠ "), title), h("p", {}, reason), expression ? expressions([{ expression }]) : null));
    this.spinner.hidden = true;
  }

  toggleTable() {
    this.asTable = !this.asTable;
    this.tableButton.setAttribute("aria-pressed", String(this.asTable));
    this.draw();
  }

  /** Over the whole window; Escape or the button closes. */
  enlarge() {
    const on = this.element.classList.toggle("enlarged");
    document.body.classList.toggle("has-enlarged", on);
    if (!on) return;
    const close = (event) => {
      if (event.key !== "Escape") return;
      document.removeEventListener("keydown", close);
      if (this.element.classList.contains("enlarged")) this.enlarge();
    };
    document.addEventListener("keydown", close);
  }

  destroy() {
    this.serial++;
    this.drawn?.destroy();
    if (this.element.classList.contains("enlarged")) document.body.classList.remove("has-enlarged");
  }
}

/** The panel's links, as one icon: titles need the room. */
function ways(panel) {
  return h("details", { class: "info ways", onkeydown: (event) => event.key === "Escape" && event.currentTarget.removeAttribute("open") }, h("summary", { class: "icon", title: "Where to go from here", "aria-label": `Links of ${panel.title || "this panel"}` }, "↗"), h("ul", { class: "info-text" }, panel.links.map((link) => h("li", {}, anchor(link)))));
}

function info(panel) {
  const text = window.DOMPurify.sanitize(window.marked.parse(panel.description, { async: false }), { RETURN_DOM_FRAGMENT: true, FORBID_ATTR: ["style"] });
  return h("details", { class: "info", onkeydown: (event) => event.key === "Escape" && event.currentTarget.removeAttribute("open") }, h("summary", { class: "icon", title: "What this panel shows", "aria-label": `What ${panel.title || "this panel"} shows` }, "i"), h("div", { class: "info-text" }, text));
}

function expressions(results) {
  const found = results.map((result) => result.expression).filter(Boolean);
  return found.length ? h("details", { class: "query" }, h("summary", {}, "Query"), found.map((expression) => h("pre", { tabindex: "0" }, expression))) : null;
}
