"""`byol predict`: the answers of a model for any number of images, written as they come into one file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from byol.data.source import Source
from byol.errors import UsageError
from byol.models.labels import JOINT
from byol.models.model import Model, answered, load_model
from byol.run.files import placed, replacing
from byol.run.progress import tell

DIGITS = 6  # of a probability


class Row(NamedTuple):
    """The answer for one image; `problem` says why there is none."""

    file: str
    label: str
    probability: float | None  # of the likeliest class
    classes: list[str]  # the likeliest first, or all of them in the model's order
    probabilities: list[float]
    problem: str


Write = Callable[[list[Row]], None]


def predict(
    folder: str | Path,
    images: str | Path,
    out: str | Path,
    *,
    top: int = 0,
    split: str = "train",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the answers for all images to a .csv, .json or .parquet file, which is whole or not there."""
    place = Path(out)
    check_out(place)
    model = load_model(folder, settings)
    count = len(model.classes)
    if not 0 <= top <= count:
        raise UsageError(f"--top must be between 0 (all) and {count}, the model's classes, not {top}.")
    source = model.opened(images, split)
    place, left_out, silent = placed(place), 0, 0
    with replacing(place, 0) as file, WRITERS[place.suffix](file, model, top) as write:
        for rows in answers(model, source, top):
            write(rows)
            left_out += sum(bool(row.problem) for row in rows)
            silent += sum(not row.label and not row.problem for row in rows)
    unread = f"; {left_out} could not be read" if left_out else ""
    without = f"; {silent} without an answer" if silent else ""
    tell(f"{place}: {len(source) - left_out} images, {count} classes{without}{unread}")
    return place


def check_out(out: Path) -> None:
    """Refuses a file in whose form nothing is written."""
    if out.suffix not in WRITERS:
        raise UsageError(f"--out should end in {', '.join(WRITERS)}, not be {out}.")
    if out.suffix == ".parquet":
        _pyarrow()


def answers(model: Model, source: Source, top: int) -> Iterator[list[Row]]:
    """Rows for every image in order, a chunk at a time; one that cannot be read is named."""
    for found in answered(model, source):
        rows = {
            i: _row(model, source.describe(i), p, top) for i, p in zip(found.indices, found.probabilities, strict=True)
        }
        rows |= {i: Row(source.describe(i), "", None, [], [], reason) for i, reason in found.bad.items()}
        yield [rows[index] for index in sorted(rows)]


def _row(model: Model, name: str, given: np.ndarray, top: int) -> Row:
    label = model.label(given)
    label = JOINT.join(label) if isinstance(label, tuple) else label
    order = np.argsort(-given, kind="stable")[:top] if top else np.arange(len(given))
    rounded = [round(float(value), DIGITS) for value in given[order]]
    return Row(name, label, round(float(given.max()), DIGITS), [model.classes[c] for c in order], rounded, "")


def _columns(model: Model, top: int) -> list[str]:
    if not top:
        return [f"p:{name}" for name in model.classes]
    return [name for place in range(1, top + 1) for name in (f"class {place}", f"p {place}")]


def _cells(row: Row, model: Model, top: int) -> list[Any]:
    if not top:
        return list(row.probabilities) or [None] * len(model.classes)
    if row.problem:
        return [None] * (2 * top)
    return [cell for pair in zip(row.classes, row.probabilities, strict=True) for cell in pair]


@contextmanager
def _as_csv(file: BinaryIO, model: Model, top: int) -> Iterator[Write]:
    def put(lines: list[list[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))

    put([["file", "label", "probability", *_columns(model, top), "problem"]])
    yield lambda rows: put(
        [[row.file, row.label, row.probability, *_cells(row, model, top), row.problem] for row in rows]
    )


@contextmanager
def _as_json(file: BinaryIO, model: Model, top: int) -> Iterator[Write]:
    """One array, an object an image on a line of its own."""
    first = True

    def write(rows: list[Row]) -> None:
        nonlocal first
        for row in rows:
            value: dict[str, Any] = {"file": row.file}
            if row.problem:
                value |= {"problem": row.problem}
            else:
                label: Any = [name for name in row.label.split(JOINT) if name] if model.facts.several else row.label
                value |= {"label": label, "probability": row.probability}
                value["probabilities"] = dict(zip(row.classes, row.probabilities, strict=True))
            text = json.dumps(value, ensure_ascii=False)
            file.write(("[\n" if first else ",\n").encode() + text.encode("utf-8", "backslashreplace"))
            first = False

    yield write
    file.write(b"\n]\n")


@contextmanager
def _as_parquet(file: BinaryIO, model: Model, top: int) -> Iterator[Write]:
    arrow, parquet = _pyarrow()
    names = _columns(model, top)
    texts = {name for name in names if top and name.startswith("class ")}
    kinds = [(name, arrow.string() if name in texts else arrow.float32()) for name in names]
    text, number = arrow.string(), arrow.float32()
    first = [("file", text), ("label", text), ("probability", number)]
    schema = arrow.schema([*first, *kinds, ("problem", text)])
    with parquet.ParquetWriter(file, schema) as writer:

        def write(rows: list[Row]) -> None:
            cells = [[row.file, row.label, row.probability, *_cells(row, model, top), row.problem] for row in rows]
            columns = list(zip(*cells, strict=True))
            columns[0] = tuple(name.encode("utf-8", "backslashreplace").decode() for name in columns[0])
            arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))

        yield write


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("A .parquet file needs pyarrow: pip install 'byol[hf]'. Or write .csv.") from None
    return pyarrow, pyarrow.parquet


WRITERS: dict[str, Any] = {".csv": _as_csv, ".json": _as_json, ".parquet": _as_parquet}
