// Moments as people read them, in the browser's zone or in UTC.

let zone; // undefined: the browser's own

/** "utc", "browser" or the name of a zone; a zone the browser does not know counts as its own. */
export function setZone(name) {
  try {
    zone = !name || name === "browser" ? undefined : name === "utc" ? "UTC" : name;
    new Intl.DateTimeFormat("en", { timeZone: zone });
  } catch {
    zone = undefined;
  }
  FORMATS.clear();
}

const FORMATS = new Map();

function parts(seconds) {
  if (!FORMATS.has("all")) {
    FORMATS.set("all", new Intl.DateTimeFormat("en-GB", { timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }));
  }
  return Object.fromEntries(FORMATS.get("all").formatToParts(new Date(seconds * 1000)).map(({ type, value }) => [type, value]));
}

/** 2026-05-01 12:00:00, with milliseconds when there are some. */
export function moment(seconds) {
  const p = parts(seconds);
  const rest = Math.round((seconds % 1) * 1000);
  return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}${rest ? "." + String(rest).padStart(3, "0") : ""}`;
}

/** Labels of a time axis: the day is told where it changes. */
export function axisTimes(splits) {
  const gap = splits.length > 1 ? splits[1] - splits[0] : 60;
  let day = "";
  return splits.map((seconds) => {
    const p = parts(seconds);
    const today = `${p.month}-${p.day}`;
    const changed = day !== "" && today !== day;
    day = today;
    if (gap >= 86400 * 28) return `${p.year}-${p.month}`;
    if (gap >= 86400) return today;
    const clock = gap < 60 ? `${p.hour}:${p.minute}:${p.second}` : `${p.hour}:${p.minute}`;
    // At midnight the day says more than 00:00 does.
    return changed ? (clock.startsWith("00:00") ? today : `${today} ${clock}`) : clock;
  });
}

/** The name of the zone that times are shown in. */
export function zoneName() {
  return zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** A Date whose own getters give the time in the zone, for uPlot's placing of ticks. */
export function zonedDate(seconds) {
  const date = new Date(seconds * 1000);
  return zone ? window.uPlot.tzDate(date, zone) : date;
}
