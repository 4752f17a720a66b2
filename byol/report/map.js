// The map: every image a point, near each other when the encoder finds them alike. Drawn on one canvas, only when
// something has changed, so that thousands of points move smoothly.
const LIGHT = [
  "#2456c7",
  "#d9480f",
  "#0f8a6d",
  "#a21caf",
  "#c28a00",
  "#0891b2",
  "#b91c5c",
  "#5b7a12",
  "#6d4bd8",
  "#8a5a3c",
  "#64748b",
  "#e0559a",
];
const DARK = [
  "#8fb0ff",
  "#ff9d6b",
  "#4fd1ae",
  "#e29af0",
  "#f2cc60",
  "#56d0ea",
  "#ff8fb3",
  "#b7d65c",
  "#b6a2ff",
  "#d6ab8a",
  "#aab6c6",
  "#ffa6d2",
];
function colourOf(group) {
  const base = isDark() ? DARK : LIGHT;
  if (group < base.length) return base[group];
  const hue = (group * 137.508) % 360; // more groups than colours: golden angles around the wheel
  return `hsl(${hue.toFixed(0)} 60% ${isDark() ? 70 : 42}%)`;
}
const MOST_CLASSES = 60;

class Atlas {
  constructor(runs, sheets) {
    this.runs = runs.filter((run) => run.map);
    this.sheets = sheets;
    this.chosen = null;
    this.over = null;
    this.only = null;
    this.match = null;
    this.pictures = true;
    this.pointers = new Map();
    this.moving = false;
    this.redraw = () => this.draw();
    this.world = el("canvas", {
      class: "world",
      tabindex: "0",
      role: "application",
      "aria-label":
        "Map of the images. Arrow keys walk from image to image, plus and minus zoom, 0 shows all, Escape lets go.",
    });
    this.panel = el("div", { class: "card panel", "aria-live": "polite" });
    this.classes = el("div", { class: "classes", role: "group", "aria-label": "Show one group" });
    this.how = el("div", { class: "how" });
    listen(this);
    this.use(this.runs[0]);
    themed.add(() => {
      this.listClasses();
      this.draw();
    });
    new ResizeObserver(() => this.resize()).observe(this.world);
  }
  use(run) {
    this.run = run;
    const gallery = run.map.gallery;
    if (this.gallery !== DATA.galleries[gallery]) {
      this.chosen = this.over = this.match = this.only = null;
    }
    this.gallery = DATA.galleries[gallery];
    this.sheet = this.sheets[gallery];
    this.sheet.waiting.add(this.redraw);
    this.size = this.gallery.names.length;
    this.by = this.gallery.labels && this.by !== "cluster" ? "label" : "cluster";
    this.measure();
    this.reset();
    this.index();
    this.regroup();
    this.describe();
  }
  group(i) {
    return this.by === "label" ? this.gallery.labels[i] : this.run.map.clusters[i];
  }
  groupName(group) {
    return this.by === "label" ? this.gallery.classes[group] : `cluster ${group + 1}`;
  }
  regroup() {
    this.only = null;
    this.members = new Map();
    for (let i = 0; i < this.size; i++) {
      const group = this.group(i);
      if (!this.members.has(group)) this.members.set(group, []);
      this.members.get(group).push(i);
    }
    this.listClasses();
    this.draw();
  }
  // A grid over the plane, for the point under the pointer.
  index() {
    this.cells = new Map();
    this.step = Math.max(0.02, 2 / Math.sqrt(this.size));
    for (let i = 0; i < this.size; i++) {
      const key = this.cell(this.px(i), this.py(i));
      if (!this.cells.has(key)) this.cells.set(key, []);
      this.cells.get(key).push(i);
    }
  }
  cell(x, y) {
    return Math.floor((x + 2) / this.step) * 4096 + Math.floor((y + 2) / this.step);
  }
  px(i) {
    return this.run.map.places[2 * i];
  }
  py(i) {
    return this.run.map.places[2 * i + 1];
  }
  reset() {
    this.scale = 1;
    this.cx = this.midX;
    this.cy = this.midY;
    this.draw();
  }
  measure() {
    const xs = [],
      ys = [];
    for (let i = 0; i < this.size; i++) {
      xs.push(this.px(i));
      ys.push(this.py(i));
    }
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    this.midX = (left + right) / 2;
    this.midY = (top + bottom) / 2;
    this.halfX = (right - left) / 2 || 1;
    this.halfY = (bottom - top) / 2 || 1;
  }
  resize() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.width = this.world.clientWidth;
    this.height = this.world.clientHeight;
    this.world.width = this.width * ratio;
    this.world.height = this.height * ratio;
    this.ratio = ratio;
    this.draw();
  }
  // The map fills the window; it has no directions of its own, so the shorter way may be stretched a little.
  unit() {
    return Math.min(this.room(this.height) / this.halfY, (this.room(this.width) / this.halfX) * 1.4) * this.scale;
  }
  stretch() {
    return Math.max(
      1 / 1.4,
      Math.min(
        1.4,
        this.room(this.width) /
          this.halfX /
          Math.min(this.room(this.height) / this.halfY, (this.room(this.width) / this.halfX) * 1.4),
      ),
    );
  }
  room(length) {
    return Math.max(length / 2 - 24, 20);
  }
  sx(i) {
    return this.width / 2 + (this.px(i) - this.cx) * this.unit() * this.stretch();
  }
  sy(i) {
    return this.height / 2 + (this.py(i) - this.cy) * this.unit();
  }
  wx(x) {
    return (x - this.width / 2) / (this.unit() * this.stretch()) + this.cx;
  }
  wy(y) {
    return (y - this.height / 2) / this.unit() + this.cy;
  }
  shown(i) {
    return (this.only === null || this.group(i) === this.only) && (this.match === null || this.match.has(i));
  }
  draw() {
    if (this.waits || !this.width) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.paint();
    });
  }
  paint() {
    const context = this.world.getContext("2d"),
      style = getComputedStyle(document.documentElement);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const crowd = Math.sqrt((this.width * this.height) / this.size);
    const radius = Math.max(1.6, Math.min(5, crowd * 0.13)) * Math.min(2.2, this.scale ** 0.35);
    const side = Math.max(14, Math.min(this.sheet.side * 1.5, crowd * 0.9 * this.scale)),
      frame = side < 24 ? 0.75 : 1.5;
    const inside = (x, y) => x > -side && y > -side && x < this.width + side && y < this.height + side;
    let pictures = this.pictures;
    if (pictures && this.moving) {
      let seen = 0;
      for (let i = 0; i < this.size; i++) seen += inside(this.sx(i), this.sy(i));
      pictures = seen < 400;
    }
    const square = this.moving && this.size > 1500,
      edge = radius * 1.77; // of a disc's area
    for (const dim of [true, false])
      for (const [group, members] of this.members) {
        context.fillStyle = colourOf(group);
        context.globalAlpha = dim ? 0.12 : pictures ? 1 : 0.88;
        context.beginPath();
        for (const i of members) {
          if (this.shown(i) === dim) continue;
          const x = this.sx(i),
            y = this.sy(i);
          if (!inside(x, y)) continue;
          if (pictures && !dim) {
            context.fillRect(x - side / 2 - frame, y - side / 2 - frame, side + 2 * frame, side + 2 * frame);
            if (this.sheet.put(context, i, x - side / 2, y - side / 2, side, side)) continue;
          }
          if (square) context.fillRect(x - edge / 2, y - edge / 2, edge, edge);
          else {
            context.moveTo(x + radius, y);
            context.arc(x, y, radius, 0, 7);
          }
        }
        context.fill();
      }
    context.globalAlpha = 1;
    const ink = style.getPropertyValue("--ink"),
      paper = style.getPropertyValue("--card");
    if (this.chosen !== null) {
      context.strokeStyle = ink;
      context.globalAlpha = 0.45;
      context.lineWidth = 1;
      context.beginPath();
      for (const j of this.run.map.nearest[this.chosen]) {
        context.moveTo(this.sx(this.chosen), this.sy(this.chosen));
        context.lineTo(this.sx(j), this.sy(j));
      }
      context.stroke();
      context.globalAlpha = 1;
      for (const j of this.run.map.nearest[this.chosen]) this.ring(context, j, radius + 2, paper, ink, 1.4);
    }
    for (const i of [this.over, this.chosen]) if (i !== null) this.ring(context, i, radius + 4, paper, ink, 2.2);
  }
  ring(context, i, radius, paper, ink, width) {
    const x = this.sx(i),
      y = this.sy(i);
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fillStyle = colourOf(this.group(i));
    context.fill();
    context.lineWidth = width + 2;
    context.strokeStyle = paper;
    context.stroke();
    context.lineWidth = width;
    context.strokeStyle = ink;
    context.stroke();
  }
  near(x, y, reach = 14) {
    let best = null,
      least = reach * reach;
    const spanX = reach / (this.unit() * this.stretch()),
      spanY = reach / this.unit();
    const wx = this.wx(x),
      wy = this.wy(y),
      step = this.step;
    for (let cx = Math.floor((wx - spanX + 2) / step); cx <= Math.floor((wx + spanX + 2) / step); cx++)
      for (let cy = Math.floor((wy - spanY + 2) / step); cy <= Math.floor((wy + spanY + 2) / step); cy++)
        for (const i of this.cells.get(cx * 4096 + cy) || []) {
          const far = (this.sx(i) - x) ** 2 + (this.sy(i) - y) ** 2;
          if (far < least && this.shown(i)) {
            best = i;
            least = far;
          }
        }
    return best;
  }
  // While it moves, what is slow to draw is drawn simply; it is made good a moment later.
  stir() {
    this.moving = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.moving = false;
      this.draw();
    }, 140);
    this.draw();
  }
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const wx = this.wx(x),
      wy = this.wy(y);
    this.scale = Math.max(0.7, Math.min(60, this.scale * factor));
    this.cx += wx - this.wx(x);
    this.cy += wy - this.wy(y);
    this.stir();
  }
  move(dx, dy) {
    this.cx -= dx / (this.unit() * this.stretch());
    this.cy -= dy / this.unit();
    this.stir();
  }
  hover(i, x, y) {
    if (i !== this.over) {
      this.over = i;
      this.draw();
    }
    if (i === null) {
      hideTip();
      return;
    }
    if (i === this.told && !tip.hidden) {
      placeTip(x, y);
      return;
    }
    this.told = i;
    const picture = this.sheet.tile(i, this.gallery.names[i]);
    picture.style.width = picture.style.height = "112px";
    showTip(
      x,
      y,
      picture,
      el("div", {}, name(this.gallery.names[i])),
      el("div", { class: "row soft" }, swatch(colourOf(this.group(i))), name(this.groupName(this.group(i)))),
    );
  }
  choose(i, follow = false) {
    this.chosen = i;
    if (i !== null && follow) {
      const x = this.sx(i),
        y = this.sy(i);
      if (x < 30 || y < 30 || x > this.width - 30 || y > this.height - 30) {
        this.cx = this.px(i);
        this.cy = this.py(i);
      }
    }
    this.describe();
    this.draw();
  }
  hint() {
    const fingers = matchMedia("(hover: none)").matches;
    const idle = fingers ? "tap an image · two fingers zoom" : "hover an image · click for its neighbours";
    const active = "scroll to zoom · drag to move · arrow keys walk · 0 shows all";
    this.how.textContent = !fingers && document.activeElement === this.world ? active : idle;
  }
  find(text) {
    const wish = text.trim().toLowerCase();
    const label = (i) => (this.gallery.labels ? this.gallery.classes[this.gallery.labels[i]].toLowerCase() : "");
    this.match = wish
      ? new Set(
          [...this.gallery.names.keys()].filter(
            (i) => this.gallery.names[i].toLowerCase().includes(wish) || label(i).includes(wish),
          ),
        )
      : null;
    if (this.match === null) this.reset();
    else if (this.match.size) this.frame([...this.match]);
    this.describe();
    this.draw();
  }
  // Moves and zooms so that these images fill the window; one alone is seen with its surroundings.
  frame(images) {
    const xs = images.map((i) => this.px(i)),
      ys = images.map((i) => this.py(i));
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    this.cx = (left + right) / 2;
    this.cy = (top + bottom) / 2;
    const wide = this.halfX / Math.max((right - left) / 2, 1e-6),
      high = this.halfY / Math.max((bottom - top) / 2, 1e-6);
    this.scale = Math.max(1, Math.min(wide, high, 8));
  }
  listClasses() {
    if (!this.members) return;
    const groups = [...this.members.keys()].sort((a, b) => a - b);
    const left = groups.length - MOST_CLASSES;
    this.classes.replaceChildren(
      ...groups.slice(0, MOST_CLASSES).map((group) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(this.only === group),
            onclick: () => {
              this.only = this.only === group ? null : group;
              this.listClasses();
              this.draw();
            },
          },
          swatch(colourOf(group)),
          name(this.groupName(group)),
          el("small", {}, count(this.members.get(group).length)),
        ),
      ),
      left > 0 ? `and ${left} more` : "",
    );
  }
  describe() {
    this.hint();
    const { names, labels, classes, total } = this.gallery,
      i = this.chosen;
    const found =
      this.match === null
        ? null
        : el("p", { class: "soft" }, `${count(this.match.size)} of ${count(this.size)} images match.`);
    const all =
      total > this.size
        ? `${count(this.size)} of ${count(total)} images, chosen evenly at random.`
        : `All ${count(this.size)} images.`;
    if (i === null) {
      this.panel.replaceChildren(
        ...[
          el("h3", {}, "No image chosen"),
          el(
            "p",
            { class: "soft" },
            `${all} Near each other means alike to the encoder; distances across the whole map mean little. Click an image to see its nearest by cosine, exact, in all dimensions.`,
          ),
          found,
          this.classes,
        ].filter(Boolean),
      );
      return;
    }
    const alike = labels ? this.run.map.nearest[i].filter((j) => labels[j] === labels[i]).length : null;
    this.panel.replaceChildren(
      ...[
        el(
          "div",
          { class: "chosen" },
          this.sheet.tile(i, names[i]),
          el(
            "div",
            {},
            el("b", {}, name(names[i])),
            labels && el("div", { class: "soft" }, "label ", name(classes[labels[i]])),
            el("div", { class: "soft" }, `cluster ${this.run.map.clusters[i] + 1}`),
            el("button", { type: "button", onclick: () => this.choose(null) }, "Let go"),
          ),
        ),
        el("h3", {}, "Nearest, by cosine"),
        alike === null
          ? null
          : el("p", { class: "soft" }, `${alike} of ${this.run.map.nearest[i].length} share its label.`),
        el(
          "div",
          { class: "near" },
          this.run.map.nearest[i].map((j, k) =>
            el(
              "button",
              {
                type: "button",
                "aria-label": `${plain(names[j])}, cosine ${this.run.map.cosines[i][k]}`,
                title: plain(names[j]),
                onclick: () => this.choose(j, true),
              },
              this.sheet.tile(j, names[j]),
              this.run.map.cosines[i][k].toFixed(2),
            ),
          ),
        ),
        found,
        this.classes,
      ].filter(Boolean),
    );
  }
}
