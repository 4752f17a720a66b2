// Sections with pictures, one run at a time: the map, neighbours while it learned, and views.
// Sections that show one run at a time share the choice of it.
const choosers = [];
let current = RUNS[0];
function chooser(able) {
  if (!several || able.length < 2) return null;
  const place = el("div", { class: "push" });
  const draw = () =>
    place.replaceChildren(
      segments(
        "Run",
        able.map((run) => [run, run.name]),
        current,
        (run) => {
          current = run;
          choosers.forEach((each) => each());
        },
      ),
    );
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

function atlas() {
  const able = RUNS.filter((run) => run.map);
  const lead =
    "Every point is one of your images; two that the encoder finds alike lie near each other (t-SNE of the representations).";
  if (!able.length)
    return el(
      "section",
      { id: "map", "aria-labelledby": "map-title" },
      heading("map", "Map of your images", null),
      absent(missing("map")),
    );
  const map = new Atlas(RUNS, SHEETS);
  const find = el("input", {
    type: "search",
    placeholder: "Find by name or label",
    "aria-label": "Find images by name or label",
    oninput: () => map.find(find.value),
  });
  const colour = el("span", {});
  const colours = () => {
    colour.hidden = !map.gallery.labels;
    colour.replaceChildren(
      map.gallery.labels
        ? segments(
            "Colour by",
            [
              ["label", "Labels"],
              ["cluster", "Clusters"],
            ],
            map.by,
            (by) => {
              map.by = by;
              map.regroup();
              map.describe();
            },
          )
        : "",
    );
  };
  following(able, el("span", {}), (run) => {
    map.use(run);
    if (find.value) map.find(find.value);
    colours();
  });
  const button = (text, label, act) =>
    el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  map.world.atlas = map; // for whoever opens the console
  return el(
    "section",
    { id: "map", "aria-labelledby": "map-title" },
    heading(
      "map",
      "Map of your images",
      lead,
      colour,
      segments(
        "Draw",
        [
          [true, "Images"],
          [false, "Points"],
        ],
        true,
        (pictures) => {
          map.pictures = pictures;
          map.draw();
        },
      ),
      find,
      chooser(able),
    ),
    el(
      "div",
      { class: "atlas" },
      el(
        "div",
        { class: "card plane" },
        map.world,
        el(
          "div",
          { class: "zoom" },
          button("+", "Zoom in", () => map.zoom(1.5)),
          button("−", "Zoom out", () => map.zoom(1 / 1.5)),
          button("⤢", "Show all", () => map.reset()),
        ),
        map.how,
      ),
      map.panel,
    ),
  );
}
function missing(what) {
  const reason = RUNS.flatMap((run) => run.notes)[0];
  return `No ${what}. ${reason ? plain(reason) : "None was asked for."}`;
}

function moments() {
  const able = RUNS.filter((run) => run.neighbours);
  const place = el("div", {});
  const body = able.length
    ? following(able, place, showMoments)
    : absent("No neighbours were kept by this run, or its images are gone.");
  return el(
    "section",
    { id: "neighbours", "aria-labelledby": "neighbours-title" },
    heading(
      "neighbours",
      "Nearest neighbours while it learned",
      able.length
        ? `Left, one of your images; beside it the six most similar among ${count(able[0].neighbours.searched)}, as the encoder saw them then.${able[0].neighbours.images[0].label === undefined ? "" : " A green frame: the same label."}`
        : null,
      chooser(able),
    ),
    body,
  );
}
function showMoments(run, place) {
  const { looks, queries, images, sheet } = run.neighbours,
    tiles = new Sheet(sheet);
  const cell = (i, query, cosine) => {
    const { name: title, tile, label } = images[i];
    const mate = query !== null && label !== undefined && label === images[query].label;
    const text =
      plain(title) +
      (label === undefined ? "" : ` · ${plain(label)}`) +
      (cosine === null ? "" : ` · cosine ${cosine.toFixed(2)}`);
    return explained(
      el(
        "div",
        { class: mate ? "cell same" : "cell" },
        tile < 0 ? el("div", { class: "gone" }, "gone") : tiles.tile(tile, text),
      ),
      text,
    );
  };
  const strip = (look, q) =>
    el(
      "div",
      { class: "strip" },
      look.nearest[q].map((i, k) => cell(i, queries[q], look.cosines[q][k])),
    );
  const rows = (some, titles, kind) =>
    el(
      "div",
      { class: kind },
      el("div", { class: "top" }, "image"),
      titles.map((title) => el("div", { class: "top" }, title)),
      queries.map((query, q) => [cell(query, null, null), some.map((look) => strip(look, q))]),
    );
  const half = (looks.at(-1).step + looks[0].step) / 2;
  const middle = looks.reduce(
    (best, look) => (Math.abs(look.step - half) < Math.abs(best.step - half) ? look : best),
    looks[0],
  );
  const after = (look) => `after step ${count(look.step + 1)}`;
  const three = [...new Set([looks[0], middle, looks.at(-1)])];
  const ends = ["start", "middle", run.status === "finished" ? "end" : "now"].slice(-three.length);
  const moving = el("div", { class: "scroll" }),
    said = el("span", { class: "soft" });
  const slider = el("input", {
    type: "range",
    min: "0",
    max: String(looks.length - 1),
    value: String(looks.length - 1),
    "aria-label": "Moment of training",
  });
  const move = () => {
    const look = looks[Number(slider.value)];
    said.textContent = after(look);
    slider.setAttribute("aria-valuetext", after(look));
    moving.replaceChildren(rows([look], ["nearest first"], "moments one"));
  };
  slider.addEventListener("input", move);
  const fixed = el(
    "div",
    { class: "scroll" },
    rows(
      three,
      three.map((look, i) => [el("b", {}, ends[i]), ` ${after(look)}`]),
      "moments",
    ),
  );
  const card = el("div", { class: "card" });
  const side = el(
    "div",
    { class: "head" },
    segments(
      "Moments",
      [
        ["three", "Start, middle, end"],
        ["slide", "Watch it change"],
      ],
      "three",
      (mode) => show(mode),
    ),
    el("span", { class: "legend" }, slider, said),
  );
  function show(mode) {
    side.lastChild.hidden = mode !== "slide";
    card.replaceChildren(side, mode === "slide" ? moving : fixed);
    if (mode === "slide") move();
  }
  if (looks.length < 2) {
    slider.disabled = true;
  }
  show(innerWidth < 640 ? "slide" : "three");
  if (innerWidth < 640) side.firstChild.children[1].click();
  place.replaceChildren(card);
}

function viewSheet() {
  const able = RUNS.filter((run) => run.views);
  const body = able.length ? following(able, el("div", {}), showViews) : absent(missing("views"));
  return el(
    "section",
    { id: "views", "aria-labelledby": "views-title" },
    heading(
      "views",
      "What the network sees",
      able.length
        ? "Your images, and random views of each: T and T′ are the two kinds, three draws of each. The encoder must find the two views of a pair alike; hover one for what was done to it."
        : null,
      chooser(able),
    ),
    body,
  );
}
function showViews(run, place) {
  const tiles = new Sheet(run.views.sheet);
  const pairs = (row, draw) =>
    [1, 3, 5].map((k) => el("div", { class: k > 3 ? "couple wide" : "couple" }, row.slice(k, k + 2).map(draw)));
  const one = (view) => {
    const text = plain(view.kind === "image" ? view.text : `${view.kind}: ${view.text}`);
    return explained(el("div", { tabindex: "0" }, tiles.tile(view.tile, text)), text);
  };
  const title = (view) => el("div", { class: "top" }, view.kind);
  const first = run.views.rows[0];
  place.replaceChildren(
    el(
      "div",
      { class: "card scroll" },
      el(
        "div",
        { class: "views" },
        title(first[0]),
        pairs(first, title),
        run.views.rows.map((row) => [one(row[0]), pairs(row, one)]),
      ),
    ),
  );
}

function partSheet() {
  const able = RUNS.filter((run) => run.parts);
  if (!able.length) return null;
  const [height, width] = able[0].parts.places;
  return el(
    "section",
    { id: "parts", "aria-labelledby": "parts-title" },
    heading(
      "parts",
      "What it tells apart within an image",
      `The encoder's last feature map has ${height} × ${width} places. Places of one colour look alike to it: red, green and blue are the map's first three principal components over these images.`,
      chooser(able),
    ),
    following(able, el("div", {}), showParts),
  );
}
function showParts(run, place) {
  const tiles = new Sheet(run.parts.sheet);
  const one = (part) => explained(el("div", {}, tiles.tile(part.tile, plain(part.text))), plain(`${part.kind}: ${part.text}`));
  const group = (row) => el("div", { class: "couple" }, row.map(one));
  place.replaceChildren(
    el("div", { class: "card scroll" }, el("div", { class: "parts" }, run.parts.rows.map(group))),
  );
}
