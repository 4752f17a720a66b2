// Sections with tables: results, plan and config, environment and checksums.
const PROTOCOLS = {
  knn: "nearest neighbours",
  "transfer-linear": "logistic regression",
  linear: "linear classifier",
  "semi-supervised": "fine-tuned on few labels",
  finetune: "fine-tuned",
  supervised: "trained with labels",
  segmentation: "a class for each pixel",
  detection: "boxes of objects",
  depth: "metres for each pixel",
};

function results() {
  const columns = RUNS.flatMap((run, index) =>
    ["this run's", "random"]
      .filter((encoder) => encoder !== "random" || run.evaluations.some((e) => e.encoder === "random"))
      .map((encoder) => ({ run, index, encoder })),
  );
  const found = RUNS.flatMap((run) =>
    run.evaluations
      .filter((e) => e.encoder !== OTHER)
      .flatMap((e) => Object.keys(e.test).map((key) => JSON.stringify([e.data, e.protocol, key]))),
  );
  const rows = [...new Set(found)].map((row) => {
    const [data, protocol, key] = JSON.parse(row);
    const all = columns.map(({ run, encoder }) =>
      run.evaluations.find((e) => e.data === data && e.protocol === protocol && e.encoder === encoder && e.test[key]),
    );
    const notes = [...new Set(all.filter(Boolean).flatMap((e) => e.notes))];
    const cells = all.map((e, i) =>
      e
        ? score(
            e.test[key],
            columns[i].encoder === "random" ? "var(--faint)" : runColour(columns[i].index),
          )
        : el("span", { class: "soft" }, "–"),
    );
    return [
      name(data),
      el(
        "span",
        {},
        plain(protocol),
        el("div", { class: "soft" }, PROTOCOLS[protocol] || ""),
        notes.map((note) => el("div", { class: "soft" }, plain(note))),
      ),
      plain(key),
      ...cells,
    ];
  });
  const heads = columns.map(({ run, index, encoder }) =>
    encoder === "random"
      ? el("span", {}, several ? [name(run.name), ", "] : null, "untrained")
      : several
        ? titled(run, index)
        : "this run",
  );
  const any = rows.length || RUNS.some((run) => run.table_rows.length || Object.keys(run.demo).length || others(run).length);
  return el(
    "section",
    { id: "results", "aria-labelledby": "results-title" },
    heading(
      "results",
      "Results",
      rows.length
        ? "On test images that were looked at once, after every choice was made on others; mean ± half the range over seeds."
        : null,
    ),
    rows.length ? el("div", { class: "card scroll stacked" }, table(["Data", "Protocol", "Figure", ...heads], rows, 3)) : null,
    RUNS.map((run) => [tableRows(run), demoTable(run), otherWeights(run)]),
    any
      ? null
      : absent([
          "Nothing evaluated yet. With labelled images: ",
          el("code", {}, `byol evaluate ${plain(RUNS[0].path)} --on DATA`),
        ]),
  );
}
function score(value, colour) {
  const meter = el("i", {});
  meter.style.background = colour;
  meter.style.width = `${Math.max(0, Math.min(100, 100 * value.mean))}%`;
  return el(
    "span",
    {},
    plain(value.text),
    value.share ? el("div", { class: "meter" }, meter) : null,
  );
}
const OTHER = "other weights";
const others = (run) => run.evaluations.filter((e) => e.encoder === OTHER);
function otherWeights(run) {
  // Figures of an encoder that this run no longer holds, or never did: apart, so that nobody takes them for its own.
  if (!others(run).length) return null;
  const rows = others(run).flatMap((e) =>
    Object.keys(e.test).map((key) => [
      name(e.data),
      plain(e.protocol),
      plain(key),
      plain(e.test[key].text),
      el("code", {}, plain(e.checksum)),
    ]),
  );
  return el(
    "details",
    { class: "card scroll spaced" },
    el("summary", {}, "Figures of other weights than those of ", name(run.name)),
    table(["Data", "Protocol", "Figure", "Test", "Weights"], rows),
  );
}
function tableRows(run) {
  if (!run.table_rows.length) return null;
  const rows = run.table_rows.flatMap((row) =>
    row.tests.map((test) => [
      plain(row.label),
      row.seed,
      plain(test.protocol),
      name(test.data),
      plain(test.test),
    ]),
  );
  return el(
    "div",
    { class: "card scroll spaced" },
    el("h3", {}, "Rows of the paper's tables made from ", name(run.name)),
    table(["Row", "Seed", "Protocol", "Data", "Test"], rows),
  );
}
function demoTable(run) {
  const names = Object.keys(run.demo);
  if (!names.length) return null;
  const keys = Object.keys(run.demo[names[0]]);
  return el(
    "div",
    { class: "card scroll spaced" },
    el("h3", {}, "The demo's comparison, test accuracy"),
    table(
      ["Encoder", ...keys.map(plain)],
      names.map((each) => [
        plain(each),
        ...keys.map((key) =>
          score(
            { mean: run.demo[each][key], text: exactly(run.demo[each][key]), share: true },
            each === "BYOL" ? runColour(0) : "var(--faint)",
          ),
        ),
      ]),
      1,
    ),
  );
}

function configuration() {
  const fields = Object.keys(RUNS[0].config),
    groups = [...new Set(fields.map((field) => field.split(".")[0]))];
  const departs = fields.filter(
    (field) => field in DATA.paper && RUNS.some((run) => !same(run.config[field], DATA.paper[field])),
  );
  const row = (field) =>
    el(
      "tr",
      { class: departs.includes(field) ? "own" : null },
      el("td", {}, plain(field)),
      RUNS.map((run) => el("td", { class: "value" }, shown(run.config[field] ?? "–"))),
      el("td", { class: "paper" }, shown(DATA.paper[field] ?? "–")),
      el("td", { class: "help soft" }, DATA.help[field] || ""),
    );
  const heads = el(
    "thead",
    {},
    el(
      "tr",
      {},
      ["Field", ...(several ? RUNS.map(titled) : ["This run"]), "Paper"].map((head) =>
        el("th", { scope: "col" }, head),
      ),
      el("th", { class: "help", scope: "col" }, "Meaning"),
    ),
  );
  const block = (title, some, open) =>
    el(
      "details",
      { open },
      el("summary", {}, title),
      el(
        "div",
        { class: "scroll" },
        el("table", { class: "config" }, heads.cloneNode(true), el("tbody", {}, some.map(row))),
      ),
    );
  return el(
    "section",
    { id: "config", "aria-labelledby": "config-title" },
    heading("config", "Plan and config", null),
    el(
      "div",
      { class: "pair" },
      RUNS.map((run, index) =>
        el("div", { class: "card" }, el("h3", {}, several ? titled(run, index) : "Plan"), planned(run)),
      ),
    ),
    el(
      "div",
      { class: "card spaced" },
      departs.length ? block(`Departs from the paper: ${departs.length} fields`, departs, true) : null,
      groups.map((group) =>
        block(
          `${group}: all fields`,
          fields.filter((field) => field.startsWith(`${group}.`)),
          false,
        ),
      ),
    ),
  );
}
function planned(run) {
  if (!run.plan_rows.length) return absent("The run ended before its plan was made.");
  return table([], run.plan_rows.map((row) => row.map(plain)), 99, "sum");
}

function environment() {
  const keys = [...new Set(RUNS.flatMap((run) => run.environment.map(([key]) => key)))];
  const values = (run, key) =>
    run.environment.filter(([each]) => each === key).map(([, value]) => el("div", {}, plain(value)));
  const sums = (run) =>
    el(
      "div",
      { class: "card" },
      el("h3", {}, several ? ["Checksums of ", name(run.name)] : "Checksums"),
      table(
        [],
        run.checksums.map((sum) => [
          plain(sum.name),
          el(
            "span",
            {},
            el("code", {}, plain(sum.value)),
            " ",
            el("span", { class: sum.state === "damaged" ? "bad" : "good" }, sum.state),
          ),
        ]),
        99,
        "sum",
      ),
      run.skipped.count
        ? el(
            "details",
            {},
            el("summary", {}, `${count(run.skipped.count)} images left out`),
            table(
              [],
              run.skipped.first.map((line) => line.map(plain)),
              99,
              "sum",
            ),
          )
        : null,
    );
  const where = el(
    "div",
    { class: "card" },
    several ? null : el("h3", {}, "Environment"),
    el(
      "div",
      { class: "scroll" },
      table(
        several ? ["", ...RUNS.map(titled)] : [],
        keys.map((key) => [plain(key), ...RUNS.map((run) => values(run, key))]),
        99,
        "sum",
      ),
    ),
  );
  return el(
    "section",
    { id: "environment", "aria-labelledby": "environment-title" },
    heading("environment", "Environment and checksums", null),
    several
      ? [where, el("div", { class: "pair spaced" }, RUNS.map(sums))]
      : el("div", { class: "pair" }, where, sums(RUNS[0])),
  );
}
