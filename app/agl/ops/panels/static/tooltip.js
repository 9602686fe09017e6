// One tooltip for all charts: it follows the pointer and is read out for those who use the keyboard.

import { h, put } from "panels/dom.js";
import { moment } from "panels/times.js";

const MOST = 14;
let box;

function element() {
  box ??= document.body.appendChild(h("div", { class: "tooltip", role: "status", "aria-live": "polite", hidden: true }));
  return box;
}

/** Shows rows [{color, name, text, strong}] for a moment, beside a point of the window. */
export function showTooltip({ seconds, heading, rows, events = [], x, y }) {
  const target = element();
  const shown = rows.slice(0, MOST);
  put(
    target,
    h("div", { class: "tooltip-time" }, heading ?? moment(seconds)),
    shown.map((row) =>
      h(
        "div",
        { class: row.strong ? "tooltip-row strong" : "tooltip-row" },
        h("span", { class: "swatch", style: { background: row.color } }),
        h("span", { class: "tooltip-name" }, row.name),
        h("span", { class: "tooltip-value" }, row.text),
      ),
    ),
    rows.length > MOST ? h("div", { class: "tooltip-more" }, `and ${rows.length - MOST} more`) : null,
    events.slice(0, 4).map((event) =>
      h(
        "div",
        { class: "tooltip-event" },
        h("span", { class: "swatch", style: { background: event.css } }),
        h("span", {}, [event.title || event.source, event.text, ...event.tags].filter(Boolean).join(" · ")),
      ),
    ),
  );
  target.hidden = false;
  const { width, height } = target.getBoundingClientRect();
  const left = x + 16 + width > innerWidth - 4 ? x - width - 16 : x + 16;
  const top = Math.min(y + 12, innerHeight - height - 4);
  Object.assign(target.style, { left: `${Math.max(4, left)}px`, top: `${Math.max(4, top)}px` });
}

export function hideTooltip() {
  if (box) box.hidden = true;
}
