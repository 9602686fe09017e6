// Single values: stat, gauge, bar gauge and pie.

import { reduceAny } from "panels/calcs.js";
import { h, put, svg } from "panels/dom.js";
import { dataLinks, display, fieldsOf, thresholdsOf } from "panels/fields.js";
import { background, css, faded, textOn, visible } from "panels/palette.js";
import { linked } from "panels/links.js";

/** The values a panel shows: one for each series, or one for each point of all. */
export function valuesOf(panel, data) {
  const options = panel.options?.reduceOptions ?? {};
  const fields = selected(options.fields, fieldsOf(panel, data));
  const most = options.limit ?? 60;
  if (options.values) {
    return fields.flatMap((field) => field.values.map((value) => ({ field, value, name: field.title }))).slice(0, most);
  }
  const calc = options.calcs?.[0] ?? "lastNotNull";
  return fields.map((field) => ({ field, value: reduceAny(calc, field.values), name: field.title })).slice(0, 200);
}

function selected(pattern, fields) {
  if (!pattern || pattern === "/.*/") return fields;
  const named = fields.filter((field) => field.title === pattern);
  if (named.length) return named;
  const match = /^\/(.*)\/$/.exec(pattern);
  return match ? fields.filter((field) => new RegExp(match[1]).test(field.title)) : fields;
}

/** Large values, coloured by thresholds, with the course of the value below. */
export function stat(panel, data, body, context) {
  const values = valuesOf(panel, data);
  if (!values.length) return context.empty();
  const options = panel.options ?? {};
  const wide = options.orientation === "horizontal" ? "rows" : options.orientation === "vertical" ? "columns" : "auto";
  put(body, h("div", { class: `stats ${wide}`, role: "list" }, values.map((item) => one(item, options, values.length))));
}

function one({ field, value, name }, options, count) {
  const { text, color } = display(field, value);
  const mode = options.colorMode ?? "value";
  const filled = mode.startsWith("background");
  const back = filled && value !== null ? color : null;
  const ink = filled ? (back ? textOn(back) : null) : mode === "none" ? null : visible(color, 4.5);
  const titled = options.textMode ?? "auto";
  const showName = titled === "value_and_name" || titled === "name" || (titled === "auto" && count > 1);
  const [number, unit] = parted(text);
  const spark = options.graphMode !== "none" && !field.instant && field.values.length > 1;
  const content = [
    showName ? h("div", { class: "stat-name" }, name) : null,
    titled === "name" || titled === "none" ? null : h("div", { class: "stat-value", style: ink ? { color: ink } : {} }, h("span", {}, number), unit ? h("span", { class: "stat-unit" }, unit) : null),
  ];
  const shown = h("div", { class: spark ? "stat sparked" : "stat", role: "listitem", style: back ? { background: back, color: textOn(back) } : {} }, spark ? sparkline(field, filled ? textOn(back ?? "#000000") : color) : null, h("div", { class: "stat-text" }, content));
  return linked(shown, dataLinks(field, value));
}

function parted(text) {
  const match = /^([−+]?[\d.,∞]+)\s*([^\d.,∞].*)$/.exec(text);
  return match ? [match[1], match[2]] : [text, ""];
}

function sparkline(field, color) {
  const values = field.values.map((value) => (Number.isFinite(value) ? value : null));
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const low = field.config.min ?? Math.min(...known);
  const high = Math.max(...known);
  const y = (value) => 28 - ((value - Math.min(low, high)) / (high - low || 1)) * 24;
  const pieces = [];
  values.forEach((value, i) => {
    if (value === null) return;
    const point = `${((i / (values.length - 1)) * 100).toFixed(2)},${y(value).toFixed(2)}`;
    if (i === 0 || values[i - 1] === null) pieces.push([]);
    pieces.at(-1).push(point);
  });
  const foot = (point) => `${point.split(",")[0]},30`;
  const line = pieces.map((points) => `M${points.join("L")}`).join("");
  const area = pieces.map((points) => `M${foot(points[0])}L${points.join("L")}L${foot(points.at(-1))}Z`).join("");
  return svg("svg", { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { d: area, fill: faded(color, 0.18) }), svg("path", { d: line, fill: "none", stroke: color, "stroke-width": "1.5", "vector-effect": "non-scaling-stroke" }));
}

/** A dial from min to max, with the thresholds around it. */
export function gauge(panel, data, body, context) {
  const values = valuesOf(panel, data);
  if (!values.length) return context.empty();
  const { showThresholdMarkers = true, showThresholdLabels = false } = panel.options ?? {};
  put(body, h("div", { class: "gauges" }, values.map((item) => dial(item, showThresholdMarkers, showThresholdLabels, values))));
}

const FROM = -210;
const SWEEP = 240;

function arc(radius, start, end) {
  const point = (share) => {
    const angle = ((FROM + SWEEP * share) * Math.PI) / 180;
    return `${(50 + radius * Math.cos(angle)).toFixed(3)},${(52 + radius * Math.sin(angle)).toFixed(3)}`;
  };
  return `M${point(start)}A${radius},${radius} 0 ${(end - start) * SWEEP > 180 ? 1 : 0} 1 ${point(end)}`;
}

/** The ends of a dial or bar: those given, else those of all values, so that they can be compared. */
function bounds(field, all) {
  const known = all.map(({ value }) => value).filter(Number.isFinite);
  const percent = { percent: 100, percentunit: 1 }[field.config.unit] ?? 0;
  const low = field.config.min ?? Math.min(0, ...known);
  const high = field.config.max ?? Math.max(percent, ...known);
  return [low, high > low ? high : low + 1];
}

function dial({ field, value, name }, markers, labels, all) {
  const [low, high] = bounds(field, all);
  const { text, color } = display(field, value);
  const share = value === null ? 0 : Math.min(1, Math.max(0, (value - low) / (high - low)));
  const steps = thresholdsOf(field.config);
  const at = (edge) => Math.min(1, Math.max(0, (edge - low) / (high - low)));
  const edges = steps.map((step, i) => [at(step.value), at(steps[i + 1]?.value ?? Infinity), step]);
  const drawing = svg(
    "svg",
    { viewBox: "0 0 100 82", role: "meter", "aria-label": `${name}: ${text}`, "aria-valuemin": low, "aria-valuemax": high, "aria-valuenow": value ?? low, "aria-valuetext": text },
    svg("path", { d: arc(36, 0, 1), class: "dial-back", fill: "none", "stroke-width": "10" }),
    share > 0 ? svg("path", { d: arc(36, 0, share), fill: "none", stroke: visible(color), "stroke-width": "10" }) : null,
    markers ? edges.filter(([a, b]) => b > a).map(([a, b, step]) => svg("path", { d: arc(44, a, b), fill: "none", stroke: css(step.color), "stroke-width": "2.5" })) : null,
    svg("text", { x: 50, y: 58, class: "dial-value", "text-anchor": "middle", fill: visible(color, 4.5), "font-size": text.length > 7 ? 11 : 15 }, text),
    labels ? edges.filter(([a]) => a > 0 && a < 1).map(([a, , step]) => svg("text", { x: 50 + 49 * Math.cos(((FROM + SWEEP * a) * Math.PI) / 180), y: 52 + 49 * Math.sin(((FROM + SWEEP * a) * Math.PI) / 180), class: "dial-label", "text-anchor": "middle", "font-size": 5 }, String(step.value))) : null,
  );
  return linked(h("div", { class: "gauge" }, drawing, all.length > 1 ? h("div", { class: "gauge-name" }, name) : null), dataLinks(field, value));
}

/** Bars, one for each value. */
export function bargauge(panel, data, body, context) {
  const values = valuesOf(panel, data);
  if (!values.length) return context.empty();
  const gradient = (panel.options?.displayMode ?? "gradient") !== "basic";
  const rows = values.map(({ field, value, name }) => {
    const [low, high] = bounds(field, values);
    const { text, color } = display(field, value);
    const share = value === null ? 0 : Math.min(1, Math.max(0, (value - low) / (high - low)));
    const bar = h("div", { class: "bar", style: { width: `${(share * 100).toFixed(2)}%`, background: gradient ? `linear-gradient(90deg, ${faded(color, 0.35)}, ${color})` : color } });
    return linked(h("div", { class: "bar-row", role: "meter", "aria-label": `${name}: ${text}`, "aria-valuemin": low, "aria-valuemax": high, "aria-valuenow": value ?? low, "aria-valuetext": text }, h("div", { class: "bar-name" }, name), h("div", { class: "bar-track" }, bar), h("div", { class: "bar-value", style: { color: visible(color, 4.5) } }, text)), dataLinks(field, value));
  });
  put(body, h("div", { class: "bars", tabindex: "0", role: "group", "aria-label": panel.title || "Bars" }, rows));
}

/** Shares of a whole. */
export function piechart(panel, data, body, context) {
  const values = valuesOf(panel, data).filter(({ value }) => Number.isFinite(value) && value > 0);
  if (!values.length) return context.empty();
  const total = values.reduce((sum, { value }) => sum + value, 0);
  let turned = 0;
  const hole = panel.options?.pieType === "donut" ? 22 : 0;
  const slices = values.map(({ field, value, name }) => {
    const start = turned;
    turned += value / total;
    return svg("path", { d: slice(start, Math.min(turned, start + 0.99999), hole), fill: field.color, stroke: background(), "stroke-width": 0.6 }, svg("title", {}, `${name}: ${display(field, value).text}`));
  });
  const names = values.map(({ field, value, name }) => h("li", {}, h("span", { class: "swatch", style: { background: field.color } }), h("span", { class: "bar-name" }, name), h("span", { class: "legend-value" }, `${display(field, value).text} · ${Math.round((value / total) * 100)}%`)));
  put(body, h("div", { class: "pie" }, svg("svg", { viewBox: "0 0 100 100", role: "img", "aria-label": panel.title }, slices), h("ul", { class: "legend legend-list right" }, names)));
}

function slice(start, end, hole) {
  const point = (radius, share) => `${(50 + radius * Math.sin(share * 2 * Math.PI)).toFixed(3)},${(50 - radius * Math.cos(share * 2 * Math.PI)).toFixed(3)}`;
  const large = end - start > 0.5 ? 1 : 0;
  return `M${point(46, start)}A46,46 0 ${large} 1 ${point(46, end)}L${point(hole, end)}${hole ? `A${hole},${hole} 0 ${large} 0 ${point(hole, start)}` : ""}Z`;
}

