// Curves: small panels of one measure each, all runs overlaid, with one crosshair through all of them.
const PANELS = [
  { key: "loss", title: "Loss", about: "lower is closer to the target", smooth: true },
  { key: "lr", title: "Learning rate", about: "warm-up, then a cosine to 0" },
  { key: "tau", title: "Target decay τ", about: "1 would be a target that stands still" },
  {
    key: "spread",
    title: "Spread of projections",
    about: "near 1 is healthy, 0 is collapse",
    levels: () => [
      [1, "healthy"],
      [0.1, "collapsed"],
    ],
    low: 0,
  },
  {
    key: "rank_representation",
    second: "rank_projection",
    title: "Effective rank",
    about: "solid: representation, dashed: projection",
    low: 0,
    unit: "directions",
  },
  {
    key: "directions",
    title: "Directions told apart",
    about: "1: all images lie on a line and look alike",
    low: 0,
    unit: "directions",
  },
  {
    key: "twins",
    title: "A view is nearer to its twin",
    about: "than to a view of another image; higher is better",
    share: true,
    low: 0,
    levels: () => chance(2),
  },
  {
    key: "knn",
    title: "Nearest neighbours (kNN)",
    about: "held-out accuracy; labels are only watched",
    share: true,
    low: 0,
    levels: (run) => chance(run.data.classes, 1),
  },
  {
    key: "probe_accuracy",
    title: "Linear probe",
    about: "accuracy on training views, trained on the side",
    share: true,
    low: 0,
    smooth: true,
    levels: (run) => chance(run.data.classes, 1),
  },
  { key: "grad_norm", title: "Gradient norm", about: "before the optimizer scales it", smooth: true, low: 0 },
];
const MARGIN = { left: 44, right: 10, top: 10, bottom: 22 };
const chance = (number) => (number > 1 ? [[1 / number, "chance"]] : []);
const last = (run, key) => (run.series[key] ? run.series[key][1].at(-1) : null);

function ticks(low, high, wish) {
  const rough = (high - low) / wish || 1,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}
function short(value) {
  if (Math.abs(value) >= 1000) return `${round(value / 1000, 3)}k`;
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(0) : String(round(value, 4));
}
// A running mean over a fortieth of the points, for what is measured on one batch and jumps.
function smoothed(values) {
  const reach = Math.floor(values.length / 40);
  if (reach < 1) return null;
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i - reach), i + reach + 1).filter((v) => v !== null);
    return part.length ? part.reduce((a, b) => a + b, 0) / part.length : null;
  });
}

class Chart {
  constructor(panel, runs, group) {
    Object.assign(this, { panel, runs, group });
    this.lines = runs.flatMap((run, index) =>
      [panel.key, panel.second]
        .filter((key) => key && run.series[key])
        .map((key) => ({
          run,
          index,
          steps: run.series[key][0],
          values: run.series[key][1],
          second: key === panel.second,
          smooth: panel.smooth ? smoothed(run.series[key][1]) : null,
        })),
    );
    this.format = panel.share ? percent : figure;
    const only = runs.length === 1 && this.lines[0];
    this.svg = svg("svg", { tabindex: "0", role: "img", "aria-label": this.summary() });
    this.node = el(
      "div",
      { class: "card chart" },
      el(
        "header",
        {},
        el("h3", {}, panel.title),
        el("span", {}, only ? `now ${this.format(only.values.at(-1))}` : panel.unit || ""),
      ),
      el("div", { class: "about" }, panel.about),
      this.svg,
    );
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => group.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => group.leave());
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  summary() {
    return (
      `${this.panel.title}: ` +
      this.lines
        .map(
          (line) =>
            `${plain(line.run.name)}${line.second ? ", projection" : ""} from ${this.format(line.values[0])} to ${this.format(line.values.at(-1))}`,
        )
        .join("; ")
    );
  }
  x(line, i) {
    return this.group.by === "epoch" ? (line.steps[i] + 1) / (line.run.plan.steps_per_epoch || 1) : line.steps[i] + 1;
  }
  draw() {
    const width = this.svg.clientWidth,
      height = this.svg.clientHeight;
    if (!width) return;
    const levels = this.panel.levels ? this.panel.levels(this.runs[0]) : [];
    const values = this.lines.flatMap((line) => line.values).filter((v) => v !== null);
    let low = this.panel.low ?? Math.min(...values),
      high = Math.max(...values, ...levels.map(([level]) => level));
    if (high - low < 1e-12) {
      high += Math.abs(high) * 0.1 || 1;
      low -= this.panel.low === undefined ? Math.abs(low) * 0.1 : 0;
    }
    high += (high - low) * 0.04;
    const end = Math.max(...this.lines.map((line) => this.x(line, line.steps.length - 1)), 1e-9);
    this.toX = (x) => MARGIN.left + (x / end) * (width - MARGIN.left - MARGIN.right);
    this.toY = (y) => height - MARGIN.bottom - ((y - low) / (high - low)) * (height - MARGIN.bottom - MARGIN.top);
    this.end = end;
    const right = width - MARGIN.right,
      bottom = height - MARGIN.bottom,
      parts = [];
    for (const tick of ticks(low, high, 4)) {
      parts.push(
        svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: this.toY(tick), y2: this.toY(tick) }),
        svg(
          "text",
          { x: MARGIN.left - 7, y: this.toY(tick) + 3.5, "text-anchor": "end" },
          this.panel.share ? `${round(100 * tick, 3)} %` : short(tick),
        ),
      );
    }
    parts.push(svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
    const across = ticks(0, end, width > 420 ? 6 : 4),
      unit = this.group.by === "epoch" ? "epochs" : "steps";
    parts.push(
      across.map((tick, i) =>
        svg(
          "text",
          {
            x: this.toX(tick),
            y: height - 6,
            "text-anchor": tick === 0 ? "start" : this.toX(tick) > right - 16 ? "end" : "middle",
          },
          i === 0 ? `0 ${unit}` : short(tick),
        ),
      ),
    );
    for (const [level] of levels)
      parts.push(svg("line", { class: "level", x1: MARGIN.left, x2: right, y1: this.toY(level), y2: this.toY(level) }));
    for (const line of this.lines) parts.push(this.paths(line));
    for (const [level, text] of levels) {
      parts.push(
        svg(
          "text",
          { class: "name", x: right, y: this.toY(level) - 4, "text-anchor": "end" },
          this.panel.share ? `${text} ${percent(level)}` : text,
        ),
      );
    }
    this.cross = svg("g", {});
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts.flat(), this.cross);
  }
  paths(line) {
    const trace = (values) => {
      let path = "",
        pen = "M";
      values.forEach((value, i) => {
        if (value === null) {
          pen = "M";
          return;
        }
        path += `${pen}${this.toX(this.x(line, i)).toFixed(1)} ${this.toY(value).toFixed(1)}`;
        pen = "L";
      });
      return path;
    };
    const draw = (values, kind) => {
      const path = svg("path", { d: trace(values), class: kind });
      path.style.stroke = runColour(line.index);
      return path;
    };
    const main = draw(line.smooth || line.values, line.second ? "second" : "main");
    return line.smooth ? [draw(line.values, "raw"), main] : [main];
  }
  nearest(line, x) {
    let low = 0,
      high = line.steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.x(line, middle) < x) low = middle;
      else high = middle;
    }
    return Math.abs(this.x(line, low) - x) < Math.abs(this.x(line, high) - x) ? low : high;
  }
  mark(x) {
    if (!this.cross) return;
    if (x === null) {
      this.cross.replaceChildren();
      return;
    }
    const dots = this.lines
      .map((line) => {
        const i = this.nearest(line, x),
          value = (line.smooth || line.values)[i];
        if (value === null) return null;
        const dot = svg("circle", { cx: this.toX(this.x(line, i)), cy: this.toY(value), r: 3.2 });
        dot.style.fill = runColour(line.index);
        return dot;
      })
      .filter(Boolean);
    const at = this.toX(Math.min(x, this.end));
    this.cross.replaceChildren(
      svg("line", { class: "cross", x1: at, x2: at, y1: MARGIN.top, y2: this.svg.clientHeight - MARGIN.bottom }),
      ...dots,
    );
  }
  point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    this.tell(Math.max(0, Math.min(1, share)) * this.end, event.clientX, event.clientY);
  }
  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.lines.length) return;
    event.preventDefault();
    const line = this.lines[0];
    const i =
      this.group.at === null ? (move > 0 ? 0 : line.steps.length - 1) : this.nearest(line, this.group.at) + move;
    const box = this.svg.getBoundingClientRect(),
      x = this.x(line, Math.max(0, Math.min(line.steps.length - 1, i)));
    this.tell(x, box.left + this.toX(x), box.top + 30);
  }
  tell(x, clientX, clientY) {
    this.group.cross(x);
    const first = this.lines[0],
      i = this.nearest(first, x),
      step = first.steps[i] + 1;
    const epoch = first.run.plan.steps_per_epoch ? `, epoch ${round(step / first.run.plan.steps_per_epoch, 3)}` : "";
    showTip(
      clientX,
      clientY,
      el("div", { class: "soft" }, `${this.panel.title} after step ${count(step)}${epoch}`),
      this.lines.map((line) =>
        el(
          "div",
          { class: "row" },
          swatch(runColour(line.index)),
          this.runs.length > 1
            ? name(line.run.name)
            : this.panel.second
              ? line.second
                ? "projection"
                : "representation"
              : "",
          el("b", {}, this.format(line.values[this.nearest(line, x)])),
        ),
      ),
    );
  }
}

function curves(runs) {
  const group = {
    by: "step",
    at: null,
    charts: [],
    cross(x) {
      this.at = x;
      this.charts.forEach((c) => c.mark(x));
    },
    leave() {
      hideTip();
      this.cross(null);
    },
  };
  const some = PANELS.filter((panel) => runs.some((run) => run.series[panel.key]));
  group.charts = some.map((panel) => new Chart(panel, runs, group));
  const axis = segments(
    "Horizontal axis",
    [
      ["step", "Steps"],
      ["epoch", "Epochs"],
    ],
    "step",
    (by) => {
      group.by = by;
      group.charts.forEach((c) => c.draw());
    },
  );
  const legend =
    runs.length > 1 &&
    el(
      "div",
      { class: "legend" },
      runs.map((run, i) => el("span", {}, swatch(runColour(i)), name(run.name))),
    );
  const unlabelled = !runs.some((run) => run.series.knn || run.series.probe_accuracy);
  return el(
    "section",
    { id: "curves", "aria-labelledby": "curves-title" },
    heading(
      "curves",
      "Curves",
      unlabelled
        ? "No labels came with these images, so there is no accuracy to watch: spread, rank and twins tell instead."
        : null,
      legend,
      el("div", { class: "push" }, axis),
    ),
    some.length
      ? el(
          "div",
          { class: "charts" },
          group.charts.map((chart) => chart.node),
        )
      : el("p", { class: "empty" }, "Nothing has been measured yet."),
  );
}
