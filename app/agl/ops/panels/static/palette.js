// Grafana's colours, and the care that each can be seen on the background it is drawn on.

const HUES = {
  red: ["#FFA6B0", "#FF7383", "#F2495C", "#E02F44", "#C4162A"],
  orange: ["#FFCB7D", "#FFB357", "#FF9830", "#FF780A", "#FA6400"],
  yellow: ["#FFF899", "#FFEE52", "#FADE2A", "#F2CC0C", "#E0B400"],
  green: ["#C8F2C2", "#96D98D", "#73BF69", "#56A64B", "#37872D"],
  blue: ["#C0D8FF", "#8AB8FF", "#5794F2", "#3274D9", "#1F60C4"],
  purple: ["#DEB6F2", "#CA95E5", "#B877D9", "#A352CC", "#8F3BB8"],
};
const SHADES = ["super-light-", "light-", "", "semi-dark-", "dark-"];
const NAMED = { white: "#FFFFFF", black: "#000000", gray: "#8E8E8E", grey: "#8E8E8E", transparent: "transparent" };
for (const [hue, colors] of Object.entries(HUES)) SHADES.forEach((shade, i) => (NAMED[shade + hue] = colors[i]));

// Ordered so that neighbours differ in hue and in lightness, which those who see few hues need.
const CLASSIC = [
  "#73BF69", "#F2CC0C", "#5794F2", "#FF780A", "#B877D9", "#F2495C", "#6ED0E0", "#FFA6B0",
  "#37872D", "#E0B400", "#8AB8FF", "#FA6400", "#CA95E5", "#C4162A", "#37A2B5", "#C8F2C2",
  "#FFEE52", "#1F60C4", "#FFCB7D", "#8F3BB8", "#FF7383", "#96D98D", "#C0D8FF", "#DEB6F2",
  "#7EB26D", "#EAB839", "#EF843C", "#1F78C1", "#BA43A9", "#705DA0", "#508642", "#CCA300",
];
const CONTINUOUS = {
  "continuous-GrYlRd": ["green", "yellow", "red"], "continuous-RdYlGr": ["red", "yellow", "green"],
  "continuous-BlYlRd": ["dark-blue", "super-light-yellow", "dark-red"], "continuous-YlRd": ["super-light-yellow", "dark-red"],
  "continuous-BlPu": ["blue", "purple"], "continuous-YlBl": ["super-light-yellow", "dark-blue"],
  "continuous-blues": ["#0b1a33", "super-light-blue"], "continuous-reds": ["#330b0b", "super-light-red"],
  "continuous-greens": ["#0b330b", "super-light-green"], "continuous-purples": ["#220b33", "super-light-purple"],
  "continuous-viridis": ["#440154", "#31688e", "#35b779", "#fde725"], "continuous-magma": ["#000004", "#721f81", "#f1605d", "#fcfdbf"],
  "continuous-plasma": ["#0d0887", "#9c179e", "#ed7953", "#f0f921"], "continuous-inferno": ["#000004", "#781c6d", "#ed6925", "#fcffa4"], "continuous-cividis": ["#00204d", "#575d6d", "#a59c74", "#ffea46"],
};
const SCHEMES = {
  Oranges: ["#2b1500", "#a63603", "#fd8d3c", "#fff5eb"], Blues: ["#08162b", "#2171b5", "#9ecae1", "#f7fbff"], Greens: ["#03150a", "#238b45", "#a1d99b", "#f7fcf5"], Reds: ["#2b0308", "#cb181d", "#fc9272", "#fff5f0"],
  Spectral: ["#5e4fa2", "#66c2a5", "#fee08b", "#f46d43", "#9e0142"], Turbo: ["#30123b", "#4675ed", "#1bcfd4", "#a4fc3c", "#fb8022", "#7a0403"],
  Viridis: CONTINUOUS["continuous-viridis"], Magma: CONTINUOUS["continuous-magma"], Plasma: CONTINUOUS["continuous-plasma"], Inferno: CONTINUOUS["continuous-inferno"],
};

/** The background charts are drawn on, in the theme in force. */
export function background() {
  return isLight() ? "#FFFFFF" : "#181B1F";
}

export function isLight() {
  return document.documentElement.dataset.theme === "light";
}

/** A colour name of Grafana's as CSS. What cannot be a colour becomes grey. */
export function css(name) {
  if (name === "text") return isLight() ? "#1F2329" : "#E3E5EA";
  if (Object.hasOwn(NAMED, name ?? "")) return NAMED[name];
  return /^(#[0-9a-f]{3,8}|rgba?\([\d\s.,%]+\)|hsla?\([\d\s.,%deg]+\))$/i.test(name ?? "") ? name : "#8E8E8E";
}

export const classic = (index) => CLASSIC[index % CLASSIC.length];

/** The same name always has the same colour. */
export function byName(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return classic(sum);
}

/** A colour of a gradient at 0..1. */
export function continuous(mode, share) {
  return blend((CONTINUOUS[mode] ?? CONTINUOUS["continuous-GrYlRd"]).map(css), share);
}

/** A heatmap's colour at 0..1. Schemes run from dark to light, as the dark theme needs it. */
export function scheme(name, share, reverse) {
  const colors = SCHEMES[name] ?? SCHEMES.Oranges;
  return blend(colors, reverse !== isLight() ? 1 - share : share);
}

function blend(colors, share) {
  const at = Math.min(Math.max(share, 0), 1) * (colors.length - 1);
  const low = Math.min(Math.floor(at), colors.length - 2);
  const [a, b] = [rgb(colors[low]), rgb(colors[low + 1])];
  return hex(a.map((value, i) => value + (b[i] - value) * (at - low)));
}

export function rgb(color) {
  if (color.startsWith("#")) {
    const long = color.length < 6 ? [...color.slice(1)].map((c) => c + c).join("") : color.slice(1);
    return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16));
  }
  const parts = color.match(/[\d.]+/g)?.map(Number) ?? [];
  return parts.length >= 3 ? parts.slice(0, 3) : [142, 142, 142];
}

const hex = (parts) => `#${parts.map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;

/** A colour with an opacity of 0..1. */
export function faded(color, opacity) {
  return `rgba(${rgb(color).join(", ")}, ${opacity})`;
}

/** What a colour with an opacity looks like on the background of charts. */
export function over(color, opacity) {
  const [top, below] = [rgb(color), rgb(background())];
  return hex(top.map((part, i) => part * opacity + below[i] * (1 - opacity)));
}

function luminance(color) {
  const [r, g, b] = rgb(color).map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Contrast of two colours as WCAG defines it, 1 to 21. */
export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The colour, made lighter or darker until it can be seen: 3 for lines, 4.5 for text. */
export function visible(color, needed = 3, on = background()) {
  const target = luminance(on) < 0.4 ? [255, 255, 255] : [0, 0, 0];
  const own = rgb(color);
  for (let share = 0; share < 1; share += 0.05) {
    const tried = hex(own.map((part, i) => part + (target[i] - part) * share));
    if (contrast(tried, on) >= needed) return tried;
  }
  return hex(target);
}

/** Black or white, whichever reads better on a colour. */
export function textOn(color) {
  return contrast("#FFFFFF", color) >= contrast("#111217", color) ? "#FFFFFF" : "#111217";
}
