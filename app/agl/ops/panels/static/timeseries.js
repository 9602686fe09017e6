// Series over time: lines, bars and points, stacked or not, on as many axes as there are units.

import { axisSize, baseOptions, drawEvents, eventsNear, follow, FONT, inks, join, share, timeAxis } from "panels/chart.js";
import { h, put } from "panels/dom.js";
import { display, fieldsOf, thresholdsOf } from "panels/fields.js";
import { legend } from "panels/legend.js";
import { css, faded, visible } from "panels/palette.js";
import { hideTooltip, showTooltip } from "panels/tooltip.js";
import { axisFormat, format } from "panels/units.js";

const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);
const CLOCK = [1e-9, 2e-9, 5e-9, 1e-8, 2e-8, 5e-8, 1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000, 63072000, 157680000];
const BINARY_UNITS = new Set(["bytes", "bits", "binBps", "binbps", "kbytes", "mbytes", "gbytes", "tbytes", "KiBs", "MiBs", "GiBs"]);

/** Draws into `body`; returns {destroy}. */
export function timeseries(panel, data, body, context) {
  const fields = fieldsOf(panel, data).filter((field) => !field.custom.hideFrom?.viz);
  if (!fields.length) return context.empty();
  // A quantile of nothing is no number: the series are there, and there is nothing to draw.
  if (fields.every((field) => field.values.every((value) => value === null))) return context.empty("The series have no value in this time range: nothing was counted.");
  const state = context.state(() => ({ hidden: new Set() }));
  const canvas = h("div", { class: "chart", tabindex: "0", role: "img", "aria-label": spoken(panel, fields) });
  const keys = h("div", { class: "legend-place" });
  const placement = panel.options?.legend?.placement === "right" ? "right" : "bottom";
  put(body, h("div", { class: `plot ${placement}` }, canvas, keys));
  let chart = null;
  let size = null;

  function draw() {
    chart?.destroy();
    chart = size && plot(panel, data, fields, state, canvas, size, context);
  }
  function keyed() {
    put(keys, legend(panel.options?.legend, fields, state, () => {
      keyed();
      draw();
    }));
  }
  keyed();
  const unfollow = follow(canvas, (width, height) => {
    const first = size === null;
    size = { width, height };
    if (first) draw();
    else chart.resize(width, height);
  });
  return {
    destroy() {
      unfollow();
      chart?.destroy();
    },
  };
}

function spoken(panel, fields) {
  const told = fields.slice(0, 8).map((field) => `${field.title}: ${display(field, lastOf(field)).text}`);
  const more = fields.length > 8 ? `, and ${fields.length - 8} more` : "";
  return `${panel.title || "Chart"}, ${fields.length} series. Last values: ${told.join(", ")}${more}. Arrow keys move through time.`;
}

const lastOf = (field) => field.values.findLast((value) => value !== null) ?? null;

/** All series on one time axis: [times, values...]. */
export function table(fields) {
  const same = fields.every((field) => field.start === fields[0].start && field.step === fields[0].step && field.values.length === fields[0].values.length);
  const timesOf = (field) => field.values.map((_, i) => field.start + i * (field.step ?? 0));
  const drawable = (values) => values.map((value) => (Number.isFinite(value) ? value : null));
  if (same) return [timesOf(fields[0]), ...fields.map((field) => drawable(field.values))];
  return window.uPlot.join(fields.map((field) => [timesOf(field), drawable(field.values)]), fields.map(() => [2]));
}

function plot(panel, data, fields, state, target, size, context) {
  const [times, ...rows] = table(fields);
  const shown = fields.map((field) => !state.hidden.has(field.title));
  const scales = scalesOf(fields, shown);
  const stacked = stack(fields, rows, shown);
  const negative = (field, values) => (field.custom.transform === "negative-Y" ? values.map((v) => (v === null ? null : -v)) : values);
  const drawn = stacked.rows.map((values, i) => negative(fields[i], values));
  const options = baseOptions({ ...size, from: data.from, to: data.to });
  const events = context.events();
  Object.assign(options, {
    scales: { ...options.scales, ...Object.fromEntries(scales.map((scale) => [scale.key, scale.options(drawn)])) },
    axes: [timeAxis(), ...axesOf(scales)],
    series: [{}, ...fields.map((field, i) => seriesOf(field, shown[i], scales.find((scale) => scale.fields.includes(i))))],
    bands: stacked.bands,
    hooks: {
      drawClear: [(u) => drawThresholds(u, fields, scales, "area")],
      draw: [(u) => drawThresholds(u, fields, scales, "line"), (u) => drawEvents(u, events)],
      setSelect: [(u) => zoom(u, context)],
    },
  });
  const u = new window.uPlot(options, [times, ...drawn], target);
  return interactive(u, panel, fields, rows, shown, events, target, context);
}

function interactive(u, panel, fields, rows, shown, events, target, context) {
  const mode = panel.options?.tooltip?.mode ?? "single";
  const me = { point: (seconds) => pointAt(seconds) };
  let silent = false;

  function pointAt(seconds) {
    silent = true;
    if (seconds === null) u.setCursor({ left: -10, top: -10 });
    else u.setCursor({ left: u.valToPos(seconds, "x"), top: -10 });
    silent = false;
  }
  function tell(index, near, place) {
    const seconds = u.data[0][index];
    let told = fields.map((field, i) => ({ i, field, value: rows[i][index] })).filter(({ i, field, value }) => shown[i] && value !== null && value !== undefined && !field.custom.hideFrom?.tooltip);
    if (mode === "single" && near !== null && told.some(({ i }) => i === near)) told = told.filter(({ i }) => i === near);
    const order = { asc: 1, desc: -1 }[panel.options?.tooltip?.sort] ?? 0;
    if (order) told.sort((a, b) => order * (a.value - b.value));
    else if (told.length > 14) told.sort((a, b) => b.value - a.value);
    const list = told.map(({ i, field, value }) => ({ color: field.color, name: field.title || "value", text: display(field, value).text, strong: i === near && told.length > 1 }));
    const noted = eventsNear(u, events, seconds).map((event) => ({ ...event, css: css(event.color) }));
    showTooltip({ seconds, rows: list.length ? list : [{ color: "transparent", name: "no value at this time", text: "" }], events: noted, ...place });
  }
  u.hooks.setCursor = [
    ...(u.hooks.setCursor ?? []),
    () => {
      const { idx, left } = u.cursor;
      if (silent) return;
      if (context.shared()) share(me, left >= 0 && idx !== null ? u.data[0][idx] : null);
      if (left < 0 || idx === null || mode === "none" || !u.over.matches(":hover")) return;
      const box = u.over.getBoundingClientRect();
      tell(idx, nearest(u, rows, shown, idx), { x: box.left + left, y: box.top + u.cursor.top });
    },
  ];
  u.over.addEventListener("mouseleave", () => {
    hideTooltip();
    if (context.shared()) share(me, null);
  });
  const keyboard = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === "Escape") hideTooltip();
    if (!step && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const last = u.data[0].length - 1;
    const at = event.key === "Home" ? 0 : event.key === "End" ? last : Math.min(last, Math.max(0, (u.cursor.idx ?? last) + step));
    pointAt(u.data[0][at]);
    const box = u.over.getBoundingClientRect();
    tell(at, null, { x: box.left + u.valToPos(u.data[0][at], "x"), y: box.top + box.height / 3 });
  };
  const blurred = () => hideTooltip();
  target.addEventListener("keydown", keyboard);
  target.addEventListener("blur", blurred);
  const leave = join(me);
  return {
    resize: (width, height) => u.setSize({ width, height }),
    destroy() {
      leave();
      target.removeEventListener("keydown", keyboard);
      target.removeEventListener("blur", blurred);
      hideTooltip();
      u.destroy();
    },
  };
}

/** The series whose drawn value is closest to the pointer. */
function nearest(u, rows, shown, index) {
  let found = null;
  let least = Infinity;
  for (let i = 0; i < rows.length; i++) {
    const value = u.data[i + 1][index];
    if (!shown[i] || value === null || value === undefined) continue;
    const away = Math.abs(u.valToPos(value, u.series[i + 1].scale) - u.cursor.top);
    if (away < least) [found, least] = [i, away];
  }
  return found;
}

function zoom(u, context) {
  const { left, width } = u.select;
  if (width < 6) return;
  const [from, to] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  context.zoom(from, to);
}

/** One scale for each unit, placement and distribution that the fields use. */
function scalesOf(fields, shown) {
  const found = new Map();
  fields.forEach((field, index) => {
    const { custom, config } = field;
    const placement = custom.axisPlacement ?? "auto";
    const log = custom.scaleDistribution?.type === "log" ? (custom.scaleDistribution.log ?? 10) : 0;
    const key = JSON.stringify([config.unit ?? "", placement, log, custom.axisLabel ?? ""]);
    if (!found.has(key)) found.set(key, { key: `y${found.size}`, id: key, unit: config.unit, placement, log, label: custom.axisLabel, fields: [] });
    found.get(key).fields.push(index);
  });
  const scales = [...found.values()];
  scales.forEach((scale, position) => {
    const configs = scale.fields.map((index) => fields[index]);
    scale.side = scale.placement === "right" || (scale.placement === "auto" && position > 0) ? 1 : 3;
    scale.decimals = configs[0].config.decimals;
    scale.options = (drawn) => ({ auto: true, distr: scale.log ? 3 : 1, log: scale.log || undefined, range: () => rangeOf(scale, configs, drawn, shown) });
  });
  return scales;
}

function rangeOf(scale, fields, drawn, shown) {
  let [low, high] = [Infinity, -Infinity];
  for (const index of scale.fields) {
    if (!shown[index]) continue;
    for (const value of drawn[index]) {
      if (value === null || value === undefined || (scale.log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) [low, high] = scale.log ? [1, 10] : [0, 1];
  const first = (name, of) => fields.map(of).find((value) => typeof value === "number" && Number.isFinite(value));
  const [min, max] = [first("min", (f) => f.config.min), first("max", (f) => f.config.max)];
  const [softMin, softMax] = [first("", (f) => f.custom.axisSoftMin), first("", (f) => f.custom.axisSoftMax)];
  for (const field of fields) {
    const style = field.custom.thresholdsStyle?.mode ?? "off";
    if (style !== "off" && style !== "series") for (const { value } of thresholdsOf(field.config)) if (Number.isFinite(value) && value > high && value < 3 * Math.max(high, 1e-12)) high = value;
  }
  if (softMin !== undefined) low = Math.min(low, softMin);
  if (softMax !== undefined) high = Math.max(high, softMax);
  if (scale.log) return [min > 0 ? min : low / 1.2, max > 0 ? max : high * 1.2];
  const [a, b] = window.uPlot.rangeNum(low, high === low ? low + (Math.abs(low) || 1) : high, { min: { pad: 0.1, soft: 0, mode: 2 }, max: { pad: 0.12, soft: 0, mode: 2 } });
  const bounds = [min ?? a, max ?? b];
  return bounds[0] < bounds[1] ? bounds : [bounds[0], bounds[0] + 1];
}

function axesOf(scales) {
  const { axis, grid, tick } = inks();
  return scales
    .filter((scale) => scale.placement !== "hidden")
    .map((scale, position) => ({
      scale: scale.key,
      side: scale.side,
      stroke: axis,
      font: FONT,
      label: scale.label || undefined,
      labelFont: FONT,
      labelSize: scale.label ? 20 : 0,
      labelGap: 0,
      gap: 4,
      space: (u, i, low, high, size) => Math.max(30, size / 9),
      grid: { show: position === 0, stroke: grid, width: 1 },
      ticks: { stroke: tick, width: 1, size: 4 },
      size: axisSize,
      incrs: BINARY_UNITS.has(scale.unit) ? BINARY : scale.unit === "s" ? CLOCK : undefined,
      values: (_, splits) => (scale.log ? splits.map((value) => format(value, scale.unit, scale.decimals)) : axisFormat(splits, scale.unit, scale.decimals)),
    }));
}

function seriesOf(field, show, scale) {
  const { custom } = field;
  const style = custom.drawStyle ?? "line";
  const color = field.color;
  const opacity = (custom.fillOpacity ?? 0) / 100;
  return {
    label: field.title,
    scale: scale.key,
    show,
    stroke: color,
    width: style === "points" ? 0 : Math.max(style === "bars" ? 1 : 1.25, custom.lineWidth ?? 1),
    dash: custom.lineStyle?.fill === "dash" ? (custom.lineStyle.dash ?? [10, 10]) : custom.lineStyle?.fill === "dot" ? [1, 4] : undefined,
    fill: opacity > 0 && style !== "points" ? fillOf(color, opacity, custom.gradientMode) : undefined,
    paths: pathsOf(style, custom.lineInterpolation),
    spanGaps: custom.spanNulls === true,
    points: pointsOf(custom, style, color),
  };
}

function fillOf(color, opacity, mode) {
  if (mode !== "opacity" && mode !== "hue") return faded(color, opacity);
  return (u) => {
    const gradient = u.ctx.createLinearGradient(0, u.bbox.top, 0, u.bbox.top + u.bbox.height);
    gradient.addColorStop(0, faded(color, opacity));
    gradient.addColorStop(1, faded(color, opacity * 0.1));
    return gradient;
  };
}

function pathsOf(style, interpolation) {
  const { bars, spline, stepped, points } = window.uPlot.paths;
  if (style === "bars") return bars({ size: [0.7, 60], align: 0 });
  if (style === "points") return points();
  if (interpolation === "smooth") return spline();
  if (interpolation === "stepBefore") return stepped({ align: -1 });
  if (interpolation === "stepAfter") return stepped({ align: 1 });
  return undefined;
}

function pointsOf(custom, style, color) {
  const base = { size: Math.max(4, custom.pointSize ?? 5), fill: color, stroke: color };
  if (custom.showPoints === "always" || style === "points") return { ...base, show: true };
  if (style === "bars") return { show: false };
  // A point between two gaps has no line that could show it.
  return { ...base, show: true, filter: (u, index) => lonely(u.data[index]) };
}

function lonely(values) {
  const missing = (value) => value === null || value === undefined;
  return values.flatMap((value, i) => (!missing(value) && missing(values[i - 1]) && missing(values[i + 1]) ? [i] : []));
}

/** Values added up where fields are stacked, and the bands between them that are filled. */
function stack(fields, rows, shown) {
  const groups = new Map();
  fields.forEach((field, index) => {
    const { mode = "none", group = "A" } = field.custom.stacking ?? {};
    if (mode === "none" || !shown[index] || field.custom.drawStyle === "points") return;
    const key = `${mode}/${group}/${field.config.unit}/${field.custom.transform ?? ""}`;
    if (!groups.has(key)) groups.set(key, { mode, members: [] });
    groups.get(key).members.push(index);
  });
  const found = rows.slice();
  const bands = [];
  for (const { mode, members } of groups.values()) {
    const length = rows[members[0]].length;
    const totals = Array.from({ length }, (_, at) => members.reduce((sum, index) => sum + (rows[index][at] ?? 0), 0));
    const below = new Array(length).fill(0);
    members.forEach((index, position) => {
      found[index] = rows[index].map((value, at) => {
        if (value === null || value === undefined) return position ? below[at] || null : null;
        below[at] += mode === "percent" ? (totals[at] ? value / totals[at] : 0) : value;
        return below[at];
      });
      if (position) bands.push({ series: [index + 1, members[position - 1] + 1] });
    });
  }
  return { rows: found, bands };
}

function drawThresholds(u, fields, scales, part) {
  for (const scale of scales) {
    const field = fields[scale.fields.find((index) => !["off", "series", undefined].includes(fields[index].custom.thresholdsStyle?.mode))];
    if (!field) continue;
    const mode = field.custom.thresholdsStyle.mode;
    const steps = thresholdsOf(field.config);
    const { left, top, width, height } = u.bbox;
    const ctx = u.ctx;
    const y = (value) => Math.min(top + height, Math.max(top, u.valToPos(value, scale.key, true)));
    ctx.save();
    if (part === "area" && mode.includes("area")) {
      steps.forEach((step, i) => {
        const [low, high] = [Number.isFinite(step.value) ? y(step.value) : top + height, i + 1 < steps.length ? y(steps[i + 1].value) : top];
        ctx.fillStyle = step.color === "transparent" ? "transparent" : faded(css(step.color), 0.1);
        ctx.fillRect(left, high, width, low - high);
      });
    }
    if (part === "line" && (mode.includes("line") || mode.includes("dashed"))) {
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash(mode.includes("dashed") ? [8 * devicePixelRatio, 6 * devicePixelRatio] : []);
      for (const step of steps) {
        const at = u.valToPos(step.value, scale.key, true);
        if (!Number.isFinite(step.value) || at < top || at > top + height) continue;
        ctx.strokeStyle = visible(css(step.color));
        ctx.beginPath();
        ctx.moveTo(left, at);
        ctx.lineTo(left + width, at);
        ctx.stroke();
      }
    }
    ctx.restore();
  }
}
