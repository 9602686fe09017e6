// Heatmaps of histograms: a bucket is a band, its colour how much fell into it.

import { axisSize, baseOptions, drawEvents, follow, FONT, inks, timeAxis } from "panels/chart.js";
import { h, put } from "panels/dom.js";
import { configured } from "panels/fields.js";
import { scheme } from "panels/palette.js";
import { table } from "panels/timeseries.js";
import { hideTooltip, showTooltip } from "panels/tooltip.js";
import { format } from "panels/units.js";

/** Draws into `body`; returns {destroy}. */
export function heatmap(panel, data, body, context) {
  const bands = bandsOf(panel, data);
  if (!bands.rows.length) return context.empty();
  if (bands.note) context.note(bands.note);
  const target = h("div", { class: "chart", tabindex: "0", role: "img", "aria-label": `${panel.title || "Heatmap"}: ${bands.rows.length} bands from ${bands.rows[0].label} to ${bands.rows.at(-1).label}. Arrow keys move through time.` });
  put(body, h("div", { class: "plot bottom" }, target, scale(panel, bands)));
  let chart = null;
  const unfollow = follow(target, (width, height) => {
    chart?.destroy();
    chart = draw(panel, data, bands, target, { width, height }, context);
  });
  return {
    destroy() {
      unfollow();
      chart?.destroy();
      hideTooltip();
    },
  };
}

/** Rows from the lowest bucket up: {label, values}; cumulative buckets (le) become single ones. */
function bandsOf(panel, data) {
  const raw = (data.results ?? []).flatMap((result) => (result.series ?? []).map((series) => ({ ...series, kind: "number", refId: result.refId, start: result.start, step: result.step, values: series.values.map((value) => (typeof value === "number" ? value : null)) })));
  if (!raw.length) return { times: [], rows: [], most: 0 };
  const fields = configured(panel, raw);
  const edge = (field) => Number((field.labels.le ?? field.name).replace("+Inf", "Infinity"));
  const ordered = fields.every((field) => !Number.isNaN(edge(field)));
  if (ordered) fields.sort((a, b) => edge(a) - edge(b));
  const [times, ...values] = table(fields);
  const cumulative = ordered && fields.every((field) => field.labels.le !== undefined || fields.some((other) => edge(other) === Infinity));
  const unit = panel.options?.yAxis?.unit ?? fields[0].config.unit;
  const rows = fields.map((field, i) => ({
    label: ordered ? format(edge(field), unit) : field.title,
    low: i && ordered ? format(edge(fields[i - 1]), unit) : "",
    values: cumulative && i ? values[i].map((value, at) => (value === null || value === undefined ? null : Math.max(0, value - (values[i - 1][at] ?? 0)))) : values[i],
  }));
  const most = Math.max(0, ...rows.map((row) => row.values.reduce((a, b) => Math.max(a, b ?? 0), 0)));
  return { times, rows, most, ranges: ordered, note: "" };
}

const shareOf = (value, most, exponent) => (most > 0 ? (value / most) ** exponent : 0);

function colorsOf(panel) {
  const { scheme: name = "Oranges", reverse = false, exponent = 0.5, scale: kind = "exponential" } = panel.options?.color ?? {};
  return { color: (share) => scheme(name, share, reverse), exponent: kind === "exponential" ? exponent : 0.5 };
}

function scale(panel, { most }) {
  const { color } = colorsOf(panel);
  const steps = Array.from({ length: 12 }, (_, i) => color(i / 11));
  const unit = panel.options?.cellValues?.unit ?? "short";
  return h("div", { class: "heat-scale", "aria-hidden": "true" }, h("span", {}, "0"), h("span", { class: "heat-bar", style: { background: `linear-gradient(90deg, ${steps.join(", ")})` } }), h("span", {}, format(most, unit)));
}

function draw(panel, data, bands, target, size, context) {
  const { times, rows, most } = bands;
  const { color, exponent } = colorsOf(panel);
  const options = baseOptions({ ...size, from: data.from, to: data.to });
  const { axis, tick } = inks();
  const every = Math.max(1, Math.ceil(rows.length / Math.max(2, (size.height - 40) / 18)));
  const labels = rows.flatMap((_, i) => (i % every === 0 ? [i + (bands.ranges ? 1 : 0.5)] : []));
  const u = new window.uPlot(
    {
      ...options,
      padding: [16, 22, 0, 4],
      scales: { ...options.scales, y: { range: () => [0, rows.length] } },
      axes: [
        { ...timeAxis(), grid: { show: false } },
        { stroke: axis, font: FONT, grid: { show: false }, ticks: { stroke: tick, width: 1, size: 4 }, size: axisSize, gap: 4, splits: () => labels, values: (_, splits) => splits.map((at) => rows[Math.ceil(at) - 1]?.label ?? "") },
      ],
      series: [{}, { scale: "y", paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(chart) => cells(chart, bands, (value) => color(shareOf(value, most, exponent))), (chart) => drawEvents(chart, context.events())],
        setSelect: [
          (chart) => {
            const { left, width } = chart.select;
            if (width < 6) return;
            const range = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
            chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            context.zoom(...range);
          },
        ],
      },
    },
    [times, times.map(() => null)],
    target,
  );
  const unit = panel.options?.cellValues?.unit ?? "short";
  const tell = (index, band, place) => {
    const shown = rows.map((row, i) => ({ row, i, value: row.values[index] })).filter(({ value }) => value);
    const list = shown.reverse().map(({ row, i, value }) => ({ color: color(shareOf(value, most, exponent)), name: row.low ? `${row.low} – ${row.label}` : `≤ ${row.label}`, text: format(value, unit), strong: i === band }));
    showTooltip({ seconds: times[index], rows: list.length ? list : [{ color: "transparent", name: "nothing at this time", text: "" }], ...place });
  };
  u.over.addEventListener("mousemove", (event) => {
    const { idx, top } = u.cursor;
    if (idx === null || idx === undefined) return;
    tell(idx, Math.floor(u.posToVal(top, "y")), { x: event.clientX, y: event.clientY });
  });
  u.over.addEventListener("mouseleave", hideTooltip);
  const keyboard = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hideTooltip();
    if (!step) return;
    event.preventDefault();
    const at = Math.min(times.length - 1, Math.max(0, (u.cursor.idx ?? times.length - 1) + step));
    u.setCursor({ left: u.valToPos(times[at], "x"), top: 0 });
    const box = u.over.getBoundingClientRect();
    tell(at, null, { x: box.left + u.valToPos(times[at], "x"), y: box.top });
  };
  target.addEventListener("keydown", keyboard);
  return {
    destroy() {
      target.removeEventListener("keydown", keyboard);
      u.destroy();
    },
  };
}

function cells(u, { times, rows }, colorOf) {
  const { left, top, width, height } = u.bbox;
  const ctx = u.ctx;
  const step = times.length > 1 ? times[1] - times[0] : 1;
  const gap = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  rows.forEach((row, i) => {
    const high = u.valToPos(i + 1, "y", true);
    const low = u.valToPos(i, "y", true);
    row.values.forEach((value, at) => {
      if (!value) return;
      const from = u.valToPos(times[at] - step, "x", true);
      const to = u.valToPos(times[at], "x", true);
      ctx.fillStyle = colorOf(value);
      ctx.fillRect(from, high, Math.max(1, to - from - (to - from > 4 ? gap : 0)), Math.max(1, low - high - gap));
    });
  });
  ctx.restore();
}
