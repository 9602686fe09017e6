// Grafana's units: one formatter for axes, legends, tooltips, tables and stats.

const SI = [
  [1e-12, "p"], [1e-9, "n"], [1e-6, "µ"], [1e-3, "m"], [1, ""],
  [1e3, "k"], [1e6, "M"], [1e9, "G"], [1e12, "T"], [1e15, "P"], [1e18, "E"],
];
const FROM_ONE = SI.filter(([factor]) => factor >= 1);
const COUNT = [[1, ""], [1e3, " K"], [1e6, " Mil"], [1e9, " Bil"], [1e12, " Tri"]];
const IEC = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].map((prefix, power) => [1024 ** power, prefix]);
const TIME = [
  [1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"],
  [3600, "hour"], [86400, "day"], [604800, "week"], [31536000, "year"],
];

// Each makes the steps of a unit: [factor, suffix], where `base` is the size of one of the value's own.
const fixed = (suffix, scale = 1) => ({ steps: [[1 / scale, suffix]] });
const time = (seconds) => ({ steps: TIME.map(([factor, name]) => [factor / seconds, ` ${name}`]) });
const si = (suffix, base = 1, steps = SI) => ({
  steps: steps.map(([factor, prefix]) => [factor / base, ` ${prefix}${suffix}`]),
});
const whole = (suffix, base = 1) => si(suffix, base, FROM_ONE);
const iec = (suffix, base = 1) => si(suffix, base, IEC);
const count = (suffix) => ({
  steps: FROM_ONE.map(([factor, p]) => [factor, `${p ? ` ${p.toUpperCase()}` : ""}${suffix ? ` ${suffix}` : ""}`]),
});

const TABLE = {
  "": count(""), none: fixed(""), short: { steps: COUNT }, sishort: si(""),
  percent: fixed("%"), percentunit: fixed("%", 100), humidity: fixed(" %H"), dB: fixed(" dB"),
  ns: time(1e-9), "µs": time(1e-6), ms: time(1e-3), s: time(1), m: time(60), h: time(3600), d: time(86400),
  bits: iec("b"), bytes: iec("B"), kbytes: iec("B", 1024), mbytes: iec("B", 1024 ** 2),
  gbytes: iec("B", 1024 ** 3), tbytes: iec("B", 1024 ** 4),
  decbits: whole("b"), decbytes: whole("B"), deckbytes: whole("B", 1e3), decmbytes: whole("B", 1e6),
  decgbytes: whole("B", 1e9), dectbytes: whole("B", 1e12),
  Bps: whole("B/s"), binBps: iec("B/s"), bps: whole("b/s"), binbps: iec("b/s"), pps: whole("p/s"),
  KBs: whole("B/s", 1e3), MBs: whole("B/s", 1e6), GBs: whole("B/s", 1e9),
  KiBs: iec("B/s", 1024), MiBs: iec("B/s", 1024 ** 2), GiBs: iec("B/s", 1024 ** 3),
  Kbits: whole("b/s", 1e3), Mbits: whole("b/s", 1e6), Gbits: whole("b/s", 1e9),
  hertz: si("Hz"), rothz: si("Hz"), rotrpm: fixed(" rpm"),
  cps: count("c/s"), ops: count("ops/s"), reqps: count("req/s"), rps: count("rd/s"), wps: count("wr/s"),
  iops: count("io/s"), eps: count("evt/s"), mps: count("msg/s"), recps: count("rec/s"), rowsps: count("rows/s"),
  cpm: count("c/m"), opm: count("ops/m"), reqpm: count("req/m"), rpm: count("rd/m"), wpm: count("wr/m"), mpm: count("msg/m"),
  watt: si("W"), kwatt: si("W", 1e-3), mwatt: si("W", 1e3), watth: si("Wh"), kwatth: si("Wh", 1e-3),
  joule: si("J"), volt: si("V"), amp: si("A"), voltamp: si("VA"), flops: whole("FLOPS"),
  celsius: fixed(" °C"), fahrenheit: fixed(" °F"), kelvin: fixed(" K"), lengthm: si("m"), massg: si("g"),
};

const NAMES = { currencyUSD: "$", currencyEUR: "€", currencyGBP: "£", currencyJPY: "¥", currencyCNY: "¥" };
const BOOLEAN = { bool: ["True", "False"], bool_yes_no: ["Yes", "No"], bool_on_off: ["On", "Off"] };

/** How a unit is written: `steps` of [factor, suffix], ascending, and what stands before it. */
function shape(unit) {
  const name = unit ?? "";
  if (Object.hasOwn(TABLE, name)) return { prefix: "", ...TABLE[name] };
  if (Object.hasOwn(NAMES, name)) return { ...count(""), prefix: NAMES[name] };
  const [kind, rest] = split(name);
  if (kind === "prefix") return { ...fixed(""), prefix: rest };
  if (kind === "suffix") return { ...fixed(rest), prefix: "" };
  if (kind === "currency") return { ...count(""), prefix: rest };
  if (kind === "si") return { ...si(rest), prefix: "" };
  if (kind === "count") return { ...count(rest), prefix: "" };
  return { ...fixed(name ? ` ${name}` : ""), prefix: "" };
}

function split(name) {
  const at = name.indexOf(":");
  return at < 0 ? [name, ""] : [name.slice(0, at), name.slice(at + 1)];
}

/** The factor and suffix that suit a value of this size. */
export function scaleFor(value, unit) {
  const { prefix, steps } = shape(unit);
  const size = Math.abs(value);
  let [factor, suffix] = steps.find(([f]) => f === 1) ?? steps[0];
  if (size > 0 && Number.isFinite(size)) {
    const fitting = steps.filter(([f]) => size >= f * (1 - 1e-12));
    [factor, suffix] = fitting.length ? fitting[fitting.length - 1] : steps[0];
  }
  return { factor, suffix, prefix };
}

/** A value as people read it, such as 1.5 KiB or 230 ms; decimals as in Grafana when not given. */
export function format(value, unit, decimals) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (typeof value === "string") return value;
  if (value === Infinity) return "+∞";
  if (value === -Infinity) return "−∞";
  const special = SPECIAL[unit];
  if (special) return special(value, decimals);
  const [kind, rest] = split(unit ?? "");
  if (kind === "time") return moment(value, rest);
  if (Object.hasOwn(BOOLEAN, unit ?? "")) return BOOLEAN[unit][value ? 0 : 1];
  const { factor, suffix, prefix } = scaleFor(value, unit);
  return sign(value) + prefix + digits(Math.abs(value) / factor, decimals) + plural(suffix, value / factor);
}

/** The values of an axis: one scale for all, and as many decimals as tell them apart. */
export function axisFormat(splits, unit, decimals) {
  if (SPECIAL[unit] || Object.hasOwn(BOOLEAN, unit ?? "") || (unit ?? "").startsWith("time:")) {
    return splits.map((value) => format(value, unit, decimals));
  }
  const numbers = splits.filter((value) => value !== null).sort((a, b) => a - b);
  const gaps = numbers.slice(1).map((value, i) => value - numbers[i]).filter((gap) => gap > 0);
  const gap = gaps.length ? Math.min(...gaps) : numbers[0] || 1;
  const largest = Math.max(0, ...numbers.map(Math.abs));
  // A step of 20 s is no round part of a minute, so such an axis stays in seconds.
  const scales = [largest, ...shape(unit).steps.map(([f]) => f).filter((f) => f < largest).reverse()].map((size) => scaleFor(size, unit));
  const { factor, suffix, prefix } = scales.find((scale) => placesOf(gap / scale.factor) <= 2) ?? scales[0];
  const places = decimals ?? Math.min(6, placesOf(gap / factor));
  const text = (value) => sign(value) + prefix + (Math.abs(value) / factor).toFixed(value === 0 ? 0 : places) + suffix;
  return splits.map((value) => (value === null ? "" : text(value)));
}

/** How many decimals a step of this size has: 2 for 0.25. */
function placesOf(gap) {
  for (let places = 0; places < 10; places++) {
    const scaled = gap * 10 ** places;
    if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return places;
  }
  return 0;
}

const sign = (value) => (value < 0 ? "−" : "");

const PLURAL = new Set(["hour", "day", "week", "year"]);
function plural(suffix, value) {
  return PLURAL.has(suffix.trim()) && Math.abs(value) !== 1 ? suffix + "s" : suffix;
}

function digits(value, decimals) {
  const places = decimals ?? decimalsOf(value);
  const text = value.toFixed(Math.min(20, Math.max(0, places)));
  if (decimals !== null && decimals !== undefined) return text;
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Grafana's rule: three significant digits. */
export function decimalsOf(value) {
  if (!value || value % 1 === 0) return 0;
  return Math.min(12, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
}

const pad = (number, size = 2) => String(Math.trunc(number)).padStart(size, "0");

function clock(milliseconds) {
  const size = Math.abs(milliseconds);
  return `${sign(milliseconds)}${pad(size / 3.6e6)}:${pad((size / 6e4) % 60)}:${pad((size / 1e3) % 60)}`;
}

/** A duration in its two largest parts: 3 days 4 hours. */
export function duration(seconds) {
  const parts = [["year", 31536000], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  let rest = Math.abs(seconds);
  const told = [];
  for (const [name, size] of parts) {
    const count = Math.floor(rest / size + 1e-9);
    rest -= count * size;
    if (count) told.push(`${count} ${name}${count === 1 ? "" : "s"}`);
    if (told.length === 2) break;
  }
  if (!told.length) return format(seconds, "s");
  return sign(seconds) + told.join(" ");
}

function fromNow(milliseconds) {
  const seconds = (milliseconds - Date.now()) / 1000;
  const text = duration(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}

function moment(milliseconds, pattern) {
  const date = new Date(milliseconds);
  if (Number.isNaN(date.getTime())) return String(milliseconds);
  const parts = { YYYY: date.getFullYear(), MM: pad(date.getMonth() + 1), DD: pad(date.getDate()), HH: pad(date.getHours()), mm: pad(date.getMinutes()), ss: pad(date.getSeconds()), SSS: pad(date.getMilliseconds(), 3) };
  return (pattern || "YYYY-MM-DD HH:mm:ss").replace(/YYYY|MM|DD|HH|mm|ss|SSS/g, (name) => parts[name]);
}

const SPECIAL = {
  locale: (value, decimals) => value.toLocaleString("en-US", { maximumFractionDigits: decimals ?? decimalsOf(value), minimumFractionDigits: decimals ?? 0 }),
  hex: (value) => Math.round(value).toString(16).toUpperCase(),
  hex0x: (value) => "0x" + Math.round(value).toString(16).toUpperCase(),
  sci: (value, decimals) => value.toExponential(decimals ?? 2),
  dtdurations: (value) => duration(value),
  dtdurationms: (value) => duration(value / 1000),
  clocks: (value) => clock(value * 1000),
  clockms: (value) => clock(value),
  timeticks: (value) => duration(value / 100),
  dateTimeAsIso: (value) => moment(value, "YYYY-MM-DD HH:mm:ss"),
  dateTimeAsIsoNoDateIfToday: (value) => moment(value, new Date(value).toDateString() === new Date().toDateString() ? "HH:mm:ss" : "YYYY-MM-DD HH:mm:ss"),
  dateTimeAsUS: (value) => moment(value, "MM/DD/YYYY HH:mm:ss"),
  dateTimeAsLocal: (value) => new Date(value).toLocaleString(),
  dateTimeAsSystem: (value) => moment(value, "YYYY-MM-DD HH:mm:ss"),
  dateTimeFromNow: (value) => fromNow(value),
  string: (value) => String(value),
};
