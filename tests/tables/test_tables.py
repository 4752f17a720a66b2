"""The paper's tables as data: every declaration, the keys of cells, kills, failures, jobs, and what is rendered."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byol import data, presets
from byol.config import Data, apply, flatten
from byol.errors import ByolError, UsageError
from byol.evals.spec import PROTOCOLS, Specs
from byol.tables import catalog, measure, render
from byol.tables.ablations import SIMCLR
from byol.tables.catalog import TABLES, Request
from byol.tables.cells import Cell, Plan
from byol.tables.compute import header
from byol.tables.figures import DRAW, picture
from byol.tables.record import CellFacts, CellRecord, ColumnFacts, RowFacts, TableRecord, Verdict, write_table
from byol.tables.run import run
from byol.tables.scales import SCALES
from byol.tables.table import Row, evaluation_spec, resolved
from tests.conftest import write_images

BASELINE = {"paper-300": "72.5", "paper-1000": "74.3"}
WITHOUT_BASELINE = ("predictor-projector-lr", "linear-encoders", "simclr-baseline")
# What a person copied from the paper once more, without looking at the declarations: table, row, column → as printed.
COPIED = {
    ("linear-protocols", "ResNet-200 (2×), both", 0): "80.0",
    ("larger-encoders", "ResNet-101 (3×)", 0): "78.4",
    ("larger-encoders", "ResNet-152 (3×)", 2): "80.9",
    ("linear-resnet50", "MoCo v2", 0): "71.1",
    ("linear-encoders", "SimCLR, ResNet-50 (4×)", 1): "93.2",
    ("semi-supervised", "BYOL", 0): "53.2",
    ("semi-supervised", "BYOL, ResNet-50 (4×)", 3): "92.5",
    ("few-labels-encoders", "ResNet-50 (1×)", 6): "77.7",
    ("all-labels", "MaxUp, supervised", 1): "94.2",
    ("dense-voc", "MoCo + IG-1B", 1): "73.6",
    ("dense-depth", "RelPos, ResNet-101", 3): "0.399",
    ("target-memory", "moving average that remembers 1/94", 0): "69.8",
    ("simclr-baseline", "the original's loss and heads", 0): "67.9",
    ("initialization", "as it is", 0): "72.5",
    ("few-labels", "SimCLR", 6): "76.5",
    ("transfer-linear", "BYOL", 8): "75.5",
    ("transfer-linear", "SimCLR", 3): "42.4",
    ("transfer-finetuned", "BYOL", 11): "97.0",
    ("places365", "BYOL-PL", 5): "28.8",
    ("batch-512", "batch 512", 0): "73.7",
    ("batch-size", "SimCLR, batch/16", 0): "64.3±2.1",
    ("batch-size", "BYOL, batch/64", 1): "83.2±1.2",
    ("augmentations", "SimCLR, remove color (jittering and grayscale)", 0): "45.7",
    ("augmentations", "BYOL, crop and blur only", 0): "61.1±0.3",
    ("target-decay", "constant random network, τ 1", 0): "18.8±0.7",
    ("byol-to-simclr", "SimCLR: β 1", 0): "69.4",
    ("byol-to-simclr-13", "predictor, sg(θ), β 0", 0): "5.5",
    ("depth", "projector 1, predictor 3", 0): "65.7",
    ("projection-size", "16", 0): "69.9±0.3",
    ("learning-rate", "0.01/0.3", 1): "60.8±3.2",
    ("weight-decay", "1e-5", 0): "69.6±0.4",
    ("temperature", "β 1, α 0.01", 0): "53.9±0.5",
    ("normalization", "batch norm", 1): "85.3",
    ("predictor-lr", "λ 2", 0): "62.8±1.5",
    ("predictor-projector-lr", "μ 2, λ 2", 0): "15.8±13.4",
    ("optimal-predictor", "optimal linear predictor", 0): "52.5",
    ("training-length", "stop gradient of online, τ 0", 0): "0.3",
    ("target-rate", "constant random network", 0): "18.8±0.7",
}


def row_of(table: str, label: str) -> Row:
    return next(row for row in TABLES[table].rows if row.label == label)


@pytest.mark.parametrize("name", TABLES)
def test_every_declaration(name: str) -> None:
    """Breaks if a row has a wrong field or value at any scale, a figure too few, or two rows one label."""
    table = TABLES[name]
    assert len({row.label for row in table.rows}) == len(table.rows)
    assert table.figure in DRAW
    assert table.name == name
    assert table.source
    assert table.seeds
    assert any(any(row.published) for row in table.rows)
    assert any(row.ours for row in table.rows)
    for column in table.columns:
        assert not column.protocol or (column.protocol in PROTOCOLS and column.small in PROTOCOLS)
    for row in table.rows:
        figures = row.published
        assert len(figures) == len(table.columns)
        assert all(0 <= f.value <= 100 and 0 <= (f.spread or 0) < 50 for f in figures if f)
    for scale in SCALES.values():
        for row in table.at(scale):
            assert not (row.overrides and not row.ours)
            preset, overrides = resolved(table, row, scale, {}, seed=3)
            assert presets.compose(preset, overrides, {})[0].run.seed == 3
            apply(Specs(), evaluation_spec(table, row, scale), name)


@pytest.mark.parametrize(
    "name", [n for n, t in TABLES.items() if t.columns[0].protocol == "linear" and not t.columns[0].on]
)
def test_the_base_is_the_papers_baseline(name: str) -> None:
    """Breaks if a base value, such as the learning rate or a depth, is not that of the row printed as baseline."""
    table = TABLES[name]
    base = presets.compose(table.base, {}, {})[0]
    pretrained = [row for row in table.rows if row.ours and row.encoder == "pretrained" and not row.spec]
    same = [row for row in pretrained if presets.compose(*resolved(table, row, SCALES["paper"], {}), {})[0] == base]
    assert all(row.printed.split()[0] == BASELINE[table.base] for row in same)
    assert len(same) == (0 if name in WITHOUT_BASELINE else 1)


def test_figures_are_those_of_the_paper() -> None:
    """Breaks if a published figure is mistyped, or lands in another row or column."""
    assert {table for table, _, _ in COPIED} == set(TABLES)
    for (table, label, column), printed in COPIED.items():
        assert row_of(table, label).printed.split()[column] == printed, (table, label)


def test_simclr_rows_are_the_preset_with_byols_views() -> None:
    """Breaks if the SimCLR of the tables and the preset simclr drift apart."""
    row = row_of("batch-size", "SimCLR, batch/1")
    config = presets.compose(*resolved(TABLES["batch-size"], row, SCALES["paper"], {}), {})[0]
    assert config == replace(presets.simclr(), views=presets.paper_300().views)
    assert row.overrides == SIMCLR


def test_relative_values_follow_the_scale() -> None:
    """Breaks if a row that is tied to the scale, such as a learning rate, is taken as an absolute number."""
    values = {}
    for name, scale in SCALES.items():
        _, lr = resolved(TABLES["learning-rate"], row_of("learning-rate", "1/0.3"), scale, {})
        _, heads = resolved(TABLES["batch-size"], row_of("batch-size", "SimCLR, batch/2"), scale, {})
        values[name] = (lr["optim.lr"], heads["network.projector_hidden"], heads["optim.accumulate"])
    assert values["paper"] == (pytest.approx(1.0), 2048, 2)
    assert values["cpu"] == (pytest.approx(0.8 / 0.3), 512, 2)
    assert values["night"] == (pytest.approx(0.12 / 0.3), 256, 2)


def asked(out: Path, tiny: dict[str, Any], **more: Any) -> Plan:
    """Two rows of target-decay and the random encoder, on scenes, in about a second a cell."""
    values: dict[str, Any] = {"seeds": 1, "data": "scenes:40", "rows": ("0.99", "τ 0"), "given": tiny}
    return catalog.plan(Request("target-decay", "cpu", out=out, **{**values, **more}))


def keys(plan: Plan) -> list[str]:
    return [cell.key for cell in plan.distinct()]


def test_the_key_is_what_a_cell_depends_on(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a field, the seed, the images or the evaluation leave the key, or anything else enters it."""
    folder = write_images(tmp_path / "images", 6)
    plan = lambda out=tmp_path, **more: asked(out, tiny, **{"data": str(folder), **more})
    before = keys(plan())
    shutil.copytree(folder, tmp_path / "moved")
    same = [
        plan(out=tmp_path / "elsewhere"),
        plan(data=str(tmp_path / "moved")),
        plan(given={**tiny, "run.log_every": 7, "data.workers": 1, "data.root": "x", "run.checkpoint_seconds": 9}),
    ]
    assert all(keys(other) == before for other in same)
    renamed = plan()
    label = replace(renamed.rows[0], label="another name", printed="1.0")
    assert keys(replace(renamed, rows=(label, *renamed.rows[1:]))) == before
    assert keys(plan(seeds=2))[:3] == before
    assert len(set(keys(plan(seeds=2)))) == 6
    changed = [
        plan(given={**tiny, "optim.epochs": 3}),
        plan(given={**tiny, "optim.lr": 0.123}),
        replace(plan(), table=replace(TABLES["target-decay"], spec={"transfer.max_iterations": 9})),
    ]
    found = [keys(other) for other in changed]
    (folder / "class0" / "more.jpg").write_bytes(b"x")
    found.append(keys(plan()))
    assert not set(before) & {key for other in found for key in other}
    assert len({tuple(other) for other in found}) == len(found)


def test_rows_with_one_config_are_one_cell(tmp_path: Path) -> None:
    """Breaks if a row that changes nothing at this scale is computed again: at 32 px there is no blur to remove."""
    plan = catalog.plan(Request("augmentations", "cpu", 1, "scenes:40", tmp_path, ("BYOL",)))
    assert plan.cells["BYOL, baseline"][0].key == plan.cells["BYOL, remove blur"][0].key
    shared = catalog.plan(Request("linear-protocols", "cpu", 1, "scenes:40", tmp_path))
    runs = {cell.run for cells in list(shared.cells.values())[:4] for cell in cells}
    assert len(runs) == 1
    assert len(shared.distinct()) == 5


def fake(cell: Cell) -> CellRecord:
    """A cell's record without any training."""
    scores = [replace(score, test={"top1": 0.5, "top5": 0.9}) for score in header(cell).scores]
    return replace(header(cell), status="finished", scores=scores, verdict=Verdict("learning", ""))


def test_a_failing_row_stops_no_other(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if an error in one cell ends the table, is lost, or is taken for a result when it is started again."""
    computed = []

    def broken(cell: Cell) -> CellRecord:
        computed.append(cell.label)
        if "τ 0.99" in cell.label and computed.count(cell.label) == 1:
            raise RuntimeError("no luck")
        return fake(cell)

    monkeypatch.setattr(measure, "measure", broken)
    plan = asked(tmp_path / "out", tiny)
    with pytest.raises(ByolError, match="1 of 3 cells failed"):
        run(plan)
    assert len(computed) == 3
    assert "failed: RuntimeError: no luck" in capsys.readouterr().out
    record = run(plan)
    assert computed[3:] == ["moving average of online, τ 0.99"]
    assert [cell.figures["Top-1"] for row in record.rows for cell in row.cells] == [50.0] * 3


def test_a_tables_file_alone_is_gone_on_from(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if cells that another machine's JSON holds are computed again, lose evidence on the way, or if a damaged
    file ends the table."""
    monkeypatch.setattr(measure, "measure", fake)
    first = run(asked(tmp_path / "there", tiny))
    here = tmp_path / "here"
    here.mkdir()
    name = f"{first.table}-{first.scale}.json"
    shutil.copy(tmp_path / "there" / name, here / name)
    monkeypatch.setattr(measure, "measure", lambda cell: pytest.fail(f"{cell.label} was computed again"))
    assert run(asked(here, tiny)) == first
    shutil.rmtree(here / "cells")
    (here / name).write_text("{")
    monkeypatch.setattr(measure, "measure", fake)
    again = run(asked(here, tiny))
    assert [cell.figures for row in again.rows for cell in row.cells] == [{"Top-1": 50.0}] * 3
    assert "is not valid JSON" in capsys.readouterr().err


def made_up() -> TableRecord:
    """Four rows whose order is known: paper 70 > 69.5 > 60 > 10, ours 50, 52, 40 and, of one seed only, 45."""

    def row(label: str, printed: str, values: list[float], word: str, repeats: str = "") -> RowFacts:
        verdict = Verdict(word, "")
        cells = [
            CellFacts(seed, "finished", "", {"Top-1": value}, verdict, looks=LOOKS, **HOW)
            for seed, value in enumerate(values)
        ]
        return RowFacts(label, "", 1.0, {"Top-1": printed}, repeats, cells)

    rows = [
        row("a|b", "70.0", [49.0, 51.0], "learning"),
        row("c", "69.5", [50.0, 54.0], "learning"),
        row("d", "60.0±0.7", [40.0, 40.0], "stalled"),
        row("e", "10.0", [45.0], "collapsing"),
        row("again", "70.0", [49.0, 51.0], "learning", repeats="a|b"),
    ]
    rows[3].cells.append(CellFacts(1, "failed", error="no luck"))
    columns = [ColumnFacts("Top-1", 1.0, "transfer-linear")]
    return TableRecord("made-up", "Made up", "Table 0", "cpu", "rows", columns, ["one thing."], 2, rows)


LOOKS = [{"step": float(s), "norm_representation": 1.0 + s, "norm_projection": 2.0} for s in range(3)]
HOW: dict[str, Any] = {"preset": "cifar10-cpu", "overrides": {"optim.epochs": 1.5}, "data": {"images": "abc"}}


def test_rendering_a_known_table() -> None:
    """Breaks if a mean, a half range, the count of pairs in order or the verdict is computed or shown wrongly.

    By hand: pairs ac, ad, ae, cd, ce, de; ours agrees on ad, ae, cd, ce; ac is within a point; de and ac are not.
    """
    record = made_up()
    assert render.agreement(record, "Top-1") == (4, 6, 4, 5)
    lines = render.markdown(record).splitlines()
    assert lines[4] == "| a\\|b | 50.0 ± 1.0 | 70.0 | 2 | learning |"
    assert lines[6] == "| d | 40.0 ± 0.0 | 60.0 ± 0.7 | 2 | stalled |"
    assert lines[7] == "| e | 45.0 | 10.0 | 1 | 1 collapsing, 1 failed: no luck |"
    assert lines[8].endswith("| learning; same run as “a\\|b” |")
    assert (
        "- Top-1: 4 of 6 pairs of rows are in the paper's order, 4 of 5 of those more than 1 point apart there" in lines
    )
    assert lines[-1] == "- Note: one thing."
    table = list(csv.DictReader(io.StringIO(render.comma_separated(record))))
    assert table[1]["mean"] == "52.000"
    assert table[1]["half_range"] == "2.000"
    assert table[1]["values"] == "50.000 54.000"
    assert table[3]["seeds"] == "1"
    assert table[2]["paper"] == "60.0±0.7"


def test_what_was_learned_on_the_way_is_shown() -> None:
    """Breaks if a quarter of the run is another one, or seeds are not averaged: nine looks, so every second one."""
    record = made_up()
    seeds = [[{"step": float(s), "knn": 0.1 + (0.05 + 0.02 * seed) * s} for s in range(9)] for seed in range(2)]
    cells = [replace(cell, looks=looks) for cell, looks in zip(record.rows[0].cells, seeds, strict=True)]
    record.rows[0] = replace(record.rows[0], cells=cells)
    assert render.on_the_way(record.rows[0]) == pytest.approx([10, 22, 34, 46, 58])
    lines = render.markdown(record).splitlines()
    assert lines[2].endswith("| seeds | verdict | kNN on the way |")
    assert lines[4].endswith("| learning | 10 22 34 46 58 |")
    assert lines[5].endswith("| learning | – |")
    assert render.on_the_way(record.rows[1]) == []


@pytest.mark.parametrize("kind", DRAW)
def test_pictures(tmp_path: Path, kind: str) -> None:
    """Breaks if a kind of figure cannot be drawn, of full tables or of one without any result."""
    pytest.importorskip("matplotlib", reason="needs matplotlib, which draws figures")
    from PIL import Image

    full = made_up()
    empty = replace(full, rows=[replace(row, cells=[CellFacts(0, "missing")]) for row in full.rows])
    inks = []
    for place, record in enumerate((full, empty)):
        picture(tmp_path / f"{place}.png", replace(record, figure=kind))
        inks.append(int((np.asarray(Image.open(tmp_path / f"{place}.png").convert("L")) < 250).sum()))
    assert inks[0] > inks[1] > 0


def test_the_readme_is_rendered_from_results(tmp_path: Path) -> None:
    """Breaks if a committed table does not reach its page, or text outside the markers is touched."""
    from benchmarks import render as readme

    write_table(tmp_path / "made-up-cpu.json", made_up())
    text = "before\n<!-- tables: x -->\nold\n<!-- /tables -->\nafter\n"
    found = readme.with_tables(text, tmp_path)
    assert found.startswith("before\n<!-- tables: x -->\n")
    assert found.endswith("<!-- /tables -->\nafter\n")
    assert "old" not in found
    assert render.markdown(made_up()) in found


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["target-decy"], "There is no table 'target-decy'. Did you mean target-decay or"),
        (["target-decay", "--scale", "cpu"], "The cpu scale needs --data"),
        (["target-decay", "--scale", "night"], "The night scale needs --data"),
        (["target-decay", "--scale", "cpu", "--data", "nowhere"], "There is no folder nowhere"),
        (["target-decay"], "There is no imagenet in datasets"),
        (["larger-encoders", "--scale", "cpu", "--data", "scenes"], "no cpu scale"),
        (["target-decay", "--scale", "cpu", "--data", "scenes", "--rows", "τ 7"], "no row 'τ 7'"),
        (["target-decay", "--seeds=-1"], "--seeds must be at least 1"),
        (["target-decay", "--scale", "cpu", "--data", "scenes", "--jobs", "cluster"], "--jobs should be local:N"),
        (["target-decay", "--scael", "cpu"], "Did you mean --scale"),
    ],
)
def test_wrong_requests(
    words: list[str], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a mistake is not answered in a sentence with exit code 2 (G4)."""
    from byol import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["byol", "table", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert answer in error
    assert not (tmp_path / "tables" / "cells").exists()


def test_listing_needs_no_torch() -> None:
    """Breaks if --list, or a wrong name, has to wait for torch."""
    script = (
        "import sys; from byol import cli; sys.argv = ['byol', 'table', *sys.argv[1:]]\n"
        "try: cli.main()\n"
        "except SystemExit as ended: print('torch' in sys.modules, ended.code)"
    )
    for words, code in ((["--list"], 0), (["no-such"], 2)):
        answer = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
        assert answer.stdout.splitlines()[-1] == f"False {code}", answer.stderr
    listed = catalog.listing()
    assert all(re.search(rf"^{name} ", listed, re.MULTILINE) for name in TABLES)
    assert "Table 5a]" in listed  # without its name in the paper's LaTeX
    assert not re.search(r"\((tab|table|fig|app):", listed)


def test_a_benchmark_can_be_pretrained_on(tmp_path: Path) -> None:
    """Breaks if pretraining on a named benchmark leaves out the images held out for validation, or sees the test's."""
    for part, count in (("train", 40), ("val", 6)):
        write_images(tmp_path / "imagenet" / part, count)
    config = Data(root=str(tmp_path))
    source = data.open_source("imagenet", config)
    task = data.open_task("imagenet", config)
    assert len(source) == 40 == len(task.train) + len(task.validation)
    assert len({source.describe(i) for i in range(40)}) == 40
    assert source.labels is not None
    assert np.bincount(source.labels).tolist() == [20, 20]
    with pytest.raises(UsageError):
        data.open_source("places365", config)


def test_flags_hold_for_rows_that_do_not_set_them() -> None:
    """Breaks if a flag wins over what makes a row, or the scale over a flag."""
    table = TABLES["target-decay"]
    given = {"optim.tau": 0.95, "optim.epochs": 7.0}
    values = [resolved(table, row, SCALES["cpu"], given)[1] for row in table.rows]
    taus = [flatten(presets.compose("paper-300", v, {})[0])["optim.tau"] for v in values]
    assert taus == [0.95, 0.999, 0.99, 0.9, 0.95, 0.95]
    assert all(v["optim.epochs"] == 7.0 for v in values)
