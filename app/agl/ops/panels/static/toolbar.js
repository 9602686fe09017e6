// The bar above a board: variables, time range, refresh and theme.

import { h, put } from "panels/dom.js";
import { moment, zoneName } from "panels/times.js";

const RANGES = [
  ["now-5m", "5 minutes"], ["now-15m", "15 minutes"], ["now-30m", "30 minutes"], ["now-1h", "1 hour"], ["now-3h", "3 hours"],
  ["now-6h", "6 hours"], ["now-12h", "12 hours"], ["now-24h", "24 hours"], ["now-2d", "2 days"], ["now-7d", "7 days"], ["now-30d", "30 days"],
];
const REFRESH = ["", "5s", "10s", "30s", "1m", "5m", "15m"];
const ALL = "$__all";

/** A button with a box that opens below it; Escape and a click elsewhere close it. */
function popover(label, title, content, extra = "") {
  const box = h("details", { class: `pop ${extra}` }, h("summary", { title, role: "button" }, label), h("div", { class: "pop-box" }, content));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    event.stopPropagation();
    box.open = false;
    box.querySelector("summary").focus();
  });
  return box;
}

document.addEventListener("pointerdown", (event) => {
  for (const box of document.querySelectorAll("details.pop[open], details.info[open]")) if (!box.contains(event.target)) box.open = false;
});

/** The name of a range: Last 1 hour, or both its ends. */
export function rangeName(from, to) {
  const known = to === "now" && RANGES.find(([value]) => value === from);
  if (known) return `Last ${known[1]}`;
  return `${shown(from)} to ${shown(to)}`;
}

/** Epoch milliseconds, as addresses have them, as a date and time. */
const shown = (text) => (/^\d{10,}$/.test(text) ? moment(Math.floor(Number(text) / 1000)) : text);

/** The time picker; `set(from, to)` is called with what was chosen. */
export function timePicker({ from, to }, set) {
  const inputs = { from: h("input", { id: "time-from", value: shown(from), autocomplete: "off", spellcheck: "false" }), to: h("input", { id: "time-to", value: shown(to), autocomplete: "off", spellcheck: "false" }) };
  const form = h(
    "form",
    {
      class: "time-form",
      onsubmit: (event) => {
        event.preventDefault();
        set(typed(inputs.from.value), typed(inputs.to.value));
      },
    },
    h("label", { for: "time-from" }, "From"),
    inputs.from,
    h("label", { for: "time-to" }, "To"),
    inputs.to,
    h("p", { class: "quiet" }, `now-6h, now/d, or a time such as 2026-05-01 12:00:00 (${zoneName()})`),
    h("button", { type: "submit", class: "primary" }, "Apply"),
  );
  const list = h("ul", { class: "choices" }, RANGES.map(([value, name]) => h("li", {}, h("button", { type: "button", "aria-pressed": String(value === from && to === "now"), onclick: () => set(value, "now") }, `Last ${name}`))));
  return popover([h("span", { "aria-hidden": "true" }, "◷ "), rangeName(from, to)], "Time range", h("div", { class: "time-box" }, form, list), "time-picker");
}

/** What somebody typed as a time; a plain date and time is in the zone that is shown. */
function typed(text) {
  const plain = /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?))?$/.exec(text.trim());
  if (!plain) return text.trim();
  const given = `${plain[1]}T${plain[2] ?? "00:00:00"}`;
  const date = new Date(zoneName() === "UTC" ? `${given}Z` : given);
  return Number.isNaN(date.getTime()) ? text.trim() : String(date.getTime());
}

/** The refresh interval and a button to refresh now. */
export function refreshPicker(current, offered, set, now) {
  const known = [...new Set([...(offered?.length ? ["", ...offered] : REFRESH), current])];
  const select = h("select", { "aria-label": "Refresh every", title: "Refresh every", onchange: (event) => set(event.target.value) }, known.map((value) => h("option", { value, selected: value === current }, value || "Off")));
  return h("div", { class: "joined" }, h("button", { type: "button", class: "tool", title: "Refresh now (r)", "aria-label": "Refresh now", onclick: now }, "⟳"), select);
}

/** One control for each variable that is not hidden; `set(name, values)` is called with a choice. */
export function variableControls(variables, set) {
  return variables.filter((variable) => !variable.hidden && !(variable.kind === "datasource" && variable.options.length < 2)).map((variable) => control(variable, set));
}

function control(variable, set) {
  const { name, label, problem } = variable;
  const warning = problem ? h("span", { class: "variable-problem", role: "alert", title: problem }, "⚠ ", h("span", {}, problem)) : null;
  if (variable.kind === "textbox") {
    const input = h("input", { id: `var-${name}`, value: variable.chosen[0] ?? "", onchange: (event) => set(name, [event.target.value]) });
    return h("div", { class: "variable" }, h("label", { for: `var-${name}` }, label), input, warning);
  }
  if (variable.multi) return h("div", { class: "variable" }, h("span", { class: "variable-label" }, label), multi(variable, set), warning);
  const options = [...(variable.includeAll ? [{ value: ALL, text: "All" }] : []), ...variable.options];
  for (const value of variable.chosen) if (!options.some((option) => option.value === value)) options.push({ value, text: value });
  const select = h("select", { id: `var-${name}`, onchange: (event) => set(name, [event.target.value]) }, options.map(({ value, text }) => h("option", { value, selected: variable.chosen.includes(value) }, text)));
  return h("div", { class: "variable" }, h("label", { for: `var-${name}` }, label), select, warning);
}

function multi(variable, set) {
  const chosen = new Set(variable.chosen);
  const extra = variable.chosen.filter((value) => value !== ALL && !variable.options.some((option) => option.value === value)).map((value) => ({ value, text: value }));
  const options = [...(variable.includeAll ? [{ value: ALL, text: "All" }] : []), ...variable.options, ...extra];
  const shown = options.filter(({ value }) => chosen.has(value)).map(({ text }) => text);
  const boxes = options.map(({ value, text }) => {
    const box = h("input", { type: "checkbox", value, checked: chosen.has(value) });
    box.addEventListener("change", () => {
      // All stands alone: to choose it drops the others, to choose another drops it.
      if (value === ALL && box.checked) chosen.clear();
      else chosen.delete(ALL);
      if (box.checked) chosen.add(value);
      else chosen.delete(value);
      for (const [i, other] of boxes.entries()) other.firstChild.checked = chosen.has(options[i].value);
    });
    return h("label", { class: "choice" }, box, h("span", {}, text || "(empty)"));
  });
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${variable.label}`, oninput: (event) => boxes.forEach((box) => (box.hidden = !box.textContent.toLowerCase().includes(event.target.value.toLowerCase()))) });
  const apply = h("button", { type: "button", class: "primary", onclick: () => set(variable.name, chosen.size ? [...chosen] : variable.includeAll ? [ALL] : []) }, "Apply");
  const label = shown.length > 2 ? `${shown.length} selected` : shown.join(" + ") || "none";
  return popover(label, variable.label, [boxes.length > 8 ? filter : null, h("div", { class: "choices" }, boxes), apply], "variable-pop");
}

/** Switches between dark and light; `changed` draws anew. */
export function themeButton(changed) {
  const button = h("button", { type: "button", class: "tool", onclick: press });
  function press() {
    setTheme(theme() === "light" ? "dark" : "light", true);
    label();
    changed();
  }
  function label() {
    const other = theme() === "light" ? "dark" : "light";
    put(button, theme() === "light" ? "☾" : "☀");
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
    button.title = `Switch to the ${other} theme (t)`;
  }
  label();
  return button;
}

export const theme = () => document.documentElement.dataset.theme;

/** Sets the theme; remembers it where the browser allows that. */
export function setTheme(name, remember) {
  document.documentElement.dataset.theme = name === "light" ? "light" : "dark";
  try {
    if (remember) localStorage.setItem("agl-panels-theme", name);
  } catch {
    // A file opened from disk may have no storage; the theme then lasts as long as the page.
  }
}

/** The theme of the address, else the remembered one, else the system's. */
export function firstTheme() {
  const wished = new URLSearchParams(location.search).get("theme");
  let kept = null;
  try {
    kept = localStorage.getItem("agl-panels-theme");
  } catch {
    kept = null;
  }
  const system = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  setTheme(["light", "dark"].includes(wished) ? wished : (kept ?? system), false);
}
