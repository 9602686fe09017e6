// Links of boards, panels and fields, with the page's time and variables where they ask for them.

import { h, safeUrl } from "panels/dom.js";

let current = () => new URLSearchParams();

/** `give` returns the parameters of the page: from, to and the variables. */
export function setParameters(give) {
  current = give;
}

/** The address of a link; ${__url_time_range} and $__all_variables are those of the page. */
export function address(link) {
  const page = current();
  const time = ["from", "to"].filter((name) => page.has(name)).map((name) => `${name}=${encodeURIComponent(page.get(name))}`).join("&");
  const variables = [...page].filter(([name]) => name.startsWith("var-")).map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join("&");
  let url = String(link.url ?? "").replace(/\$\{__url_time_range\}|\$__url_time_range/g, time).replace(/\$\{__all_variables(?::\w+)?\}|\$__all_variables/g, variables);
  for (const [wanted, text] of [[link.keepTime, time], [link.includeVars, variables]]) {
    if (wanted && text) url += (url.includes("?") ? "&" : "?") + text;
  }
  return safeUrl(url);
}

/** A link as an element; null when its address may not be opened. */
export function anchor(link, extra) {
  const url = address(link);
  if (!url) return null;
  const outside = /^https?:/i.test(url) && !url.startsWith(location.origin + "/");
  return h("a", { href: url, class: extra, title: link.tooltip || null, ...(link.blank || outside ? { target: "_blank", rel: "noopener noreferrer" } : {}) }, link.title, link.blank || outside ? h("span", { class: "outside", "aria-label": " (opens a new tab)" }, " ↗") : null);
}

/** An element that opens a value's link, if it has one; further links are listed after it. */
export function linked(element, links) {
  const usable = (links ?? []).map((link) => [link, address(link)]).filter(([, url]) => url);
  if (!usable.length) return element;
  const [[first, url], ...rest] = usable;
  return h("div", { class: "linked" }, h("a", { href: url, class: "cover", title: first.title, ...(first.blank ? { target: "_blank", rel: "noopener noreferrer" } : {}) }, element), rest.map(([link]) => anchor(link, "small")));
}
