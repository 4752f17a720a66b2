// The sections of the page, from top to bottom.
const RUNS = DATA.runs, several = RUNS.length > 1;
const SHEETS = DATA.galleries.map((gallery) => new Sheet(gallery.sheet));
const WORDS = {
  learning: ["learning", "✓", "It is learning."], stalled: ["stalled", "!", "It has stalled."],
  collapsing: ["collapsing", "×", "It is collapsing."], "too early": ["early", "…", "Too early to tell."],
};
const STATUS = {
  finished: () => "finished", running: (run) => `running or killed, seen up to step ${count(run.done)}`,
  interrupted: (run) => `interrupted after step ${count(run.done)} of ${count(run.plan.steps)}`,
  diverged: (run) => `diverged after step ${count(run.done)}`,
};
const PROTOCOLS = { knn: "nearest neighbours", "transfer-linear": "logistic regression", linear: "linear classifier", "semi-supervised": "fine-tuned on few labels", finetune: "fine-tuned", supervised: "trained with labels" };

function verdict(run, index) {
  const [kind, sign, words] = WORDS[run.verdict.word] || WORDS["too early"];
  const { config, plan } = run, width = config["network.width"];
  const status = (STATUS[run.status] || (() => plain(run.status)))(run);
  const facts = [
    [count(plan.images || run.data.images), `images of ${plain(run.data.name)}`], [plain(config["network.encoder"]) + (width === 1 ? "" : ` × ${width}`), `at ${config["data.resolution"]} px`],
    [count(plan.steps), `steps of ${count(plan.batch)}`], [round(config["optim.epochs"], 4), "epochs"], run.seconds && [duration(run.seconds), "in all"],
    run.skipped.count && [count(run.skipped.count), "images left out"],
  ].filter(Boolean);
  return el("article", { class: `card verdict ${kind}` },
    el("div", { class: "who" }, several && swatch(runColour(index)), name(run.name), el("span", { class: "chip" }, status)),
    el("h1", {}, el("span", { class: "sign", "aria-hidden": "true" }, sign), words),
    el("p", {}, plain(run.verdict.sentence).replace(/^(Learning|Stalled|Collapsing|Too early to tell): (.)/, (_, word, first) => first.toUpperCase())),
    el("ul", { class: "facts" }, facts.map(([value, text]) => el("li", {}, el("b", {}, value), ` ${text}`))),
    run.notes.map((note) => el("p", { class: "note" }, plain(note))));
}

const MEASURES = [
  ["spread", "Spread", figure, () => "0 collapsed, 1 healthy"], ["rank_representation", "Rank of representation", figure, () => "directions in use"],
  ["retrieval", "A view finds its twin", percent, (run) => `chance ${percent(1 / last(run, "images"))}`],
  ["knn", "kNN accuracy", percent, (run) => `chance ${percent(1 / run.data.classes)}`], ["loss", "Loss", figure, () => "per image"],
];
function figures() {
  const some = MEASURES.filter(([key]) => RUNS.some((run) => run.series[key]));
  if (!some.length) return null;
  if (!several) {
    return el("dl", { class: "figures" }, some.map(([key, title, format, hint]) => el("div", { class: "card figure" }, el("dt", {}, title),
      el("dd", {}, el("div", { class: "value" }, format(last(RUNS[0], key))), el("div", { class: "hint" }, `${format(RUNS[0].series[key][1][0])} at first`, el("br"), hint(RUNS[0]))))));
  }
  return el("div", { class: "card scroll compare" }, table(["At the end", ...RUNS.map(titled)], some.map(([key, title, format]) => [title, ...RUNS.map((run) => format(last(run, key)))]), 1));
}
const titled = (run, index) => el("span", { class: "legend" }, el("span", {}, several && swatch(runColour(index)), name(run.name)));

function table(heads, rows, numbers = heads.length, kind = null) {
  const side = (i) => (i >= numbers ? "number" : null);
  return el("table", { class: kind },
    heads.length ? el("thead", {}, el("tr", {}, heads.map((head, i) => el("th", { class: side(i), scope: "col" }, head)))) : null,
    el("tbody", {}, rows.map((row) => el("tr", { class: row.kind }, row.map((cell, i) => el("td", { class: side(i) }, cell))))));
}

function differences() {
  if (!several) return null;
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.config)))].filter((field) => RUNS.some((run) => !same(run.config[field], RUNS[0].config[field])));
  const rows = names.map((field) => [el("span", {}, el("code", {}, plain(field)), el("div", { class: "soft" }, DATA.help[field] || "")), ...RUNS.map((run) => el("code", {}, shown(run.config[field])))]);
  if (RUNS.some((run) => run.data.fingerprint !== RUNS[0].data.fingerprint)) rows.unshift([el("span", {}, "images"), ...RUNS.map((run) => `${plain(run.data.name)}, ${count(run.data.images)}`)]);
  return el("section", { id: "differences", "aria-labelledby": "differences-title" }, heading("differences", "What differs", null),
    rows.length ? el("div", { class: "card scroll" }, table(["Field", ...RUNS.map(titled)], rows)) : el("p", { class: "empty" }, "Nothing: the same config on the same images."));
}

// Sections that show one run at a time share the choice of it.
const choosers = [];
let current = RUNS[0];
function chooser(able) {
  if (!several || able.length < 2) return null;
  const place = el("div", { class: "push" });
  const draw = () => place.replaceChildren(segments("Run", able.map((run) => [run, run.name]), current, (run) => { current = run; choosers.forEach((each) => each()); }));
  choosers.push(draw);
  draw();
  return place;
}
function following(able, node, show) {
  const draw = () => show(able.includes(current) ? current : able[0], node);
  choosers.push(draw);
  draw();
  return node;
}
const absent = (what) => el("p", { class: "empty" }, what);

function atlas() {
  const able = RUNS.filter((run) => run.map);
  const lead = "Every point is one of your images; two that the encoder finds alike lie near each other (t-SNE of the representations).";
  if (!able.length) return el("section", { id: "map", "aria-labelledby": "map-title" }, heading("map", "Map of your images", null), absent(missing("map")));
  const map = new Atlas(RUNS, SHEETS);
  const find = el("input", { type: "search", placeholder: "Find by name or label", "aria-label": "Find images by name or label", oninput: () => map.find(find.value) });
  const colour = el("span", {});
  const colours = () => { colour.hidden = !map.gallery.labels; colour.replaceChildren(map.gallery.labels ? segments("Colour by", [["label", "Labels"], ["cluster", "Clusters"]], map.by, (by) => { map.by = by; map.regroup(); map.describe(); }) : ""); };
  following(able, el("span", {}), (run) => { map.use(run); if (find.value) map.find(find.value); colours(); });
  const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  map.world.atlas = map;  // for whoever opens the console
  return el("section", { id: "map", "aria-labelledby": "map-title" },
    heading("map", "Map of your images", lead, colour, segments("Draw", [[false, "Points"], [true, "Images"]], false, (pictures) => { map.pictures = pictures; map.draw(); }), find, chooser(able)),
    el("div", { class: "atlas" }, el("div", { class: "card plane" }, map.world, el("div", { class: "zoom" },
      button("+", "Zoom in", () => map.zoom(1.5)), button("−", "Zoom out", () => map.zoom(1 / 1.5)), button("⤢", "Show all", () => map.reset())), map.how), map.panel));
}
function missing(what) {
  const reason = RUNS.flatMap((run) => run.notes)[0];
  return `No ${what}. ${reason ? plain(reason) : "None was asked for."}`;
}

function moments() {
  const able = RUNS.filter((run) => run.neighbours);
  const place = el("div", {});
  const body = able.length ? following(able, place, showMoments) : absent("No neighbours were kept by this run, or its images are gone.");
  return el("section", { id: "neighbours", "aria-labelledby": "neighbours-title" }, heading("neighbours", "Nearest neighbours while it learned",
    able.length ? `Left, one of your images; beside it the six most similar among ${count(able[0].neighbours.searched)}, as the encoder saw them then.${able[0].neighbours.images[0].label === undefined ? "" : " A green frame: the same label."}` : null, chooser(able)), body);
}
function showMoments(run, place) {
  const { looks, queries, images, sheet } = run.neighbours, tiles = new Sheet(sheet);
  const cell = (i, query, cosine) => {
    const { name: title, tile, label } = images[i];
    const mate = query !== null && label !== undefined && label === images[query].label;
    const text = plain(title) + (label === undefined ? "" : ` · ${plain(label)}`) + (cosine === null ? "" : ` · cosine ${cosine.toFixed(2)}`);
    return explained(el("div", { class: mate ? "cell same" : "cell" }, tile < 0 ? el("div", { class: "gone" }, "gone") : tiles.tile(tile, text)), text);
  };
  const strip = (look, q) => el("div", { class: "strip" }, look.nearest[q].map((i, k) => cell(i, queries[q], look.cosines[q][k])));
  const rows = (some, titles, kind) => el("div", { class: kind }, el("div", { class: "top" }, "image"), titles.map((title) => el("div", { class: "top" }, title)),
    queries.map((query, q) => [cell(query, null, null), some.map((look) => strip(look, q))]));
  const half = (looks.at(-1).step + looks[0].step) / 2;
  const middle = looks.reduce((best, look) => (Math.abs(look.step - half) < Math.abs(best.step - half) ? look : best), looks[0]);
  const after = (look) => `after step ${count(look.step + 1)}`;
  const three = [...new Set([looks[0], middle, looks.at(-1)])];
  const ends = ["start", "middle", run.status === "finished" ? "end" : "now"].slice(-three.length);
  const moving = el("div", { class: "scroll" }), said = el("span", { class: "soft" });
  const slider = el("input", { type: "range", min: "0", max: String(looks.length - 1), value: String(looks.length - 1), "aria-label": "Moment of training" });
  const move = () => { const look = looks[Number(slider.value)]; said.textContent = after(look); slider.setAttribute("aria-valuetext", after(look)); moving.replaceChildren(rows([look], ["nearest first"], "moments one")); };
  slider.addEventListener("input", move);
  const fixed = el("div", { class: "scroll" }, rows(three, three.map((look, i) => [el("b", {}, ends[i]), ` ${after(look)}`]), "moments"));
  const card = el("div", { class: "card" });
  const side = el("div", { class: "head" }, segments("Moments", [["three", "Start, middle, end"], ["slide", "Watch it change"]], "three", (mode) => show(mode)), el("span", { class: "legend" }, slider, said));
  function show(mode) { side.lastChild.hidden = mode !== "slide"; card.replaceChildren(side, mode === "slide" ? moving : fixed); if (mode === "slide") move(); }
  if (looks.length < 2) { slider.disabled = true; }
  show(innerWidth < 640 ? "slide" : "three");
  if (innerWidth < 640) side.firstChild.children[1].click();
  place.replaceChildren(card);
}

function viewSheet() {
  const able = RUNS.filter((run) => run.views);
  const body = able.length ? following(able, el("div", {}), showViews) : absent(missing("views"));
  return el("section", { id: "views", "aria-labelledby": "views-title" }, heading("views", "What the network sees",
    able.length ? "Your images, and random views of each: T and T′ are the two kinds, three draws of each. The encoder must find the two views of a pair alike; hover one for what was done to it." : null, chooser(able)), body);
}
function showViews(run, place) {
  const tiles = new Sheet(run.views.sheet);
  const pairs = (row, draw) => [1, 3, 5].map((k) => el("div", { class: k > 3 ? "couple wide" : "couple" }, row.slice(k, k + 2).map(draw)));
  const one = (view) => {
    const text = plain(view.kind === "image" ? view.text : `${view.kind}: ${view.text}`);
    return explained(el("div", { tabindex: "0" }, tiles.tile(view.tile, text)), text);
  };
  const title = (view) => el("div", { class: "top" }, view.kind);
  const first = run.views.rows[0];
  place.replaceChildren(el("div", { class: "card scroll" }, el("div", { class: "views" }, title(first[0]), pairs(first, title), run.views.rows.map((row) => [one(row[0]), pairs(row, one)]))));
}

function results() {
  const columns = RUNS.flatMap((run, index) => ["this run's", "random"].filter((encoder) => encoder !== "random" || run.evaluations.some((e) => e.encoder === "random")).map((encoder) => ({ run, index, encoder })));
  const found = RUNS.flatMap((run) => run.evaluations.flatMap((e) => Object.keys(e.test).map((key) => JSON.stringify([e.data, e.protocol, key]))));
  const rows = [...new Set(found)].map((row) => {
    const [data, protocol, key] = JSON.parse(row);
    const all = columns.map(({ run, encoder }) => run.evaluations.find((e) => e.data === data && e.protocol === protocol && e.encoder === encoder && e.test[key]));
    const notes = [...new Set(all.filter(Boolean).flatMap((e) => e.notes))];
    const cells = all.map((e, i) => e ? score(e.test[key], columns[i].encoder === "random" ? "var(--faint)" : runColour(columns[i].index), stale(e, columns[i])) : el("span", { class: "soft" }, "–"));
    return [name(data), el("span", {}, plain(protocol), el("div", { class: "soft" }, PROTOCOLS[protocol] || ""), notes.map((note) => el("div", { class: "soft" }, plain(note)))), plain(key), ...cells];
  });
  const heads = columns.map(({ run, index, encoder }) => (encoder === "random" ? el("span", {}, several ? [name(run.name), ", "] : null, "untrained") : several ? titled(run, index) : "this run"));
  const any = rows.length || RUNS.some((run) => run.table_rows.length || Object.keys(run.demo).length);
  return el("section", { id: "results", "aria-labelledby": "results-title" },
    heading("results", "Results", rows.length ? "On test images that were looked at once, after every choice was made on others; mean ± half the range over seeds." : null),
    rows.length ? el("div", { class: "card scroll" }, table(["Data", "Protocol", "Figure", ...heads], rows, 3)) : null,
    RUNS.map((run) => [tableRows(run), demoTable(run)]),
    any ? null : absent(["Nothing evaluated yet. With labelled images: ", el("code", {}, `byol evaluate ${plain(RUNS[0].path)} --on DATA`)]));
}
function score(value, colour, old) {
  const meter = el("i", {});
  meter.style.background = colour;
  meter.style.width = `${Math.max(0, Math.min(100, 100 * value.mean))}%`;
  return el("span", {}, exactly(value.mean), value.seeds > 1 ? el("span", { class: "soft" }, ` ± ${(100 * value.half_range).toFixed(2)}`) : null, el("div", { class: "meter" }, meter), old ? el("div", { class: "soft" }, "earlier weights") : null);
}
const weights = (run) => (run.checksums.find((sum) => sum.name === "encoder's weights") || {}).value;
const stale = (e, { run, encoder }) => encoder !== "random" && weights(run) && e.checksum !== weights(run);
function tableRows(run) {
  if (!run.table_rows.length) return null;
  const rows = run.table_rows.flatMap((row) => row.tests.map((test) => [plain(row.label), row.seed, plain(test.protocol), name(test.data), Object.entries(test.test).map(([key, value]) => `${plain(key)} ${exactly(value)}`).join(", ")]));
  return el("div", { class: "card scroll spaced" }, el("h3", {}, "Rows of the paper's tables made from ", name(run.name)), table(["Row", "Seed", "Protocol", "Data", "Test"], rows));
}
function demoTable(run) {
  const names = Object.keys(run.demo);
  if (!names.length) return null;
  const keys = Object.keys(run.demo[names[0]]);
  return el("div", { class: "card scroll spaced" }, el("h3", {}, "The demo's comparison, test accuracy"), table(["Encoder", ...keys.map(plain)], names.map((each) => [plain(each), ...keys.map((key) => score({ mean: run.demo[each][key], seeds: 1 }, each === "BYOL" ? runColour(0) : "var(--faint)"))]), 1));
}

function configuration() {
  const fields = Object.keys(RUNS[0].config), groups = [...new Set(fields.map((field) => field.split(".")[0]))];
  const departs = fields.filter((field) => field in DATA.paper && RUNS.some((run) => !same(run.config[field], DATA.paper[field])));
  const row = (field) => el("tr", { class: departs.includes(field) ? "own" : null }, el("td", {}, plain(field)),
    RUNS.map((run) => el("td", { class: "value" }, shown(run.config[field] ?? "–"))), el("td", { class: "paper" }, shown(DATA.paper[field] ?? "–")), el("td", { class: "help soft" }, DATA.help[field] || ""));
  const heads = el("thead", {}, el("tr", {}, ["Field", ...(several ? RUNS.map(titled) : ["This run"]), "Paper"].map((head) => el("th", { scope: "col" }, head)), el("th", { class: "help", scope: "col" }, "Meaning")));
  const block = (title, some, open) => el("details", { open }, el("summary", {}, title), el("div", { class: "scroll" }, el("table", { class: "config" }, heads.cloneNode(true), el("tbody", {}, some.map(row)))));
  return el("section", { id: "config", "aria-labelledby": "config-title" }, heading("config", "Plan and config", null),
    el("div", { class: "pair" }, RUNS.map((run, index) => el("div", { class: "card" }, el("h3", {}, several ? titled(run, index) : "Plan"), planned(run)))),
    el("div", { class: "card spaced" }, departs.length ? block(`Departs from the paper: ${departs.length} fields`, departs, true) : null,
      groups.map((group) => block(`${group}: all fields`, fields.filter((field) => field.startsWith(`${group}.`)), false))));
}
function planned(run) {
  const lines = run.plan_text.slice(1).map((line) => plain(line).trim().match(/^(\w+):? +(.*)$/)).filter(Boolean);
  return lines.length ? table([], lines.map(([, key, text]) => [key, text]), 99, "sum") : absent("The run ended before its plan was made.");
}

function environment() {
  const keys = [...new Set(RUNS.flatMap((run) => run.environment.map(([key]) => key)))];
  const values = (run, key) => run.environment.filter(([each]) => each === key).map(([, value]) => el("div", {}, plain(value)));
  const sums = (run) => el("div", { class: "card" }, el("h3", {}, several ? ["Checksums of ", name(run.name)] : "Checksums"),
    table([], run.checksums.map((sum) => [plain(sum.name), el("span", {}, el("code", {}, plain(sum.value)), " ", el("span", { class: sum.state === "damaged" ? "bad" : "good" }, sum.state))]), 99, "sum"),
    run.skipped.count ? el("details", {}, el("summary", {}, `${count(run.skipped.count)} images left out`), table([], run.skipped.first.map((line) => line.map(plain)), 99, "sum")) : null);
  const where = el("div", { class: "card" }, several ? null : el("h3", {}, "Environment"), el("div", { class: "scroll" },
    table(several ? ["", ...RUNS.map(titled)] : [], keys.map((key) => [plain(key), ...RUNS.map((run) => values(run, key))]), 99, "sum")));
  return el("section", { id: "environment", "aria-labelledby": "environment-title" }, heading("environment", "Environment and checksums", null),
    several ? [where, el("div", { class: "pair spaced" }, RUNS.map(sums))] : el("div", { class: "pair" }, where, sums(RUNS[0])));
}

const main = document.getElementById("main");
if (several) main.classList.add("several");
main.append(...[
  el("div", { class: "verdicts", id: "verdict" }, RUNS.map(verdict)), figures(), differences(), curves(RUNS), atlas(), moments(), viewSheet(), results(), configuration(), environment(),
].filter(Boolean));
const LINKS = [["verdict", "Verdict"], ["differences", "Differences"], ["curves", "Curves"], ["map", "Map"], ["neighbours", "Neighbours"], ["views", "Views"], ["results", "Results"], ["config", "Config"], ["environment", "Environment"]];
const links = LINKS.filter(([id]) => document.getElementById(id)).map(([id, text]) => el("a", { href: `#${id}` }, text));
document.getElementById("nav").append(...links);
const watcher = new IntersectionObserver((seen) => seen.forEach(({ target, isIntersecting }) => {
  links.find((a) => a.getAttribute("href") === `#${target.id}`).setAttribute("aria-current", String(isIntersecting));
}), { rootMargin: "-45% 0px -50% 0px" });
links.forEach((a) => watcher.observe(document.querySelector(a.getAttribute("href"))));
document.getElementById("foot").append(`Written ${plain(DATA.created)} by byol ${plain(DATA.version)}. This file holds everything it shows and loads nothing.`);
applyTheme();
