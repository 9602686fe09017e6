// A panel's series with what its field configuration says about them: name, unit, colour, text.

import { reduce } from "panels/calcs.js";
import { byName, classic, continuous, css, visible } from "panels/palette.js";
import { format } from "panels/units.js";

const BASE_GREEN = { mode: "absolute", steps: [{ color: "green", value: null }, { color: "red", value: 80 }] };

/** One field for each series of a panel's data; `values` are numbers or null, infinities included. */
export function fieldsOf(panel, data) {
  const found = [];
  for (const result of data.results ?? []) {
    for (const series of result.series ?? []) {
      found.push({
        name: series.name,
        labels: series.labels,
        refId: result.refId,
        instant: Boolean(result.instant),
        start: result.start,
        step: result.step,
        values: series.values.map(numeric),
      });
    }
  }
  return configured(panel, found);
}

const numeric = (value) => (value === "+Inf" ? Infinity : value === "-Inf" ? -Infinity : value);

/** Gives every field its configuration, its shown name and its colour. */
export function configured(panel, fields) {
  const { defaults = {}, overrides = [] } = panel.fieldConfig ?? {};
  const names = new Map();
  fields.forEach((field, index) => {
    field.kind ??= "number";
    field.config = configOf(defaults, overrides, field);
    field.custom = field.config.custom ?? {};
    const wished = field.config.displayName ? fieldText(field.config.displayName, field) : field.name;
    const count = names.get(wished) ?? 0;
    names.set(wished, count + 1);
    field.title = count ? `${wished} ${count + 1}` : wished;
    field.index = index;
  });
  fields.forEach((field) => (field.color = visible(colorOf(field, field.index))));
  return fields;
}

function configOf(defaults, overrides, field) {
  const config = { ...defaults, custom: { ...(defaults.custom ?? {}) } };
  for (const override of overrides) {
    if (!matches(override.matcher ?? {}, field)) continue;
    for (const { id, value } of override.properties ?? []) {
      if (typeof id !== "string") continue;
      if (id.startsWith("custom.")) setAt(config.custom, id.slice(7).split("."), value);
      else config[id] = value;
    }
  }
  return config;
}

function setAt(target, path, value) {
  const last = path.pop();
  for (const name of path) target = target[name] = { ...(target[name] ?? {}) };
  target[last] = value;
}

function matches({ id, options }, field) {
  const name = field.name;
  if (id === "byName") return name === options;
  if (id === "byNames") return (options?.names ?? []).includes(name) !== (options?.mode === "exclude");
  if (id === "byFrameRefID") return field.refId === options;
  if (id === "byType") return field.kind === options;
  if (id === "byRegexp") return regexp(options)?.test(name) ?? false;
  return false;
}

/** A regular expression written as /x/i or plainly; null when it is none. */
export function regexp(text) {
  try {
    const parts = /^\/(.*)\/([gimsuy]*)$/s.exec(text ?? "");
    return parts ? new RegExp(parts[1], parts[2].replace("g", "")) : new RegExp(text ?? "");
  } catch {
    return null;
  }
}

/** The thresholds in force, ascending; the first has no value. Percentages need the field's range. */
export function thresholdsOf(config) {
  const { mode, steps } = config.thresholds ?? {};
  const found = (Array.isArray(steps) && steps.length ? steps : BASE_GREEN.steps)
    .map(({ color, value }) => ({ color, value: value ?? -Infinity }))
    .sort((a, b) => a.value - b.value);
  if (mode !== "percentage") return found;
  const [low, high] = [config.min ?? 0, config.max ?? 100];
  return found.map(({ color, value }) => ({ color, value: value === -Infinity ? value : low + ((high - low) * value) / 100 }));
}

/** The colour of a value by the thresholds. */
export function thresholdColor(config, value) {
  const steps = thresholdsOf(config);
  let found = steps[0];
  for (const step of steps) if (value !== null && value >= step.value) found = step;
  return css(found.color);
}

function colorOf(field, index) {
  const { mode = "palette-classic", fixedColor, seriesBy } = field.config.color ?? {};
  if (mode === "fixed" || mode === "shades") return css(fixedColor ?? "green");
  if (mode === "palette-classic-by-name") return byName(field.title);
  if (mode === "thresholds" || mode.startsWith("continuous-")) return valueColor(field, reduce(seriesBy === "max" || seriesBy === "min" ? seriesBy : "lastNotNull", field.values));
  return classic(index);
}

/** The colour of one value of a field, as its colour mode says. */
export function valueColor(field, value) {
  const { mode = "thresholds", fixedColor } = field.config.color ?? {};
  if (mode === "fixed" || mode === "shades") return css(fixedColor ?? "green");
  if (mode.startsWith("palette")) return field.color ?? classic(field.index ?? 0);
  if (mode.startsWith("continuous-")) {
    const known = field.values.filter((item) => Number.isFinite(item));
    const low = field.config.min ?? Math.min(...known, value);
    const high = field.config.max ?? Math.max(...known, value);
    return continuous(mode, high > low ? (value - low) / (high - low) : 0.5);
  }
  return thresholdColor(field.config, value);
}

/** A value as it is shown: its text, its colour, and whether a mapping put it. */
export function display(field, value) {
  const mapped = mappingOf(field.config.mappings, value);
  const text = mapped?.text ?? (value === null || value === undefined ? (field.config.noValue ?? "–") : format(value, field.config.unit, field.config.decimals ?? undefined));
  const color = mapped?.color ? css(mapped.color) : typeof value === "number" ? valueColor(field, value) : css("text");
  return { text, color, mapped: Boolean(mapped?.text) };
}

/** What the value mappings say about a value, or undefined. */
export function mappingOf(mappings, value) {
  for (const { type, options } of Array.isArray(mappings) ? mappings : []) {
    if (!options) continue;
    const text = value === null || value === undefined ? "null" : String(value);
    if (type === "value" && Object.hasOwn(options, text)) return options[text];
    if (type === "range" && typeof value === "number" && value >= (options.from ?? -Infinity) && value <= (options.to ?? Infinity)) return options.result;
    if (type === "special" && special(options.match, value)) return options.result;
    if (type === "regex" && regexp(options.pattern)?.test(text)) return options.result;
  }
  return undefined;
}

function special(match, value) {
  const none = value === null || value === undefined;
  return { null: none, nan: Number.isNaN(value), "null+nan": none || Number.isNaN(value), true: value === true, false: value === false, empty: value === "" }[match] ?? false;
}

/** References to a field in texts and links: ${__field.labels.x}, ${__series.name}, ${__value.raw}. */
export function fieldText(text, field, value, encode = (part) => part) {
  return String(text).replace(/\$\{__(field|series|value|data)(?:\.([^}:]+))?(?::\w+)?\}|\$__(cell|field|series)\b/g, (whole, kind, path) => {
    const found = lookUp(kind, path ?? "", field, value);
    return found === undefined ? whole : encode(String(found));
  });
}

function lookUp(kind, path, field, value) {
  const label = /^(?:fields?\.)?labels(?:\.|\[["']?)([^"'\]]+)["']?\]?$/.exec(path);
  if (label) return field.labels?.[label[1]] ?? "";
  if (kind === "value") return path === "text" ? display(field, value).text : path === "time" ? "" : (value ?? "");
  if (kind === "data") return field.row?.[/^fields(?:\.|\[["']?)([^"'\]]+)["']?\]?$/.exec(path)?.[1]] ?? undefined;
  return field.title ?? field.name;
}

/** The data links of a field at a value: [{title, url, blank}]. */
export function dataLinks(field, value) {
  return (field.config.links ?? []).map((link) => ({
    ...link,
    title: fieldText(link.title, field, value),
    url: fieldText(link.url, field, value, encodeURIComponent),
  }));
}
