"""What `byol.NAME` gives in Python besides pretraining: verbs as functions, with paths as text or Path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from byol.config import Config, apply, resolve
from byol.errors import UsageError
from byol.pretraining import Run
from byol.run import files
from byol.run.record import NAME, read_run
from byol.run.verdict import judge

if TYPE_CHECKING:
    from byol.explore.search import Answer


def load_run(path: str | Path) -> Run:
    """The run in a directory, finished or not: config, plan, metrics and verdict."""
    out = Path(path)
    if not (out / NAME).is_file():
        raise UsageError(f"{out} is no run directory: it has no {NAME}.")
    stored = read_run(out)
    config = apply(Config(), stored.config, NAME)
    metrics = files.read_metrics(out / "metrics.jsonl")
    plan = stored.plan or resolve(config, stored.data.images)
    return Run(out, config, plan, metrics, stored.verdict or judge(metrics, config))


def search(image: str | Path, run: str | Path, data: str | Path = "", count: int = 10) -> Answer:
    """The images most like a given one: `.columns` and `.rows` of ranks, names and cosines, and a `.sentence`."""
    from byol.explore import search as answers

    return answers.search(Path(image), str(run), str(data), count)
