"""The scales of the tables, rows that mean the same at each of them, and rows that are not pretrained by us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byol import presets
from byol.config import Config, flatten
from byol.errors import UsageError
from byol.tables import catalog, render
from byol.tables.catalog import TABLES, Request
from byol.tables.forecast import Devices, announcement, at_a_time, forecast, pace, reckoned, rows
from byol.tables.record import read_table
from byol.tables.run import Progress, collect, preview, run
from byol.tables.scales import SCALES, Memory, Share, Times, filled, memory_of
from byol.tables.table import UNTRAINED, Row, reported, resolved
from tests.tables.test_tables import asked, fake, row_of

ROOT = Path(__file__).resolve().parents[2]
# What the committed figures of the cpu scale were computed with, beside the paper's ablations; typed, not taken over.
CPU = {
    **{"data.resolution": 16, "data.holdout": 0.02, "views.t.area_min": 0.2, "views.t_prime.area_min": 0.2},
    **{"views.t.blur": 0.0, "views.t_prime.blur": 0.0, "network.encoder": "resnet18", "network.width": 0.25},
    **{"network.small_images": True, "network.zero_init_last": True, "network.projector_hidden": 1024},
    **{"network.predictor_hidden": 1024, "optim.batch": 64, "optim.lr": 0.8, "optim.trust_coefficient": 0.005},
    **{"optim.epochs": 2.0, "optim.warmup_epochs": 0.25, "run.checkpoint_seconds": 60.0},
    **{"optim.tau": 0.99, "optim.weight_decay": 1e-6, "views.t_prime.solarize": 0.2},
}
# What the night scale has instead, typed in the same way.
NIGHT = {
    **{"data.resolution": 24, "network.small_images": False, "network.projector_hidden": 512, "optim.batch": 128},
    **{"network.predictor_hidden": 512, "optim.optimizer": "sgd", "optim.lr": 0.12, "optim.weight_decay": 5e-4},
    **{"optim.tau_schedule": "constant", "optim.epochs": 12.0, "optim.warmup_epochs": 0.4, "run.passes": "together"},
}


def baseline(scale: str) -> dict[str, Any]:
    """The config of the paper's baseline at a scale."""
    row = row_of("target-decay", "moving average of online, τ 0.99")
    return flatten(presets.compose(*resolved(TABLES["target-decay"], row, SCALES[scale], {}), {})[0])


def test_small_scales_depend_on_no_preset_for_small_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a scale takes a value from cifar10-cpu, or a value that its cells rely on changes."""
    monkeypatch.setitem(presets.PRESETS, "cifar10-cpu", presets.imagenette)
    monkeypatch.setitem(presets.PRESETS, "cifar10", presets.imagenette)
    expected = flatten(Config()) | CPU
    assert baseline("cpu") == expected
    assert baseline("night") == expected | NIGHT
    row = row_of("byol-to-simclr", "BYOL: predictor, target, β 0")
    base = flatten(presets.compose(*resolved(TABLES["byol-to-simclr"], row, SCALES["night"], {}), {})[0])
    # Of 4,687 steps of 128 images, 12 epochs of 50,000, the share that τ 0.99 remembers of 93,835.
    assert base == expected | NIGHT | {"optim.tau": pytest.approx(1 - 938.35 / 4687)}
    assert baseline("paper") == flatten(presets.paper_300())


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "tables").glob("*.json")), ids=lambda path: path.stem)
def test_committed_cells_are_those_that_are_declared(path: Path) -> None:
    """Breaks if a row or a scale changes its meaning while figures of the former meaning are shown."""
    record = read_table(path)
    declared = {row.label: row for row in (UNTRAINED, *TABLES[record.table].rows)}
    for row in record.rows:
        for cell in row.cells:
            made = resolved(TABLES[record.table], declared[row.label], SCALES[record.scale], {}, cell.seed, 49_000)
            own = flatten(presets.compose(cell.preset, cell.overrides, {})[0])
            assert own == flatten(presets.compose(*made, {})[0]), row.label


def test_a_new_field_leaves_every_cell(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a field at its default enters the key: then each new option would void all cells that there are."""
    from byol.tables import cells

    def keys() -> list[str]:
        return [cell.key for cell in asked(tmp_path, tiny).distinct()]

    before, real = keys(), cells.flatten

    def with_field(set_to: float) -> Callable[[Any], dict[str, Any]]:
        """A config has one field more, 0 by default."""
        return lambda v: real(v) | ({"objective.fade": set_to * (v != Config())} if isinstance(v, Config) else {})

    monkeypatch.setattr(cells, "flatten", with_field(0.0))
    assert keys() == before
    monkeypatch.setattr(cells, "flatten", with_field(0.5))
    assert not set(keys()) & set(before)


def test_a_memory_is_the_same_share_of_every_run() -> None:
    """Breaks if tau does not follow the steps: by hand, 1 - 1/(0.01 · 2,000) = 0.95, and of 30 steps 1 - 1/3."""
    assert Memory(0.01).tau(2000) == pytest.approx(0.95)
    assert Memory(0.01).tau(50) == 0.0
    values = filled("paper-300", {"optim.epochs": 3.0, "optim.batch": 100}, {"optim.tau": Memory(0.1)}, images=1000)
    assert values["optim.tau"] == pytest.approx(2 / 3)
    paper = [1 / memory_of(tau, 93_835) for tau in (0.999, 0.99, 0.9)]
    assert paper == pytest.approx([94, 940, 9400], rel=5e-3)
    table = TABLES["target-memory"]
    for scale in SCALES.values():
        moving = [row for row in table.at(scale) if "remembers" in row.label]
        made = [presets.compose(*resolved(table, row, scale, {}), {})[0] for row in moving]
        shares = [render.part(pace(config, scale.images).memory) for config in made]
        assert shares == ["1/94", "1/940", "1/9,400"][: len(shares)]
    paper_scale = [
        [presets.compose(*resolved(TABLES[name], row, SCALES["paper"], {}), {})[0] for row in TABLES[name].rows]
        for name in ("target-memory", "target-decay")
    ]
    assert paper_scale[0] == paper_scale[1]


def test_relative_values_come_after_those_they_are_relative_to() -> None:
    """Breaks if a row's multiple is of the preset's value instead of the scale's, or warm-up of other epochs."""
    common = {"optim.lr": 0.8, "optim.epochs": 30.0, "optim.warmup_epochs": Share(0.1)}
    values = filled("paper-300", common, {"optim.lr": Times(0.5)}, 1000)
    assert (values["optim.lr"], values["optim.warmup_epochs"]) == (0.4, pytest.approx(3.0))
    longer = filled("paper-300", {**common, "optim.epochs": 60.0}, {}, 1000)
    assert longer["optim.warmup_epochs"] == pytest.approx(6.0)


def test_the_plan_says_cells_and_time(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if cells or processes are miscounted, a row's share of the run is wrong, or operations do not count."""
    plan = asked(tmp_path, {**tiny, "optim.epochs": 10, "optim.batch": 8}, seeds=2)
    cells = plan.distinct()
    found = forecast(cells, plan.images)
    moving, stopped, random = (plan.cells[row.label][0].key for row in plan.rows)
    assert found[random] == 0
    assert found[moving] > found[stopped] > 0  # a target network of its own costs two passes more
    twice = asked(tmp_path, {**tiny, "optim.epochs": 20, "optim.batch": 8}, seeds=2).distinct()
    both = forecast([*cells, *twice], plan.images)
    assert both[twice[0].key] == pytest.approx(2 * both[moving], rel=0.02)
    lines = announcement(plan, {moving: 90.0, stopped: 30.0, random: 0.0}, 2)
    assert "3 rows to run, 2 seeds, 6 cells; 0 done, 6 missing" in lines[1]
    assert lines[2].startswith("  about 1m00s a cell, 1m00s in all, 2 at a time")
    shown = list(rows(plan, found))
    steps = 10 * 40 // 8  # of 40 scenes: a fiftieth of them is none
    assert f"{steps:,}" in shown[1]
    assert render.part(memory_of(0.99, steps)) in shown[1]
    assert (at_a_time("local:3"), at_a_time("slurm:gpu"), at_a_time("")) == (3, 1, 1)


def test_a_table_is_planned_for_devices_that_are_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the cells of a table are not summed, jobs of Slurm are not as many devices as they ask for, or the
    paper's data have to be there. By hand: 268.6 TFLOPs a step on 8 x 312 TFLOP/s at a fifth take 0.538 s, the exchange
    9 ms, and 300 epochs have 93,835 steps; without a target network it is three quarters of that."""
    plan = catalog.plan(Request("target-decay", out=tmp_path, planned=True))
    found = reckoned(plan.distinct(), plan.images, Devices("a100", 8))
    moving, stopped, random = (plan.cells[row.label][0].key for row in (plan.rows[1], *plan.rows[-2:]))
    assert found[moving] == pytest.approx(93_835 * (268.58 / (8 * 312 * 0.2) + 0.0088), rel=0.01)
    assert found[stopped] / found[moving] == pytest.approx(0.75, abs=0.01)
    assert found[random] == 0
    preview(plan, "slurm:gpu:8", ("a100", 1))
    said = capsys.readouterr().out
    assert "18 cells; 0 done, 18 missing" in said
    assert f"{8 * sum(found.values()) / 3600:,.0f} hours of a device" in said
    with pytest.raises(UsageError, match="cannot be shared by 3 devices"):
        reckoned(plan.distinct(), plan.images, Devices("a100", 3))


def test_the_time_left_is_corrected_by_what_cells_took(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if the forecast is not scaled by the first cell's time: foreseen 10 s, took 30, so 20 more become 60."""
    cells = asked(tmp_path, tiny).distinct()
    progress = Progress(3, {cells[0].key: 10.0, cells[1].key: 20.0, cells[2].key: 0.0}, 1)
    progress.ended(cells[2], replace(fake(cells[2]), seconds=500.0))
    assert "first trained cell" in progress.left()
    progress.ended(cells[0], replace(fake(cells[0]), seconds=30.0))
    assert progress.left() == "about 1m00s left"


def test_published_rows_are_shown_and_not_run(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a method of somebody else's is run, counted among the pairs, or shown as missing."""
    plan = asked(tmp_path, tiny)
    plan = replace(plan, rows=(reported("MoCo v2", "71.1"), *plan.rows))
    assert plan.cells["MoCo v2"] == []
    assert len(plan.distinct()) == 3
    record = collect(plan)
    line = next(line for line in render.markdown(record).splitlines() if "MoCo" in line)
    assert line.startswith("| MoCo v2 | – | 71.1 | – | published by others, not run |")
    assert "published by others" in next(line for line in rows(plan, {}) if "MoCo" in line)
    assert render.comma_separated(record).count("MoCo v2,Top-1,71.1,,,0,,") == 1


def test_tau_is_rendered_literally_and_as_a_share(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a table does not say what its tau remembers, here and in the paper."""
    given = {**tiny, "optim.epochs": 100, "optim.batch": 8}
    text = render.markdown(collect(asked(tmp_path, given, rows=("0.99", "0.9"))))
    assert "| τ, ours | remembers | τ, paper | remembers |" in text
    assert "| 0.99 | 1/5 | 0.99 | 1/940 |" in text  # 100 epochs of 40 images: 500 steps, 1 / (0.01 · 500)
    assert "| 0.9 | 1/50 | 0.9 | 1/9,400 |" in text
    alone = render.markdown(collect(asked(tmp_path, given, rows=("0.99",))))
    assert "τ 0.99 remembers 1/5 of the run (paper: τ 0.99, 1/940)" in alone
    assert "500 steps (93,835 in the paper), 1/200 of them warm-up (1/30)" in alone  # half an epoch, of a tiny run


# The scale's own settings but for the number of steps and what is chosen from.
DENSE = {
    **{"segmentation.steps": 2, "segmentation.lrs": (0.01,), "detection.steps": 2, "detection.lrs": (0.001,)},
    **{"depth.steps": 2, "depth.lrs": (0.16,), "supervised.epochs": 1.0, "supervised.batch": 8},
}


@pytest.mark.parametrize("name", ["dense-voc", "dense-depth"])
def test_dense_tasks_are_columns(name: str, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a dense task cannot be a column, or the encoder of Supervised-IN is not the one trained with labels."""
    table = replace(TABLES[name], spec={}, rows=tuple(replace(row, spec=DENSE) for row in TABLES[name].rows))
    wanted = ("Supervised-IN", "MoCo" if name == "dense-voc" else "Multi-task", "BYOL")
    plan = catalog.plan(Request(name, "cpu", 1, "scenes:40", tmp_path, wanted, tiny))
    chosen = tuple(row for row in table.rows if row.label in {row.label for row in plan.rows})
    record = run(replace(plan, table=table, rows=chosen))
    found = {row.label: row for row in record.rows}
    titles = {column.title for column in record.columns}
    for label, word in (("Supervised-IN", "supervised"), ("BYOL", None)):
        (cell,) = found[label].cells
        assert set(cell.figures) == titles
        assert word is None or cell.verdict.word == word
    assert found["Supervised-IN"].cells[0].weights != found["BYOL"].cells[0].weights
    if name == "dense-depth":
        rms = found["BYOL"].cells[0].figures["rms (lower is better)"]
        assert rms == pytest.approx(found["BYOL"].cells[0].scores[0].test["rms"], abs=1e-3)  # metres, not percent
        assert f"| {rms:.3f} | 0.541 |" in render.markdown(record)


def test_a_supervised_row_has_its_own_protocol(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a row trained with labels is fine-tuned instead, or its figures do not reach columns of fractions."""
    table = TABLES["all-labels"]
    row: Row = next(row for row in table.rows if row.label == "Supervised")
    plan = catalog.plan(Request("all-labels", "night", 1, "scenes:40", tmp_path, ("Supervised",), tiny))
    plan = replace(plan, rows=(replace(row, spec=DENSE),))
    (cell,) = plan.distinct()
    assert [evaluation.protocol for evaluation in cell.evaluations] == ["supervised"]
    (facts,) = run(plan).rows[0].cells
    assert facts.figures["Top-1, 100%"] == pytest.approx(100 * facts.scores[0].test["top1"], abs=0.01)
