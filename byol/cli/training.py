"""The verbs that train: pretrain, table, demo."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from byol.cli.app import TRAIN, ConfigFlags, app, given_values
from byol.errors import UsageError, process_number
from byol.run import output
from byol.run.progress import tell


@app.command(group=TRAIN)
def pretrain(
    data: str = "",
    *,
    preset: str = "auto",
    config: Path | None = None,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    overwrite: bool = False,
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> object:
    """Pretrain an encoder on images, or go on where it stopped.

    The same command again continues a run that was stopped.

    Parameters
    ----------
    data
        A folder of images or of tar shards, a pattern or URL of shards (shards-{000..099}.tar, s3://…),
        torchvision:NAME, hf:NAME-or-PATH, scenes (rendered, needs no files), or a data set of the paper below
        --data.root, such as imagenet or places365.
    preset
        auto, grey, bands, microscopy, satellite, medical, paper-1000 or another of `byol presets`.
    config
        A YAML file of config fields; flags win over it, it wins over the preset.
    out
        The run directory; runs/DATA-PRESET when left out.
    overwrite
        Start again when the directory holds another run.
    """
    overrides = given_values(given) if given else {}
    location = _checked(data, preset, config, overrides)
    from byol.run.files import run_place

    place = run_place(data, location, out, preset)
    with _claimed(place):
        from byol.pretraining import pretrain as run

        done = run(data, place, preset, overrides, config_file=config, overwrite=overwrite)
    if not process_number():
        from byol.run.progress import say

        say(f"Next: {shlex.join(['byol', 'report', str(place)])}")
    last = {**(done.steps or [{}])[-1], **(done.looks or [{}])[-1]}
    return {"out": place, "encoder": done.encoder, "plan": done.plan, "verdict": done.verdict, "last": last}


@contextmanager
def _claimed(place: Path) -> Iterator[None]:
    """The run directory, held before torch is loaded: who comes second hears of it at once."""
    if process_number():
        yield  # the first process of a job holds it for all
        return
    from byol.run.files import only_writer, refuse_foreign

    refuse_foreign(place)
    with only_writer(place):
        yield


def _checked(data: str, preset: str, config: Path | None, overrides: dict[str, Any]) -> str:
    """Where the data is; what can be wrong in the command itself is said here, before torch is loaded."""
    from byol.config_file import read_yaml
    from byol.data.address import parse
    from byol.presets import compose

    composed, *_ = compose(preset, overrides, read_yaml(config) if config else {}, str(config or ""))
    if not data:
        raise UsageError(
            "Name the images to learn from, as in byol pretrain ./images; byol demo and byol pretrain scenes need none."
        )
    return parse(data, composed.data.root).check().location(composed.data.root)


@app.command(group=TRAIN)
def table(
    name: str = "",
    *,
    listed: Annotated[bool, Parameter(name="--list", negative=())] = False,
    scale: Literal["paper", "night", "cpu"] = "paper",
    seeds: int = 0,
    data: str = "",
    out: Annotated[Path, Parameter(alias="-o")] = Path("tables"),
    jobs: str = "",
    planned: Annotated[bool, Parameter(name="--plan", negative=())] = False,
    rows: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = [],  # noqa: B006 (cyclopts copies it)
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> object:
    """Run a table of the paper beside its published figures.

    The same command again computes only what is missing.

    Config fields that are given hold for every row that does not set them itself.

    Parameters
    ----------
    name
        One of those that --list shows.
    listed
        Show all tables and end.
    scale
        paper: ImageNet as in the paper, below --data.root. On the images of --data: cpu, minutes a cell, or night,
        half an hour of one core a cell.
    seeds
        Repeat every row with this many seeds; the paper's number when left out.
    data
        A folder of class folders with a test part, torchvision:NAME or scenes, instead of the paper's data.
    out
        Where runs, cells and the table go.
    jobs
        local:N for N processes here, slurm:PARTITION[:GPUS[:NODES]] for a cluster, each cell a job of
        GPUS x NODES processes; this process when left out.
    planned
        Show cells, minutes a cell and in all, and what each row means as shares of its run; compute nothing.
    rows
        Only rows whose label holds one of these texts.
    """
    from byol.tables import catalog

    if listed or not name:
        tell(catalog.listing())
        return [
            {"table": key, "title": each.title, "source": each.source, "rows": [row.label for row in each.rows]}
            for key, each in catalog.TABLES.items()
        ]
    asked = catalog.Request(name, scale, seeds, data, out, tuple(rows), given_values(given) if given else {})
    plan = catalog.plan(asked)
    output.check_folder(out)
    from byol.tables.run import preview, run

    return preview(plan, jobs) if planned else run(plan, jobs)


@app.command(group=TRAIN)
def demo(*, out: Annotated[Path, Parameter(alias="-o")] = Path("runs/demo")) -> object:
    """Pretrain on rendered scenes and compare, in a few minutes.

    A linear classifier on a random, the pretrained and a supervised encoder of the same shape.

    Parameters
    ----------
    out
        Where the run, the table and the pictures go.
    """
    output.check_folder(out)
    from byol.explore.demo import demo as run

    run(out)
    from byol.run.files import read_json

    return {"out": out, **read_json(out / "demo.json")}
