"""Renders results/ into the README and docs/, so that no figure there is typed by hand: `python benchmarks/render.py`.

A page holds its figures between `<!-- NAME: … -->` and `<!-- /NAME -->`; `rendered` is what every such page should say.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import render_processes
import render_speed
import render_views
import render_weights

from byol.config import flatten
from byol.evals.metrics import shown
from byol.evals.spec import PROTOCOLS, Specs
from byol.run.files import read_json, write_atomically
from byol.tables.record import read_table
from byol.tables.render import agreement, markdown
from byol.tables.scales import SCALES

ROOT = Path(__file__).resolve().parents[1]
WITH_FIGURES = ("own-images", "tune", "any-image", "results", "learning", "from-weights", "speed", "paper-tables")
PAGES = ("README.md", *(f"docs/{name}.md" for name in WITH_FIGURES))


def percent(values: list[float]) -> str:
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f} %" if len(values) > 1 else f"{mean} %"


def table(results: list[tuple[str, list[dict[str, Any]]]]) -> str:
    lines = [
        "CIFAR-10 from re-compressed JPEG files (not comparable with published CIFAR-10), on two CPU cores or,",
        "with one thread, on one of them: a ResNet-18 of the width that is said. `plain` is BYOL alone under LARS,",
        "`fading` has negatives that fade out of BYOL's own loss, and `half` is the preset `cifar10-cpu`, which begins",
        "as SimCLR, under AdamW. Test accuracy; mean ± deviation over seeds.",
        "",
        "| run | px | width | threads | seeds | minutes | images/s | BYOL linear | kNN | random linear | kNN |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results:
        minutes = statistics.mean(r["pretraining_minutes"] for r in runs)
        speed = statistics.mean(r["images_per_second"] for r in runs)
        scores = [percent([r[who][what] for r in runs]) for who in ("byol", "random") for what in ("linear", "knn")]
        config = runs[0]["config"]
        shape = f"{config['data.resolution']} | {config['network.width']:g} | {config.get('run.threads') or 2}"
        shape += f" | {len(runs)} | {minutes:.1f} | {speed:.0f}"
        lines.append(f"| {name} | {shape} | {' | '.join(scores)} |")
        if larger := [r["byol_larger"] for r in runs if "byol_larger" in r]:
            scores = [percent([r[what] for r in larger]) for what in ("linear", "knn")]
            px, both = larger[0]["px"], " | ".join(scores)
            lines.append(f"| … where it looks at {px} px | {px} | | | {len(larger)} | | | {both} | | |")
    return "\n".join(lines) + "\n"


def demo(record: dict[str, Any]) -> str:
    """The three encoders of `byol demo`."""
    lines = [
        f"`byol demo` on {record['threads']} threads of an idle machine, {record['seconds'] / 60:.1f} minutes in all:",
        "test accuracy on rendered scenes of ten kinds, of three encoders of one shape, one seed.",
        "",
        "| encoder | linear | kNN |",
        "|---|---|---|",
    ]
    for name, scores in record["results"].items():
        lines.append(f"| {name} | {100 * scores['linear']:.1f} % | {100 * scores['knn']:.1f} % |")
    return "\n".join(lines) + "\n"


def by_auto(results: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """What `auto` reached in a budget."""
    lines = [
        "`auto` in a few minutes (`benchmarks/auto.py`), planned for CPU time on one thread of a busy machine. Its",
        "recipe was chosen on cifar and imagenette, by the tries below; `before` had negatives that fade out of BYOL's",
        "own loss. Test accuracy with 20 neighbours and by logistic regression, beside the untrained network of the",
        "same shape.",
        "",
        "| run | seeds | budget | images | steps | BYOL kNN | untrained kNN | BYOL linear | untrained linear |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results:
        images = re.search(r"on (\d+) images", runs[0]["what"])
        shape = f"{runs[0]['budget'].split()[0]} | {images[1] if images else ''}"
        steps = statistics.mean(r["steps"] for r in runs)
        scores = [percent([r[who][what] for r in runs]) for what in ("knn", "linear") for who in ("byol", "untrained")]
        lines.append(f"| {name} | {len(runs)} | {shape} | {steps:.0f} | {' | '.join(scores)} |")
    return "\n".join(lines) + "\n"


def recipes(tries: list[dict[str, Any]]) -> str:
    """Every try of the research on fast recipes."""
    lines = [
        "What was tried to learn fast in minutes of one thread (`benchmarks/fast.py`), at equal CPU time, one seed",
        "each. kNN of every image among all others; the rank is that of the representation. Blocks that begin as the",
        "identity (zeroinit) make the untrained network worse, so that a part of their gain is a lower start. Those",
        "named night-… have 1,200 steps each, of a night's base on 20,000 images; what no field says of one of them is",
        "in the record's `beyond_the_fields`.",
        "",
        "| recipe | data | CPU minutes | steps | kNN | untrained | gain | rank at first, lowest, last |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tried in tries:
        ranks = [look["rank_representation"] for look in tried["looks"]]
        after, before = tried["trained"]["knn_all"], tried["untrained"]["knn_all"]
        scores = f"{100 * after:.1f} % | {100 * before:.1f} % | {100 * (after - before):+.1f}"
        where = f"{tried['recipe']} | {tried['data']} | {tried['cpu_minutes']:.1f} | {tried['steps']}"
        lines.append(f"| {where} | {scores} | {ranks[0]:.0f}, {min(ranks):.0f}, {ranks[-1]:.0f} |")
    return "\n".join(lines) + "\n"


def evaluations(records: list[tuple[str, dict[str, Any]]]) -> str:
    """The protocols beside each other; a budget's cuts are below."""
    names = ("byol", "random", "supervised")
    lines = [
        "Protocols of `byol evaluate` on the encoder of cifar10-45min-plain (`benchmarks/evaluations.py`): test",
        "figures, mean ± half the range over three seeds of the evaluation, each choice made on validation images;",
        "minutes by the clock, for linear and finetune on a core shared with other work.",
        "",
        f"| data | protocol | figure | {' | '.join(names)} | minutes | settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stem, record in records:
        encoders = record["encoders"]
        for figure in encoders["byol"]["test"]:
            values = [half_range(encoders[n]["test"][figure]) if n in encoders else "" for n in names]
            shares = [note for e in encoders.values() for run in e["runs"] for note in run["notes"] if "steps" in note]
            cut = "cut by the budget" if shares else departures(record)
            data = stem.split("-")[1]
            lines.append(
                f"| {data} | {record['protocol']} | {figure} | {' | '.join(values)} | {record['minutes']:.1f} | {cut} |"
            )
    return "\n".join(lines) + "\n"


def departures(record: dict[str, Any]) -> str:
    """Which fields of the protocol were set to other values than the paper's."""
    usual = flatten(getattr(Specs(), PROTOCOLS[record["protocol"]]))
    found = []
    for name, value in record["spec"].items():
        if name in usual and value != (list(usual[name]) if isinstance(usual[name], tuple) else usual[name]):
            shown = f"{len(value)} of {len(usual[name])}" if isinstance(value, list) else f"{value:g}"
            found.append(f"{name} {shown}")
    return ", ".join(found) or "as in the paper"


def dense(records: list[tuple[str, dict[str, Any]]]) -> str:
    """Segmentation, detection and depth beside each other."""
    names = ("byol", "random", "supervised")
    minutes = [record["minutes"] / len(names) for _, record in records]
    lines = [
        "Dense protocols (`benchmarks/dense.py`) on a ResNet-18 of width 0.25 pretrained at 96 px on 1,500 photos of",
        "Imagenette and the training images of the three data sets without their labels (results/encoders-dense.json);",
        "supervised: on the same 1,500 photos with labels. The same steps for each encoder,",
        f"{min(minutes):.0f} to {max(minutes):.0f} minutes a cell on one core of a busy machine.",
        "The highest is not the best of rms and rel, which are errors.",
        "",
        f"| data | protocol | figure | {' | '.join(names)} | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for stem, record in records:
        encoders = record["encoders"]
        for figure in encoders["byol"]["test"]:
            tests = [encoders[name]["test"][figure] for name in names]
            values = [shown(figure, test["mean"]) + _spread(figure, test) for test in tests]
            place = f"{stem.removeprefix('dense-')} | {record['protocol']} | {figure}"
            lines.append(f"| {place} | {' | '.join(values)} | {len(record['seeds'])} |")
    return "\n".join([*lines, "", _helps(records)]) + "\n"


def _helps(records: list[tuple[str, dict[str, Any]]]) -> str:
    """Whether BYOL helps, counted over all figures."""
    better = {"random": 0, "supervised": 0}
    figures = [(e["encoders"], figure) for _, e in records for figure in e["encoders"]["byol"]["test"]]
    for encoders, figure in figures:
        sign = -1 if figure in ("rms", "rel") else 1
        ours, *others = (sign * encoders[name]["test"][figure]["mean"] for name in ("byol", *better))
        for name, other in zip(better, others, strict=True):
            better[name] += ours > other
    return (
        f"BYOL is better than random in {better['random']} and than supervised in {better['supervised']} of "
        f"{len(figures)} figures. One seed a cell: a point or two means nothing.\nThe random detector trains with its "
        "batch norm frozen at mean 0 and variance 1, which handicaps it.\n"
    )


def _spread(figure: str, test: dict[str, float]) -> str:
    return f" ± {shown(figure, test['half_range'])}" if test["seeds"] > 1 else ""


def half_range(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:.1f} ± {100 * value['half_range']:.1f} %"


def filled(page: str, name: str, text: str) -> str:
    """The page with `text` between its two marks of this name."""
    marks = re.compile(rf"(<!-- {name}:.*?-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return marks.sub(lambda match: match[1] + text + match[2], page)


def with_tables(page: str, results: Path) -> str:
    """The page with every NAME-SCALE.json that `byol table` wrote and somebody committed to `results`."""
    found = [markdown(read_table(path)) for path in sorted(results.glob("*.json"))]
    return filled(page, "tables", "\n".join(found) or "No table has been run at the cpu scale and committed yet.\n")


def verdicts(record: dict[str, Any]) -> str:
    """Hits, misses and false alarms of the verdict, beside what labels say."""
    lines = [
        "| runs | collapsed, missed | worse than untrained, missed | better, false alarms | better, called learning |",
        "|---|---|---|---|---|",
    ]
    parts = (("new cells", "all"), ("new cells, without labels", "all"), ("committed cells", "all"))
    for name, part in (*parts, ("all", "tuned on"), ("all", "held out"), ("all", "all")):
        each = record["counts"][name][part]
        label = f"{name}, {part}" if (name, part) not in parts else name
        lines.append(
            f"| {'all' if label == 'all, all' else label} | {each['collapsed']}, {each['collapsed_missed']} | "
            f"{each['worse']}, {each['worse_missed']} | {each['better']}, {each['false_alarms']} | "
            f"{each['better_called_learning']} of {each['better']} |"
        )
    alarms = [
        f"{cell['name']} (seed {cell['seed']}, {100 * cell['trained']['linear']:.1f} % against "
        f"{100 * cell['untrained']['linear']:.1f} %, called {cell['word']} with a spread of {cell['spread']:.2f})"
        for cell in record["cells"]
        if cell["truth"] == "better" and cell["word"] in ("worse", "collapsing", "collapsed data")
    ]
    if alarms:
        lines += ["", f"False alarms: {'; '.join(alarms)}."]
        found = record["counts"]["all"]["all"]
        if made := found["made_to_collapse"]:
            lines += [
                "",
                f"{made} of these {len(alarms)} are runs made to collapse, without a predictor and without negatives; "
                "a linear classifier finds two points more in the representation nevertheless. Without those, "
                f"{len(alarms) - made} alarms in {found['better'] - made} healthy runs.",
            ]
    return "\n".join(lines) + "\n"


def scores(results: Path) -> str:
    """Everything that was pretrained and evaluated here, in one page."""
    parts = [demo(read_json(results / "demo.json"))]
    parts += [table(sorted(seeds(results, "cifar10-*").items())), by_auto(sorted(seeds(results, "auto-*").items()))]
    parts.append(recipes(read_json(results / "fast-recipes.json")))
    found = [(path.stem, read_json(path)) for path in sorted(results.glob("evaluation-*.json"))]
    parts.append(evaluations([(stem, record) for stem, record in found if "encoders" in record]))
    parts.append(dense([(path.stem, read_json(path)) for path in sorted(results.glob("dense-*.json"))]))
    parts.append(render_processes.scaling(read_json(results / "scaling.json")))
    parts.append(render_processes.in_turns(read_json(results / "scaling-turns.json")))
    parts.append(render_processes.together(read_json(results / "views-together.json")))
    parts.append(render_processes.beside(read_json(results / "side-by-side.json")))
    parts.append(render_processes.maps(read_json(results / "maps.json")))
    return "\n".join(parts)


def headline(results: Path) -> str:
    """What the README says at once: good and bad, each with the page that tells how."""
    demo, told = read_json(results / "demo.json"), read_json(results / "verdicts.json")
    quick, *timed = (
        seeds(results, name)[name] for name in ("auto-4m-imagenette", "cifar10-10min-half", "cifar10-45min-half")
    )
    counts = told["counts"]["all"]["all"]
    small, large = (
        {goal["what"]: goal for goal in read_json(results / f"speed-pretrain-{side}.json")["goals"]}
        for side in (32, 224)
    )
    tuned = "… against the best peer tuned"
    lines = ["| what | figure | beside it |", "|---|---|---|"]

    def line(page: str, what: str, figure: str, beside: str) -> None:
        lines.append(f"| [{what}](docs/{page}.md) | {figure} | {beside} |")

    def share(value: float) -> str:
        return f"{100 * value:.1f} %"

    ours = demo["results"]
    minutes, way = demo["seconds"] / 60, [f"{name} {share(ours[name]['linear'])}" for name in ("random", "supervised")]
    line("results", f"the demo, {minutes:.0f} minutes, linear", share(ours["BYOL"]["linear"]), ", ".join(way))
    for runs in timed:
        minutes = statistics.mean(run["pretraining_minutes"] for run in runs)
        what = f"CIFAR-10 JPEGs, {minutes:.0f} minutes of one core, linear, {len(runs)} seeds"
        beside = f"random {percent([run['random']['linear'] for run in runs])}"
        if larger := [run["byol_larger"] for run in runs if "byol_larger" in run]:
            beside = f"at {larger[0]['px']} px {percent([each['linear'] for each in larger])}, {beside}"
        line("results", what, percent([run["byol"]["linear"] for run in runs]), beside)
    images, budget = re.search(r"on (\d+) images", quick[0]["what"]), quick[0]["budget"].split()[0].rstrip("m")
    what = f"`auto` on {images[1] if images else 'some'} photos, {budget} minutes, kNN, {len(quick)} seeds"
    figures = (percent([run[who]["knn"] for run in quick]) for who in ("byol", "untrained"))
    line("results", what, next(figures), f"untrained {next(figures)}")
    for side, goals in ((32, small), (224, large)):
        goal = goals[tuned]
        aim = f"goal {render_speed.quantity(goal['goal'], '×')}: {'reached' if goal['reached'] else 'missed'}"
        line("speed", f"speed at {side} px, best peer tuned = 1", render_speed.quantity(goal["figure"], "×"), aim)
    missed, alarms = counts["collapsed_missed"] + counts["worse_missed"], counts["false_alarms"]
    bad = counts["collapsed"] + counts["worse"]
    line(
        "learning",
        "bad runs that the verdict missed",
        f"{missed} of {bad}",
        f"{alarms} alarms in {counts['better']} good runs, {counts['made_to_collapse']} of them made to collapse",
    )
    soon = read_json(results / "speed-time-to-accuracy.json")
    level, taken = next(reversed([goal for goal in soon["goals"] if goal["unit"] == "s"])), "minutes of one thread"
    theirs = [(right, seconds) for run in soon["runs"] if run["who"] == "lightly" for seconds, right in run["looks"]]
    reached = [max(right for _, right in run["looks"]) for run in soon["runs"] if run["who"] == "byol"]
    beside = f"{sum(right >= soon['spec']['accuracies'][-1] for right in reached)} of {len(reached)} seeds; "
    beside += f"lightly's CIFAR-10 recipe: {share(max(theirs)[0])} at best, after {max(theirs)[1] / 60:.0f}"
    line("speed", level["what"].partition(" of kNN")[0] + " of kNN", f"{level['figure'] / 60:.1f} {taken}", beside)
    closed, family = (
        top1(results / "tables" / f"{name}-night.json") for name in ("optimal-predictor", "byol-to-simclr")
    )
    beside = f"trained predictor {closed['baseline']:.1f} %, SimCLR {family['SimCLR: β 1']:.1f} %"
    what = "BYOL with `network.predictor isotropic`, `night` scale, linear"
    line("paper-tables", what, f"{closed['isotropic predictor']:.1f} %", beside)
    for scale in ("night", "cpu"):
        tables = [read_table(path) for path in sorted((results / "tables").glob(f"*-{scale}.json"))]
        orders = [agreement(each, each.columns[0].title) for each in tables]
        agree, pairs = sum(each.clear_agree for each in orders), sum(each.clear_pairs for each in orders)
        what = f"clear pairs of rows in the paper's order, {len(tables)} tables"
        line("paper-tables", what, f"{agree} of {pairs}", f"`{scale}` scale: {SCALES[scale].what.partition(' on ')[0]}")
    return "\n".join(lines) + "\n"


def seeds(results: Path, names: str) -> dict[str, list[dict[str, Any]]]:
    """The records of each run's seeds."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(results.glob(f"{names}-seed*.json")):
        found[path.stem.rsplit("-seed", 1)[0]].append(read_json(path))
    return found


def top1(path: Path) -> dict[str, float]:
    """The mean over seeds of every row of a table, in percent."""
    rows = read_table(path).rows
    return {row.label: statistics.mean(cell.figures["Top-1"] for cell in row.cells) for row in rows if row.cells}


def first_hour(results: Path) -> str:
    """What a new user's walk took, from a clone to each first result."""
    record = read_json(results / "walk.json")
    names = {
        "1. From photos to an encoder": "a first encoder of 4,317 photos, and its report",
        "2. From given weights": "a first classifier from given weights, and its answers for 4,317 photos",
        "4. Reproduce a table": "a first row of a table of the paper",
        "make docs": "this site",
    }
    screen = 40  # lines
    lines = ["| from a clone to | commands | minutes | of them computing | screens to read |", "|---|---|---|---|---|"]

    def took(steps: list[dict[str, Any]], clock: str) -> str:
        return f"{sum(step[clock] for step in steps) / 60:.1f}"

    for walk in record["walks"]:
        steps = walk["steps"]
        read = walk["readme"] + sum(step["lines"] for step in steps)
        count = len(steps) + len(record["setup"]) + 1  # and the environment is activated
        figures = [str(count), took(steps, "seconds"), took(steps, "processor"), f"{read / screen:.1f}"]
        lines.append(f"| {names[walk['task']]} | {' | '.join(figures)} |")
    setup = record["setup"]
    return "\n".join(
        [
            *lines,
            "",
            "Commands are counted from `git clone` on; minutes are those after `make setup`, which took "
            f"{took(setup, 'seconds')}, as torch had to be downloaded.",
            f"The machine was busy: {record['load']:.0f} processes for {record['cores']} cores, of which byol had one, "
            "so that most of the minutes are waiting.",
            f"A screen has {screen} lines: of the README down to the task's commands, and of what the commands print.",
            "The weights were a ResNet-18 of torchvision's names with random numbers, the photos flowers of 5 kinds, "
            "the row's images CIFAR-10.",
            "",
        ]
    )


def rendered(results: Path) -> dict[Path, str]:
    """Every page that holds figures, as it should be."""
    pages = {name: (ROOT / name).read_text("utf-8") for name in PAGES}
    for name, block, make in (
        ("README.md", "headline", headline),
        ("docs/results.md", "results", scores),
        ("docs/learning.md", "verdicts", lambda place: verdicts(read_json(place / "verdicts.json"))),
        ("docs/from-weights.md", "weights", render_weights.from_weights),
        ("docs/tune.md", "calibration", render_views.calibration),
        ("docs/any-image.md", "kinds", render_views.kinds),
        ("docs/own-images.md", "walk", first_hour),
    ):
        assert f"<!-- {block}: " in pages[name], f"{name} has no place for {block}"
        pages[name] = filled(pages[name], block, make(results))
    pages["docs/speed.md"] = filled(pages["docs/speed.md"], "speed", render_speed.section(results))
    pages["docs/paper-tables.md"] = with_tables(pages["docs/paper-tables.md"], results / "tables")
    return {ROOT / name: text for name, text in pages.items()}


def main() -> None:
    for path, text in rendered(ROOT / "results").items():
        write_atomically(path, text.encode())
    render_speed.plot(ROOT / "results")


if __name__ == "__main__":
    main()
