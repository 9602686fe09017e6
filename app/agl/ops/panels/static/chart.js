// What every chart on a time axis shares: colours of the theme, axes, events, thresholds, resizing.

import { css, faded, isLight } from "panels/palette.js";
import { axisTimes, zonedDate } from "panels/times.js";

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';

/** Colours of axes and grids in the theme in force. */
export function inks() {
  return isLight()
    ? { axis: "#4A4F59", grid: "rgba(20, 24, 32, 0.10)", tick: "rgba(20, 24, 32, 0.18)" }
    : { axis: "#B4B9C4", grid: "rgba(204, 210, 224, 0.10)", tick: "rgba(204, 210, 224, 0.18)" };
}

// Steps of a clock, with the 2, 3 and 20 minutes that short ranges on narrow panels need.
const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 28800, 43200, 86400, 172800, 259200, 604800, 1209600, 2592000, 7776000, 31536000];

/** The time axis below a chart. */
export function timeAxis() {
  const { axis, grid, tick } = inks();
  return {
    stroke: axis,
    font: FONT,
    grid: { stroke: grid, width: 1 },
    ticks: { stroke: tick, width: 1, size: 4 },
    size: 28,
    gap: 4,
    space: 64,
    incrs: TICKS,
    values: (_, splits) => axisTimes(splits),
  };
}

/** Options every uPlot here starts from. */
export function baseOptions({ width, height, from, to }) {
  return {
    width,
    height,
    tzDate: zonedDate,
    legend: { show: false },
    padding: [8, 22, 0, 4],
    scales: { x: { time: true, range: () => [from, to] } },
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false, dist: 6 },
      points: { size: 8, width: 2 },
    },
  };
}

/** The width of an axis that holds its longest label. */
export function axisSize(u, values, axisIndex, cycle) {
  const axis = u.axes[axisIndex];
  if (cycle > 1) return axis._size;
  const longest = (values ?? []).reduce((found, text) => (text.length > found.length ? text : found), "");
  u.ctx.save();
  u.ctx.font = FONT;
  const wide = longest ? u.ctx.measureText(longest).width : 0;
  u.ctx.restore();
  return Math.ceil(wide) + 14;
}

/** Draws a board's events: a line at each, a band where it lasted. */
export function drawEvents(u, events) {
  const { left, top, width, height } = u.bbox;
  const ctx = u.ctx;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  for (const event of events) {
    const color = css(event.color);
    const start = Math.round(u.valToPos(event.start, "x", true));
    const end = Math.round(u.valToPos(event.end, "x", true));
    if (end < left || start > left + width) continue;
    ctx.fillStyle = faded(color, 0.12);
    if (end > start) ctx.fillRect(start, top, end - start, height);
    ctx.strokeStyle = faded(color, 0.9);
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    for (const at of end > start ? [start, end] : [start]) {
      ctx.moveTo(at, top);
      ctx.lineTo(at, top + height);
    }
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = color;
    const size = 5 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(start - size, top + height);
    ctx.lineTo(start + size, top + height);
    ctx.lineTo(start, top + height - size * 1.4);
    ctx.fill();
  }
  ctx.restore();
}

/** Events near a moment, for the tooltip. */
export function eventsNear(u, events, moment) {
  const slack = ((u.scales.x.max - u.scales.x.min) / Math.max(1, u.width)) * 6;
  return events.filter(({ start, end }) => moment >= start - slack && moment <= end + slack);
}

/** Keeps a chart as large as the element it is in; returns what stops that. */
export function follow(element, resize) {
  let last = "";
  const observer = new ResizeObserver(([entry]) => {
    const { width, height } = entry.contentRect;
    const size = `${Math.round(width)}x${Math.round(height)}`;
    if (size === last || width < 20 || height < 20) return;
    last = size;
    requestAnimationFrame(() => resize(Math.round(width), Math.round(height)));
  });
  observer.observe(element);
  return () => observer.disconnect();
}

/** Charts that show the same moment move their cursors together. */
const group = new Set();

export function join(chart) {
  group.add(chart);
  return () => group.delete(chart);
}

export function share(from, moment) {
  for (const chart of group) if (chart !== from) chart.point(moment);
}
