"""Loggers of others: what a run measures goes to TensorBoard, Weights & Biases and MLflow as well (`run.log`).

A logger is a `Log`, four functions that a maker in `LOGGERS` returns. It is a listener, never a part of the run: one
that fails is named in a line and left out from there on. Nothing leaves the machine unless the logger's own variables
(WANDB_MODE, MLFLOW_TRACKING_URI) say so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from byol.config import flatten
from byol.config_values import logger_names
from byol.data import loader
from byol.data.places import first_line
from byol.errors import UsageError
from byol.run import files, pictures
from byol.run.directory import Setup
from byol.run.painting import painter, view_rows
from byol.run.progress import say
from byol.run.record import Status, Verdict

NAME = "loggers.json"  # which runs of the loggers belong to this run: another session goes on with the same ones
SHEET = "views.png"
SHOWN, PAIRS = 6, 3  # images of the sheet, and pairs of views of each
PROJECT = "byol"
PACKAGES = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
Figures = Mapping[str, float | str]


@dataclass(frozen=True)
class Log:
    """What a logger does; all of it in the first process alone."""

    numbers: Callable[[int, Mapping[str, float]], object]  # what a step or a look measured
    text: Callable[[int, str, str], object]  # step, name and words
    picture: Callable[[str, Path], object]  # name and PNG file
    end: Callable[[Status, Figures], object]  # how the session ended, and the final figures


@dataclass(frozen=True)
class Place:
    """What a logger is told when it is opened."""

    out: Path
    step: int  # that this session begins with
    config: Mapping[str, Any]
    known: str  # the logger's own name of the run, if an earlier session has written there

    @property
    def id(self) -> str:
        return self.known or secrets.token_hex(4)


def check(log: str) -> None:
    """A logger whose package is missing is a mistake in the command, told before anything is read."""
    for name in logger_names(log):
        missing = [package for package in PACKAGES[name] if not find_spec(package)]
        if missing:
            raise UsageError(f"run.log {name} needs {' and '.join(missing)}: pip install 'byol[{name}]'.")


class Logs:
    """The loggers of a run; each is told until it fails for the first time."""

    def __init__(self, setup: Setup, step: int) -> None:
        self.setup, self.open, self.last = setup, dict[str, Log](), dict[str, float]()
        file, config = setup.out / NAME, flatten(setup.config)
        files.refuse_link(file, *(setup.out / name for name in ("tensorboard", "wandb", "mlflow.db", "mlflow", SHEET)))
        known: dict[str, str] = files.read_json(file) if step and file.is_file() else {}
        for name in logger_names(setup.config.run.log):
            try:
                log, known[name] = LOGGERS[name](Place(setup.out, step, config, known.get(name, "")))
            except Exception as error:
                self._failed(name, error)
            else:
                self.open[name] = log
        files.write_json(file, known)
        if step == 0:
            self._sheet()

    def _sheet(self) -> None:
        """The views of some images, as training sees them; one that cannot be drawn is left out."""
        config, source = self.setup.config, self.setup.images.source
        try:
            images = [image for _, image in loader.readable(source, range(min(SHOWN, len(source))))]
            if images:
                paint = painter(source, config.data)
                rows = view_rows(images, config, PAIRS, paint)
                titles = ["image", *["T", "T'"] * PAIRS]
                pictures.sheet(self.setup.out / SHEET, rows, titles, footnote=paint.words)
                self._each(lambda log: log.picture("views", self.setup.out / SHEET))
        except Exception as error:
            say(f"The views are not shown to run.log ({first_line(error)}).")

    def add(self, line: Mapping[str, float]) -> None:
        """A line of metrics.jsonl, of a step or of a look."""
        self.last |= line
        kind = "look" if "spread" in line else "train"
        values = {f"{kind}/{name}": value for name, value in line.items() if name != "step"}
        self._each(lambda log: log.numbers(int(line["step"]), values))

    def verdict(self, step: int, verdict: Verdict) -> None:
        self._each(lambda log: log.text(step, "verdict", verdict.sentence))

    def end(self, status: Status, verdict: Verdict | None = None) -> None:
        """How the session ended, with the last value of everything that was measured."""
        figures: dict[str, float | str] = {f"final/{name}": value for name, value in self.last.items()}
        if verdict:
            figures["final/verdict"] = verdict.word
        self._each(lambda log: log.end(status, figures))
        self.open.clear()

    def _each(self, action: Callable[[Log], object]) -> None:
        for name, log in list(self.open.items()):
            try:
                action(log)
            except Exception as error:
                self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self.open.pop(name, None)
        say(f"run.log {name} failed ({first_line(error)}); the run goes on without it.")


def tensorboard(place: Place) -> tuple[Log, str]:
    """Event files in RUN/tensorboard; those from this step on are hidden, as their steps will be done again."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(place.out / "tensorboard"), purge_step=place.step)
    if not place.step:
        writer.add_text("config", "\n".join(f"    {name}: {value}" for name, value in place.config.items()))

    def numbers(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def picture(name: str, path: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            writer.add_image(name, np.asarray(image.convert("RGB")), dataformats="HWC")

    def end(status: Status, figures: Figures) -> None:
        table = [f"| {name} | {value} |" for name, value in {"status": status, **figures}.items()]
        writer.add_text("final", "\n".join(["| what | figure |", "|---|---|", *table]))
        writer.close()

    return Log(numbers, lambda step, name, words: writer.add_text(name, words, step), picture, end), "events"


def wandb(place: Place) -> tuple[Log, str]:
    """A run in RUN/wandb, offline unless WANDB_MODE says otherwise; `wandb sync` sends it later."""
    for variable in ("WANDB_SILENT", "WANDB_DISABLE_GIT", "WANDB_DISABLE_CODE"):
        os.environ.setdefault(variable, "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_MODE", "offline")
    import wandb as package

    run = package.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=place.out.name,
        id=place.id,
        dir=str(place.out),
        resume="allow",
        config=dict(place.config),
        settings=package.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
    )
    # Steps are ours: after a crash some are done again, with the same numbers.
    run.define_metric("*", step_metric="step")

    def end(status: Status, figures: Figures) -> None:
        run.summary.update({**figures, "status": status})
        run.finish(0 if status == "finished" else 1)

    return Log(
        numbers=lambda step, values: run.log({"step": step, **values}),
        text=lambda step, name, words: run.log({"step": step, name: words}),
        picture=lambda name, path: run.log({name: package.Image(str(path))}),
        end=end,
    ), run.id


def mlflow(place: Place) -> tuple[Log, str]:
    """A run of the experiment `byol`, in RUN/mlflow.db unless MLFLOW_TRACKING_URI names another store."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a run does not wait minutes for a server
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    file = (place.out / "mlflow.db").resolve()
    own = f"sqlite:///{file}"
    store = os.environ.get("MLFLOW_TRACKING_URI", own)
    if store == own:
        _openable(file)
    client = MlflowClient(tracking_uri=store)
    run = place.known
    if run:
        client.update_run(run, status="RUNNING")
    else:
        found = client.get_experiment_by_name(PROJECT)
        artifacts = (place.out / "mlflow").resolve().as_uri() if store == own else None
        experiment = found.experiment_id if found else client.create_experiment(PROJECT, artifacts)
        run = client.create_run(experiment, run_name=place.out.name).info.run_id
        params = [Param(name, str(value)[:500]) for name, value in place.config.items()]
        for start in range(0, len(params), 100):  # as many as it takes at once
            client.log_batch(run, params=params[start : start + 100])

    def numbers(step: int, values: Mapping[str, float]) -> None:
        client.log_batch(run, metrics=[Metric(name, value, _now(), step) for name, value in values.items()])

    def end(status: Status, figures: Figures) -> None:
        numbers(0, {name: value for name, value in figures.items() if not isinstance(value, str)})
        for name, value in {"status": status, **figures}.items():
            if isinstance(value, str):
                client.set_tag(run, name.replace("/", "."), value)
        client.set_terminated(run, "FINISHED" if status == "finished" else "KILLED")

    return Log(
        numbers=numbers,
        text=lambda step, name, words: client.set_tag(run, name, words),
        picture=lambda name, path: client.log_artifact(run, str(path)),
        end=end,
    ), run


def _openable(file: Path) -> None:
    """Raises at once where MLflow would try for minutes, with pages of warnings: the file is no database of ours."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA schema_version")


def _now() -> int:
    import time

    return int(time.time() * 1000)


LOGGERS: dict[str, Callable[[Place], tuple[Log, str]]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
