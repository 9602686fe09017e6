// The page: which board, which time, which variables; all of it is in the address.

import { showBoard } from "panels/board.js";
import { h, later, put } from "panels/dom.js";
import { anchor, setParameters } from "panels/links.js";
import { showReport } from "panels/report.js";
import { Live } from "panels/source.js";
import { text } from "panels/texts.js";
import { setZone } from "panels/times.js";
import { firstTheme, refreshPicker, themeButton, timePicker, variableControls } from "panels/toolbar.js";

const app = document.getElementById("app");
const SECONDS = { s: 1, m: 60, h: 3600, d: 86400 };

firstTheme();
const recorded = document.getElementById("recorded");
const runbook = /^\/runbooks(?:\/([\w.-]*))?/.exec(location.pathname);
const uid = /^\/d\/([\w-]+)/.exec(location.pathname)?.[1];
if (recorded) showReport(app, JSON.parse(recorded.textContent));
else if (runbook) runbooks(runbook[1]);
else if (uid) new Page(uid).start();
else list();

/** The boards that have all tags of a link, asked for when somebody opens the list. */
function otherBoards(link, source) {
  const box = h("ul", { class: "pop-box boards" });
  const list = h("details", { class: "pop" }, h("summary", { class: "tool" }, link.title), box);
  list.addEventListener("toggle", async () => {
    if (!list.open) return;
    try {
      const { boards } = await source.boards();
      const shown = boards.filter((board) => link.tags.every((tag) => board.tags.includes(tag)));
      put(box, shown.map((board) => h("li", {}, anchor({ title: board.title, url: board.path, keepTime: link.keepTime }))));
    } catch (error) {
      put(box, h("li", { role: "alert" }, error.message));
    }
  });
  return list;
}

function Page(name) {
  const source = new Live(name, parameters);
  const top = h("header", { class: "top" });
  const notes = h("div", { class: "page-notes", "aria-live": "polite" });
  const main = h("main", { id: "board", tabindex: "-1" });
  let board = null;
  let shown = null;
  let events = [];
  let timer = 0;
  let every = "";

  /** What the address says; links and queries are given the same. */
  function parameters() {
    const found = new URLSearchParams();
    for (const [key, value] of new URLSearchParams(location.search)) if (key === "from" || key === "to" || key.startsWith("var-")) found.append(key, value);
    return found;
  }
  function range() {
    const given = parameters();
    return { from: given.get("from") ?? board?.time.from ?? "now-6h", to: given.get("to") ?? board?.time.to ?? "now" };
  }
  function go(change) {
    const query = new URLSearchParams(location.search);
    change(query);
    history.pushState(null, "", `${location.pathname}?${query}`);
    load();
  }
  const setRange = (from, to) => go((query) => {
    query.set("from", String(from));
    query.set("to", String(to));
  });
  const setVariable = (variable, values) => go((query) => {
    query.delete(`var-${variable}`);
    for (const value of values.length ? values : [""]) query.append(`var-${variable}`, value);
  });

  const page = {
    source,
    zoom: (from, to) => setRange(Math.round(from * 1000), Math.round(to * 1000)),
    events: () => events,
    shared: () => board.sharedCrosshair,
  };

  async function load() {
    source.stop();
    try {
      const fresh = await source.board();
      const same = board && shown && JSON.stringify(fresh.rows) === JSON.stringify(board.rows);
      board = fresh;
      setZone(board.timezone);
      document.title = `${board.title} – agl panels`;
      tools();
      if (same) shown.refresh();
      else {
        shown?.destroy();
        shown = showBoard(main, board, page);
      }
      put(notes);
      loadEvents();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!board) put(top, h("h1", {}, "agl panels"), anchor({ title: "All dashboards", url: "/dashboards" }), themeButton(() => {}));
      put(notes, h("p", { class: "note error", role: "alert" }, `⚠ ${error.message}`));
    }
    schedule();
  }
  async function loadEvents() {
    try {
      const found = await source.annotations();
      const changed = JSON.stringify(found.events) !== JSON.stringify(events);
      events = found.events;
      put(notes, found.problems.map((problem) => h("p", { class: "note warn" }, problem)));
      if (changed) shown.redraw();
    } catch (error) {
      if (error.name !== "AbortError") put(notes, h("p", { class: "note warn" }, `annotations: ${error.message}`));
    }
  }
  function schedule() {
    clearTimeout(timer);
    const match = /^(\d+)([smhd])$/.exec(every);
    if (match && range().to.startsWith("now")) timer = setTimeout(() => (document.hidden ? schedule() : load()), Number(match[1]) * SECONDS[match[2]] * 1000);
  }
  function tools() {
    const { from, to } = range();
    const open = top.querySelector("details.pop[open]");
    // Somebody is choosing something: the bar is left as it is until the next refresh.
    if (open && top.dataset.query === location.search) return;
    top.dataset.query = location.search;
    const half = (board.to - board.from) / 2;
    const shift = (by) => setRange(Math.round((board.from + by) * 1000), Math.round((board.to + by) * 1000));
    const offered = Array.isArray(board.refreshIntervals) ? board.refreshIntervals : null;
    put(
      top,
      h("div", { class: "top-line" }, h("nav", { "aria-label": "Dashboards" }, anchor({ title: "Dashboards", url: "/dashboards" }), h("span", { "aria-hidden": "true" }, " / ")), h("h1", { title: board.description }, board.title), h("div", { class: "spacer" }), h("div", { class: "tools" }, h("button", { type: "button", class: "tool", title: "Half a range back", "aria-label": "Half a range back", onclick: () => shift(-half) }, "‹"), timePicker({ from, to }, setRange), h("button", { type: "button", class: "tool", title: "Half a range on", "aria-label": "Half a range on", onclick: () => shift(half) }, "›"), h("button", { type: "button", class: "tool", title: "Zoom out (z)", "aria-label": "Zoom out", onclick: zoomOut }, "⊖"), refreshPicker(every, offered, setRefresh, load), themeButton(() => shown.redraw()))),
      h("div", { class: "variables" }, variableControls(board.variables, setVariable), h("div", { class: "board-links" }, board.links.map((link) => (link.type === "dashboards" ? otherBoards(link, source) : anchor(link))))),
    );
  }
  function zoomOut() {
    const [middle, length] = [(board.from + board.to) / 2, board.to - board.from];
    const end = Math.min(middle + length, Math.max(board.to, Date.now() / 1000));
    setRange(Math.round((end - 2 * length) * 1000), Math.round(end * 1000));
  }
  function setRefresh(value) {
    every = value;
    schedule();
  }
  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    if (event.key === "r") load();
    else if (event.key === "z") zoomOut();
    else if (event.key === "t") {
      top.querySelector("button[aria-label*='theme']").click();
    } else if (event.key === "Escape") document.querySelectorAll("details.pop[open], details.info[open]").forEach((box) => (box.open = false));
  }

  this.start = async () => {
    put(app, h("a", { class: "skip", href: "#board" }, "Skip to the panels"), top, notes, main);
    setParameters(() => {
      const found = parameters();
      const { from, to } = range();
      found.set("from", from);
      found.set("to", to);
      return found;
    });
    addEventListener("popstate", load);
    addEventListener("keydown", keys);
    document.addEventListener("visibilitychange", later(200, () => document.hidden || schedule()));
    await load();
    every = new URLSearchParams(location.search).get("refresh") ?? board?.refresh ?? "";
    if (board) tools();
    schedule();
  };
}

/** A page with a heading and what `fill` puts below it; what fails is told there. */
async function plain(title, fill) {
  document.title = `${title} – agl panels`;
  const main = h("main", { class: "list" });
  const ways = [["Dashboards", "/dashboards"], ["Runbooks", "/runbooks"]].filter(([, url]) => url !== location.pathname);
  put(app, h("header", { class: "top" }, h("div", { class: "top-line" }, h("h1", {}, title), h("div", { class: "spacer" }), h("nav", { class: "board-links", "aria-label": "Pages" }, ways.map(([name, url]) => anchor({ title: name, url }))), themeButton(() => {}))), main);
  try {
    await fill(main);
  } catch (error) {
    put(main, h("p", { class: "note error", role: "alert" }, `⚠ ${error.message}`));
  }
}

function ask(path) {
  return new Live("").ask(path);
}

/** The list of all dashboards. */
function list() {
  return plain("Dashboards", async (main) => {
    const { boards, problem } = await ask("/api/boards");
    put(main, problem ? h("p", { class: "note error" }, `⚠ ${problem}`) : null, h("ul", { class: "cards" }, boards.map(card)));
  });
}

/** One runbook, or the list of all: where an alert's link leads. */
function runbooks(name) {
  return plain(name || "Runbooks", async (main) => {
    if (name) {
      const { text: content } = await ask(`/api/runbooks/${encodeURIComponent(name)}`);
      text({ title: name, options: { content } }, main);
    } else {
      const { runbooks: names } = await ask("/api/runbooks");
      put(main, names.length ? h("ul", { class: "cards" }, names.map((one) => h("li", { class: "card" }, anchor({ title: one, url: `/runbooks/${one}` })))) : h("p", { class: "quiet" }, "There are no runbooks here."));
    }
  });
}

function card(board) {
  if (board.problem) return h("li", { class: "card failed" }, h("strong", {}, board.title), h("p", {}, `⚠ ${board.problem}`));
  return h("li", { class: "card" }, h("a", { href: board.path }, board.title), h("p", {}, board.description), h("p", { class: "quiet" }, board.tags.join(", ")));
}
