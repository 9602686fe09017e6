// State timeline and status history: a band for each series, a block for each state it was in.

import { follow } from "panels/chart.js";
import { h, put } from "panels/dom.js";
import { display, fieldsOf, thresholdsOf } from "panels/fields.js";
import { css, over, textOn } from "panels/palette.js";
import { axisTimes, moment } from "panels/times.js";
import { hideTooltip, showTooltip } from "panels/tooltip.js";
import { duration } from "panels/units.js";

const STEPS = [1, 5, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];

/** States that lasted, as blocks as long as they did. */
export function stateTimeline(panel, data, body, context) {
  draw(panel, data, body, context, panel.options?.mergeValues !== false);
}

/** One block for each point. */
export function statusHistory(panel, data, body, context) {
  draw(panel, data, body, context, false);
}

function draw(panel, data, body, context, merged) {
  const fields = fieldsOf(panel, data);
  if (!fields.length) return context.empty();
  for (const field of fields) field.config.color ??= { mode: "thresholds" };
  const { from, to } = data;
  const axis = h("div", { class: "state-axis", "aria-hidden": "true" });
  const showValue = panel.options?.showValue ?? "auto";
  const rows = fields.map((field) => h("div", { class: "state-row" }, h("div", { class: "state-name", title: field.title }, field.title), h("div", { class: "state-track" }, blocks(field, from, to, merged, showValue, panel))));
  put(body, h("div", { class: "plot bottom" }, h("div", { class: "states", tabindex: "0", role: "group", "aria-label": `${panel.title || "States"}: ${fields.length} series` }, rows, h("div", { class: "state-row" }, h("div", { class: "state-name" }), axis)), h("div", { class: "legend-place" }, key(panel, fields))));
  const stop = follow(axis, (width) => put(axis, ticks(from, to, width)));
  return { destroy: stop };
}

function blocks(field, from, to, merged, showValue, panel) {
  const length = to - from;
  const place = (seconds) => Math.min(100, Math.max(0, ((seconds - from) / length) * 100));
  return runs(field, merged).map(({ value, start, end }) => {
    const { text, color } = display(field, value);
    const [left, right] = [place(start), place(end)];
    if (right <= left) return null;
    const told = `${field.title}: ${text}, ${moment(start)} to ${moment(end)} (${duration(end - start)})`;
    const width = right - left;
    const back = over(css(color), Math.max(0.55, (field.custom.fillOpacity ?? 70) / 100));
    return h(
      "div",
      {
        class: "state",
        role: "img",
        "aria-label": told,
        style: { left: `${left}%`, width: `${width}%`, background: back, color: textOn(back), height: `${Math.round((panel.options?.rowHeight ?? 0.9) * 100)}%` },
        onmousemove: (event) => showTooltip({ seconds: start, heading: `${moment(start)} – ${moment(end)}`, rows: [{ color: css(color), name: `${field.title}: ${text}`, text: duration(end - start), strong: true }], x: event.clientX, y: event.clientY }),
        onmouseleave: hideTooltip,
      },
      showValue !== "never" && width > text.length * 1.1 + 1 ? text : null,
    );
  });
}

function runs(field, merged) {
  const found = [];
  field.values.forEach((value, i) => {
    if (value === null) return;
    const start = field.start + i * field.step;
    const last = found.at(-1);
    if (merged && last && last.end >= start && same(field, last.value, value)) last.end = start + field.step;
    else found.push({ value, start, end: start + field.step });
  });
  return found;
}

const same = (field, a, b) => a === b || (field.config.mappings?.length > 0 && display(field, a).mapped && display(field, a).text === display(field, b).text);

function ticks(from, to, width) {
  const wished = (to - from) / Math.max(1, Math.floor(width / 80));
  const step = STEPS.find((size) => size >= wished) ?? STEPS.at(-1);
  const moments = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) moments.push(at);
  return axisTimes(moments).map((text, i) => h("span", { style: { left: `${((moments[i] - from) / (to - from)) * 100}%` } }, text));
}

function key(panel, fields) {
  if (panel.options?.legend?.showLegend === false) return null;
  const seen = new Map();
  for (const field of fields) for (const value of field.values) if (value !== null && seen.size < 12 && (field.config.mappings?.length || seen.size < 8)) seen.set(display(field, value).text, display(field, value).color);
  const mapped = fields.some((field) => field.config.mappings?.length);
  const entries = mapped ? [...seen] : thresholdsOf(fields[0].config).map(({ value, color }) => [Number.isFinite(value) ? `${display(fields[0], value).text}+` : "below", css(color)]);
  return h("ul", { class: "legend legend-list bottom", "aria-label": "States" }, entries.map(([text, color]) => h("li", {}, h("span", { class: "swatch", style: { background: css(color) } }), h("span", {}, text))));
}
