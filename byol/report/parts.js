// Small parts that the rest of the page is made of: elements, numbers in words, tiles, the tooltip, the theme.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");

// Text always arrives as text nodes: nothing here ever reads HTML from the data.
function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (name, properties, ...children) => fill(document.createElement(name), properties, children);
const svg = (name, properties, ...children) => fill(document.createElementNS(SVG, name), properties, children);

// A name of the user's: isolated, so that right-to-left marks cannot turn the rest of the line around, and with
// control characters spelled out.
function plain(text) {
  return String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
  );
}
const name = (text) => el("bdi", {}, plain(text));

const round = (value, digits = 3) => Number(value.toPrecision(digits));
function figure(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6))
    return value
      .toExponential(2)
      .replace("e+", "e")
      .replace(/\.?0+e/, "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(round(value, size >= 100 ? 4 : 3));
}
const percent = (value) =>
  value === null || value === undefined ? "–" : `${(100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)} %`;
const exactly = (value) => `${(100 * value).toFixed(2)}%`;
const count = (value) => Number(value || 0).toLocaleString("en");
function duration(seconds) {
  if (!(seconds > 0)) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
function shown(value) {
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value !== "number") return plain(value);
  return value !== 0 && Math.abs(value) < 1e-3 ? String(round(value, 6).toExponential()) : String(round(value, 6));
}
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const runColour = (index) => `var(--run${index % 6})`;
function swatch(colour) {
  const node = el("span", { class: "swatch", "aria-hidden": "true" });
  node.style.background = colour;
  return node;
}

// One of several: a row of buttons, the pressed one chosen.
function segments(label, choices, chosen, choose) {
  const buttons = choices.map(([value, text]) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(value === chosen),
        title: plain(text),
        onclick: () => {
          buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(choices[i][0] === value)));
          choose(value);
        },
      },
      plain(text),
    ),
  );
  return el("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

function heading(id, title, lead, ...extra) {
  return el(
    "div",
    { class: "head" },
    el("h2", { id: `${id}-title` }, title),
    extra,
    lead && el("p", { class: "lead" }, lead),
  );
}

// Sheets of tiles: pages are decoded once; canvases that wait for a page are drawn when it is there.
class Sheet {
  constructor(record) {
    Object.assign(this, record);
    this.waiting = new Set();
    this.images = record.pages.map(() => null);
    record.pages.forEach((page, place) => {
      const image = new Image();
      image.addEventListener("load", () => {
        // On a canvas it stays decoded.
        const kept = el("canvas", { width: image.naturalWidth, height: image.naturalHeight });
        kept.getContext("2d").drawImage(image, 0, 0);
        this.images[place] = kept;
        this.waiting.forEach((draw) => draw());
      });
      image.src = "data:image/jpeg;base64," + page;
    });
  }
  put(context, index, x, y, width, height) {
    const image = this.images[Math.floor(index / this.each)];
    if (!image) return false;
    const place = index % this.each,
      side = this.side;
    context.drawImage(
      image,
      (place % this.columns) * side,
      Math.floor(place / this.columns) * side,
      side,
      side,
      x,
      y,
      width,
      height,
    );
    return true;
  }
  tile(index, label) {
    const node = el("canvas", {
      width: this.side,
      height: this.side,
      role: "img",
      "aria-label": plain(label),
      class: this.side < 48 ? "crisp" : null,
    });
    const draw = () => {
      if (this.put(node.getContext("2d"), index, 0, 0, this.side, this.side)) this.waiting.delete(draw);
    };
    this.waiting.add(draw);
    draw();
    return node;
  }
}

function showTip(x, y, ...children) {
  tip.replaceChildren(...children.flat(9).filter(Boolean));
  tip.hidden = false;
  placeTip(x, y);
}
function placeTip(x, y) {
  const box = tip.getBoundingClientRect(),
    gap = 14;
  const left = x + gap + box.width > innerWidth - 6 ? x - gap - box.width : x + gap;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, Math.min(y + gap, innerHeight - box.height - 6))}px`;
}
const hideTip = () => {
  tip.hidden = true;
};
function explained(node, text) {
  node.addEventListener("pointerenter", (event) => showTip(event.clientX, event.clientY, el("span", {}, text)));
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("focus", () => {
    const box = node.getBoundingClientRect();
    showTip(box.right, box.bottom, el("span", {}, text));
  });
  node.addEventListener("blur", hideTip);
  return node;
}

// The theme follows the system until the button is pressed.
const themed = new Set();
const dark = matchMedia("(prefers-color-scheme: dark)");
let wanted = null;
try {
  wanted = localStorage.getItem("byol-theme");
} catch {
  wanted = null;
}
const isDark = () => (wanted ? wanted === "dark" : dark.matches);
function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  document.getElementById("theme").textContent = isDark() ? "Light" : "Dark";
  document.getElementById("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  themed.forEach((redraw) => redraw());
}
document.getElementById("theme").addEventListener("click", () => {
  wanted = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("byol-theme", wanted);
  } catch {
    /* a page on disk may not keep anything */
  }
  applyTheme();
});
dark.addEventListener("change", applyTheme);

// What all sections need.
const RUNS = DATA.runs,
  several = RUNS.length > 1;
const SHEETS = DATA.galleries.map((gallery) => new Sheet(gallery.sheet));
const titled = (run, index) =>
  el("span", { class: "legend" }, el("span", {}, several && swatch(runColour(index)), name(run.name)));

function table(heads, rows, numbers = heads.length, kind = null) {
  const side = (i) => (i >= numbers ? "number" : null);
  return el(
    "table",
    { class: kind },
    heads.length
      ? el(
          "thead",
          {},
          el(
            "tr",
            {},
            heads.map((head, i) => el("th", { class: side(i), scope: "col" }, head)),
          ),
        )
      : null,
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          { class: row.kind },
          row.map((cell, i) => el("td", { class: side(i) }, cell)),
        ),
      ),
    ),
  );
}
const absent = (what) => el("p", { class: "empty" }, what);
