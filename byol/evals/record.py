"""What an evaluation leaves on disk: result.json as a typed value, with one reader and one writer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byol.errors import DiskError
from byol.evals.metrics import shown
from byol.run import record

NAME = "result.json"


@dataclass(frozen=True)
class EncoderFacts:
    """Which encoder was scored; the checksum is of its weights and statistics, so that figures belong to weights."""

    name: str
    checksum: str
    network: dict[str, Any]
    resolution: int
    untrained: bool = False  # random:RUN, the same network before training


@dataclass(frozen=True)
class TaskFacts:
    """The data set of an evaluation: `images` and `checksums` by part."""

    name: str
    classes: int
    metric: str
    images: dict[str, int]
    checksums: dict[str, str]
    location: str = ""  # a digest of where the data set was, which tells two of one name apart


@dataclass(frozen=True)
class Choice:
    """A setting that was tried, with its score on the validation part."""

    setting: dict[str, Any]
    validation: float


@dataclass(frozen=True)
class SeedResult:
    """One seed of an evaluation; `notes` say what a budget left out, `extra` is the protocol's own."""

    seed: int
    choices: list[Choice]
    chosen: dict[str, Any]
    test: dict[str, float]
    notes: list[str]
    seconds: float
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A test figure over the seeds."""

    mean: float
    half_range: float
    seeds: int


@dataclass(frozen=True)
class EvaluationRecord:
    """Everything that result.json holds."""

    protocol: str
    encoder: EncoderFacts
    data: TaskFacts
    spec: dict[str, Any]
    test: dict[str, Figure]
    runs: list[SeedResult]
    created: str
    commit: str
    machine: dict[str, str]
    versions: dict[str, str]

    def _repr_html_(self) -> str:
        """For notebooks: the test figures."""
        from html import escape

        cells = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td><td>{escape(shown(name, figure.mean))}</td>'
            f"<td>{figure.seeds}</td></tr>"
            for name, figure in self.test.items()
        )
        title = f"<b>{escape(self.protocol)}</b> of {escape(self.encoder.name)} on {escape(self.data.name)}"
        return f"<div>{title}<table><tr><th>test</th><th>figure</th><th>seeds</th></tr>{cells}</table></div>"


def read(path: Path) -> EvaluationRecord:
    return record.read(EvaluationRecord, path)


def write(path: Path, result: EvaluationRecord) -> None:
    record.write(path, result)


def read_all(run: Path, notes: list[str]) -> Iterator[tuple[Path, EvaluationRecord]]:
    """Every result below RUN/evaluations; one that cannot be read is named in `notes`."""
    for path in sorted((run / "evaluations").rglob(NAME)):
        try:
            yield path, read(path)
        except DiskError as error:
            notes.append(str(error))
