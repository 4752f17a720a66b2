// The top of the page, and the order of everything below it.
const WORDS = {
  learning: ["learning", "✓", "It is learning."],
  stalled: ["stalled", "!", "It has stalled."],
  worse: ["collapsing", "×", "It is worse than before training."],
  collapsing: ["collapsing", "×", "It is collapsing."],
  "collapsed data": ["collapsing", "×", "All images are the same."],
  "too early": ["early", "…", "Too early to tell."],
};
const STATUS = {
  finished: () => "finished",
  running: (run) => `running or killed, seen up to step ${count(run.done)}`,
  interrupted: (run) => `interrupted after step ${count(run.done)} of ${count(run.plan.steps)}`,
  diverged: (run) => `diverged after step ${count(run.done)}`,
};

// The sentence begins with its word, for terminals; the heading above it has said the word already.
function reasons({ word, sentence }) {
  const said = plain(sentence);
  const rest = said.toLowerCase().startsWith(word) ? said.slice(word.length).replace(/^[^:]*:\s*/, "") : said;
  return rest.charAt(0).toUpperCase() + rest.slice(1);
}

function verdict(run, index) {
  const [kind, sign, words] = WORDS[run.verdict.word] || WORDS["too early"];
  const { config, plan } = run,
    width = /^timm:/.test(config["network.encoder"]) ? 1 : config["network.width"];
  const status = (STATUS[run.status] || (() => plain(run.status)))(run);
  const facts = [
    [count(plan.images || run.data.images), `images from ${plain(run.data.name)}`],
    [plain(config["network.encoder"]) + (width === 1 ? "" : ` × ${width}`), `at ${config["data.resolution"]} px`],
    [count(plan.steps), `steps of ${count(plan.batch)}`],
    [round(config["optim.epochs"], 4), "epochs"],
    run.seconds && [duration(run.seconds), "in all"],
    run.skipped.count && [count(run.skipped.count), "images left out"],
  ].filter(Boolean);
  return el(
    "article",
    { class: `card verdict ${kind}` },
    el(
      "div",
      { class: "who" },
      several && swatch(runColour(index)),
      name(run.name),
      el("span", { class: "chip" }, status),
    ),
    el("h1", {}, el("span", { class: "sign", "aria-hidden": "true" }, sign), words),
    el("p", {}, reasons(run.verdict)),
    el(
      "ul",
      { class: "facts" },
      facts.map(([value, text]) => el("li", {}, el("b", {}, value), ` ${text}`)),
    ),
    run.notes.map((note) => el("p", { class: "note" }, plain(note))),
  );
}

const MEASURES = [
  ["spread", "Spread", figure, () => "0 collapsed, 1 healthy"],
  ["rank_representation", "Rank of representation", figure, () => "directions in use"],
  ["directions", "Directions told apart", figure, () => "1: all images on a line"],
  ["twins", "A view is nearer to its twin", percent, () => "than to a stranger; chance 50 %"],
  ["knn", "kNN accuracy", percent, (run) => `chance ${percent(1 / run.data.classes)}`],
  ["loss", "Loss", figure, () => "per image"],
];
function figures() {
  const some = MEASURES.filter(([key]) => RUNS.some((run) => run.series[key]));
  if (!some.length) return null;
  if (!several) {
    return el(
      "dl",
      { class: "figures" },
      some.map(([key, title, format, hint]) =>
        el(
          "div",
          { class: "card figure" },
          el("dt", {}, title),
          el(
            "dd",
            {},
            el("div", { class: "value" }, format(last(RUNS[0], key))),
            el("div", { class: "hint" }, `${format(RUNS[0].series[key][1][0])} at first`, el("br"), hint(RUNS[0])),
          ),
        ),
      ),
    );
  }
  return el(
    "div",
    { class: "card scroll compare" },
    table(
      ["At the end", ...RUNS.map(titled)],
      some.map(([key, title, format]) => [title, ...RUNS.map((run) => format(last(run, key)))]),
      1,
    ),
  );
}

function differences() {
  if (!several) return null;
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.config)))].filter((field) =>
    RUNS.some((run) => !same(run.config[field], RUNS[0].config[field])),
  );
  const rows = names.map((field) => [
    el("span", {}, el("code", {}, plain(field)), el("div", { class: "soft" }, DATA.help[field] || "")),
    ...RUNS.map((run) => el("code", {}, shown(run.config[field]))),
  ]);
  if (RUNS.some((run) => run.data.fingerprint !== RUNS[0].data.fingerprint))
    rows.unshift([
      el("span", {}, "images"),
      ...RUNS.map((run) => `${plain(run.data.name)}, ${count(run.data.images)}`),
    ]);
  return el(
    "section",
    { id: "differences", "aria-labelledby": "differences-title" },
    heading("differences", "What differs", null),
    rows.length
      ? el("div", { class: "card scroll" }, table(["Field", ...RUNS.map(titled)], rows))
      : el("p", { class: "empty" }, "Nothing: the same config on the same images."),
  );
}

const main = document.getElementById("main");
if (several) main.classList.add("several");
main.append(
  ...[
    el("div", { class: "verdicts", id: "verdict" }, RUNS.map(verdict)),
    figures(),
    differences(),
    atlas(),
    curves(RUNS),
    moments(),
    viewSheet(),
    partSheet(),
    results(),
    configuration(),
    environment(),
  ].filter(Boolean),
);
const LINKS = [
  ["verdict", "Verdict"],
  ["differences", "Differences"],
  ["map", "Map"],
  ["curves", "Curves"],
  ["neighbours", "Neighbours"],
  ["views", "Views"],
  ["parts", "Parts"],
  ["results", "Results"],
  ["config", "Config"],
  ["environment", "Environment"],
];
const links = LINKS.filter(([id]) => document.getElementById(id)).map(([id, text]) =>
  el("a", { href: `#${id}` }, text),
);
document.getElementById("nav").append(...links);
const watcher = new IntersectionObserver(
  (seen) =>
    seen.forEach(({ target, isIntersecting }) => {
      links
        .find((a) => a.getAttribute("href") === `#${target.id}`)
        .setAttribute("aria-current", String(isIntersecting));
    }),
  { rootMargin: "-45% 0px -50% 0px" },
);
links.forEach((a) => watcher.observe(document.querySelector(a.getAttribute("href"))));
document
  .getElementById("foot")
  .append(
    `Written ${plain(DATA.created)} by byol ${plain(DATA.version)}. This file holds everything it shows and loads nothing.`,
  );
applyTheme();
