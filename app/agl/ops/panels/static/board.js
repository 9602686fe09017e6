// A board's rows and panels on the grid, drawn when they come into sight.

import { h, put } from "panels/dom.js";
import { PanelView } from "panels/panel.js";

/** Shows a board in `root`. `page` has source, zoom and events; returns {refresh, redraw, destroy}. */
export function showBoard(root, board, page, { all = false } = {}) {
  const views = new Map();
  const waiting = new Set();
  const observer = all ? null : new IntersectionObserver((entries) => entries.forEach((entry) => seen(entry)), { rootMargin: "300px" });

  function seen({ target, isIntersecting }) {
    const view = views.get(target.dataset.key);
    if (!view) return;
    view.inSight = isIntersecting;
    if (isIntersecting && waiting.delete(view)) view.refresh();
  }
  function add(panel) {
    const view = new PanelView(panel, page);
    views.set(panel.key, view);
    const { x, y, w, h: high } = panel.place;
    view.element.style.setProperty("--x", x + 1);
    view.element.style.setProperty("--y", y + 1);
    view.element.style.setProperty("--w", w);
    view.element.style.setProperty("--h", high);
    view.element.classList.toggle("small", w <= 8 && high <= 8 && ["stat", "gauge", "singlestat"].includes(panel.type));
    if (observer) {
      waiting.add(view);
      observer.observe(view.element);
    } else {
      view.refresh();
    }
    return view.element;
  }
  function row(content) {
    const grid = h("div", { class: "grid" });
    if (content.title === null) {
      put(grid, content.panels.map(add));
      return grid;
    }
    const section = h("details", { class: "row", open: !content.collapsed }, h("summary", {}, h("h2", {}, content.title), h("span", { class: "quiet" }, `${content.panels.length} panel${content.panels.length === 1 ? "" : "s"}`)), grid);
    let filled = false;
    const fill = () => {
      if (filled || !section.open) return;
      filled = true;
      put(grid, content.panels.map(add));
    };
    section.addEventListener("toggle", fill);
    fill();
    return section;
  }

  put(root, board.rows.map(row));
  if (!board.rows.length) put(root, h("p", { class: "message" }, "This dashboard has no panels."));
  return {
    refresh() {
      for (const view of views.values()) {
        if (observer && !view.inSight) waiting.add(view);
        else view.refresh();
      }
    },
    redraw: () => views.forEach((view) => (view.data ? view.draw() : null)),
    destroy() {
      observer?.disconnect();
      views.forEach((view) => view.destroy());
    },
  };
}
