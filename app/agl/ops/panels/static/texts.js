// Panels without queries: text, lists of alerts and of dashboards.

import { h, put, safeUrl } from "panels/dom.js";
import { address, anchor } from "panels/links.js";
import { duration } from "panels/units.js";

/** Markdown, HTML or code. What a dashboard's text holds can show, but not do anything. */
export function text(panel, body) {
  const { content = "", mode = "markdown" } = panel.options ?? {};
  if (mode === "code") return void put(body, h("pre", { class: "text", tabindex: "0" }, content));
  const source = mode === "html" ? content : window.marked.parse(content, { async: false });
  const clean = window.DOMPurify.sanitize(source, { RETURN_DOM_FRAGMENT: true, FORBID_ATTR: ["style"], FORBID_TAGS: ["style", "form", "iframe", "input", "button"] });
  for (const link of clean.querySelectorAll("a[href]")) {
    const url = address({ url: link.getAttribute("href") });
    if (!url) link.removeAttribute("href");
    else link.setAttribute("href", url);
    if (/^https?:/i.test(url ?? "")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  }
  put(body, h("div", { class: "text", tabindex: "0", role: "group", "aria-label": panel.title || "Text" }, clean));
}

/** The alerts that fire, or fired in a report's range. */
export async function alertlist(panel, body, context) {
  const { alerts } = await context.source.alerts();
  const states = panel.options?.stateFilter;
  const shown = alerts.filter((alert) => !states || states[alert.state] !== false || alert.state === "firing").slice(0, panel.options?.maxItems ?? 50);
  if (!shown.length) return void put(body, h("p", { class: "all-well" }, h("span", { "aria-hidden": "true" }, "✓ "), "No alert is firing."));
  put(body, h("ul", { class: "alerts", tabindex: "0", "aria-label": "Alerts" }, shown.map(alertItem)));
}

function alertItem(alert) {
  const since = alert.since ? duration((Date.now() - Date.parse(alert.since)) / 1000) : "";
  return h(
    "li",
    { class: `alert ${severityClass(alert.severity)}` },
    h("span", { class: "badge" }, alert.severity || alert.state),
    h("div", {}, h("strong", {}, alert.name), alert.state === "pending" ? " (pending)" : "", since ? h("span", { class: "quiet" }, ` for ${since}`) : null, alert.summary ? h("div", {}, alert.summary) : null, h("div", { class: "quiet" }, labelText(alert.labels)), links(alert)),
  );
}

export const severityClass = (severity) => (["critical", "warning", "info"].includes(severity) ? severity : "other");

export const labelText = (labels) => Object.entries(labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");

/** Links of an alert to its runbook and dashboard. */
export function links(alert) {
  const found = [["Runbook", alert.runbook], ["Dashboard", alert.dashboard]].filter(([, url]) => safeUrl(url));
  return found.length ? h("div", {}, found.flatMap(([title, url]) => [anchor({ title, url, blank: /^https?:/.test(url) }, "small"), " "])) : null;
}

/** Links to other dashboards. */
export async function dashlist(panel, body, context) {
  const { boards } = await context.source.boards();
  const { tags = [], query = "", maxItems = 50 } = panel.options ?? {};
  const shown = boards.filter((board) => tags.every((tag) => board.tags.includes(tag)) && board.title.toLowerCase().includes(query.toLowerCase())).slice(0, maxItems);
  put(body, h("ul", { class: "dashboards", tabindex: "0" }, shown.map((board) => h("li", {}, anchor({ title: board.title, url: board.path, keepTime: Boolean(panel.options?.keepTime) })))));
}
