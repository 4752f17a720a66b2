"""What an encoder is good for the day after: find alike images, twins, strangers, and those worth labelling first.

Similarity is the cosine of representations after their mean over the set is subtracted: what all images share says
nothing about two of them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol import data, neighbours, pictures
from byol.data.arrays import read_npz
from byol.data.decode import decode, open_regular, printable
from byol.data.source import Source
from byol.data.task import Part
from byol.errors import BadData, UsageError
from byol.evals import features
from byol.evals.encoder import Encoder, open_encoder
from byol.progress import bar
from byol.records import meaning_of, read_object, write_atomically, write_json

COLUMNS, SHEET_ROWS, CELL = 8, 25, 96  # of a sheet
CENTRED_FROM = 16  # fewer images than this have no mean worth subtracting


class Space(NamedTuple):
    """The images of a set by an encoder: vectors (N, D) of length 1, their names, and what was subtracted (D,)."""

    vectors: Tensor
    names: list[str]
    mean: Tensor
    read: Callable[[int], Tensor] | None  # the image of a row, where there are images


@dataclass(frozen=True)
class Answer:
    """Rows for a file and for people, and a sentence about them."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    sentence: str
    shown: list[list[int]]  # rows of the space, for the rows of a sheet
    read: Callable[[int], Tensor] | None


def open_space(run: str, name: str = "", cache: Path | None = None) -> Space:
    """The images `name` (or those the run was trained on) as an encoder sees them; or a file that `embed` wrote."""
    for file in (name, run):
        if file.endswith(".npz"):
            return _space(*_stored(Path(file)), None)
    encoder = open_encoder(run)
    source = data.open_source(name or _own_images(Path(run)), encoder.config.data)
    every = np.arange(len(source))
    found = features.of_part(encoder, Part(source, every, every), cache or features.default_cache())
    rows = found.targets
    return _space(found.values, [source.describe(int(i)) for i in rows], lambda row: source.read(int(rows[row])))


def _space(values: np.ndarray, names: list[str], read: Callable[[int], Tensor] | None) -> Space:
    vectors = torch.from_numpy(np.array(values, np.float32))
    mean = vectors.mean(0) if len(vectors) >= CENTRED_FROM else torch.zeros(vectors.shape[1])
    return Space(F.normalize(vectors - mean, dim=1), names, mean, read)


def _stored(file: Path) -> tuple[np.ndarray, list[str]]:
    try:
        stored = read_npz(file, file.stat().st_size)
        values, names = stored["features"], stored["names"]
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from None
    except (KeyError, ValueError):
        raise UsageError(f"{file} holds no features and names as `byol embed` writes them.") from None
    if values.ndim != 2 or values.dtype.kind != "f" or names.shape != (len(values),) or not len(values):
        raise BadData(f"{file}: {values.shape} features do not belong to {names.shape} names.")
    return values, list(map(str, names.tolist()))


def _own_images(run: Path) -> str:
    if not (run / "run.json").exists():
        raise UsageError(f"{run} does not say which images it was trained on: name them after it.")
    with meaning_of(run / "run.json"):
        return str(read_object(run / "run.json", "request")["request"]["data"])


def query(encoder: Encoder, image: Path) -> np.ndarray:
    """The representation (1, D) of one image file."""

    def read(_: int) -> Tensor:
        with open_regular(bytes(image)) as file:
            return decode(file)

    source = Source(str(image), 1, read, lambda _: printable(image))
    return features.extract(encoder, source)[0]


def search(image: Path, run: str, name: str = "", count: int = 10, approximate: bool = False) -> Answer:
    """The images most similar to a file, or to one of the set by its name."""
    space = open_space(run, name)
    if image.is_file():
        vector = torch.from_numpy(query(open_encoder(run), image)) - space.mean
    elif str(image) in space.names:
        vector = space.vectors[[space.names.index(str(image))]]
    else:
        raise UsageError(f"There is no file {image}, and no image of that name in the set.")
    find = neighbours.approximate_neighbours if approximate else neighbours.nearest
    similarity, rows = find(space.vectors, F.normalize(vector.float(), dim=1), count)
    found = zip(similarity[0].tolist(), rows[0].tolist(), strict=True)
    listed = [(rank, space.names[row], round(value, 4)) for rank, (value, row) in enumerate(found, 1)]
    sentence = f"{len(listed)} of {len(space.names):,} images"
    return Answer(("rank", "name", "similarity"), listed, sentence, _lines(rows[0].tolist()), space.read)


def dedupe(run: str, name: str = "", threshold: float = 0.98, approximate: bool = False) -> Answer:
    """Groups of images that the encoder takes for the same; of each group the first is kept."""
    space = open_space(run, name)
    lowest = np.arange(len(space.names))
    with bar("Comparing", len(space.names), "images") as shown:
        if approximate:
            near, rows = neighbours.approximate_neighbours(space.vectors, space.vectors, 32)
            one, place = (near >= threshold).nonzero(as_tuple=True)
            neighbours.join(lowest, one.numpy(), rows[one, place].numpy())
        else:
            for one_side, other in neighbours.pairs(space.vectors, threshold, shown.advance):
                neighbours.join(lowest, one_side, other)
    listed: list[tuple[Any, ...]] = []
    groups = neighbours.groups(lowest)
    for number, group in enumerate(groups, 1):
        likeness = (space.vectors[group] @ space.vectors[group[0]]).tolist()
        for row, value in zip(group, likeness, strict=True):
            kept = "" if row == group[0] else space.names[group[0]]
            listed.append((number, space.names[row], kept, round(value, 4)))
    more = len(listed) - len(groups)
    return Answer(
        ("group", "name", "same_as", "similarity"),
        listed,
        f"{more:,} of {len(space.names):,} images repeat others, in {len(groups):,} groups",
        [group[:COLUMNS] for group in groups[:SHEET_ROWS]],
        space.read,
    )


def outliers(run: str, name: str = "", k: int = 10, count: int = 0, approximate: bool = False) -> Answer:
    """Images by how far they are, on average, from their k nearest others; the farthest first."""
    space = open_space(run, name)
    if len(space.names) < 3:
        raise BadData(f"{len(space.names)} images are too few to say which is unlike the others.")
    k = min(k, len(space.names) - 1)
    with bar("Comparing", len(space.names), "images") as shown:
        if approximate:
            near, rows = neighbours.approximate_neighbours(space.vectors, space.vectors, k + 1)
            near, rows = near[:, 1:], rows[:, 1:]  # the nearest is the image itself
        else:
            near, rows = neighbours.other_neighbours(space.vectors, k, shown.advance)
    far = 1 - near.mean(1)
    order = far.argsort(descending=True, stable=True).tolist()[: count or None]
    listed = [
        (rank, space.names[row], round(float(far[row]), 4), space.names[int(rows[row, 0])])
        for rank, row in enumerate(order, 1)
    ]
    sentence = f"{len(space.names):,} images, the strangest first"
    return Answer(("rank", "name", "distance", "nearest"), listed, sentence, _lines(order), space.read)


def pick(
    count: int, run: str, name: str = "", by: Literal["coverage", "typical"] = "coverage", exclude: Sequence[str] = ()
) -> Answer:
    """Which images to label first: those that together cover, or stand for, all of them."""
    space = open_space(run, name)
    kept = [i for i, each in enumerate(space.names) if each not in set(exclude)]
    if not 1 <= count <= len(kept):
        raise UsageError(f"Of {len(kept):,} images between 1 and {len(kept):,} can be picked, not {count}.")
    vectors = space.vectors[kept]
    choose = neighbours.covering if by == "coverage" else neighbours.representing
    with bar("Picking", count, "images") as shown:
        rows, figures = choose(vectors, count, shown.advance)
    column = "farthest_left" if by == "coverage" else "mean_similarity"
    listed = [
        (rank, space.names[kept[int(row)]], round(float(figure), 4))
        for rank, (row, figure) in enumerate(zip(rows, figures, strict=True), 1)
    ]
    end = (
        f"the farthest image is {figures[-1]:.2f} from a picked one (of at most 2)"
        if by == "coverage"
        else f"images resemble their nearest picked one by {figures[-1]:.2f} on average"
    )
    sentence = f"{count} of {len(kept):,} images; {end}"
    return Answer(("rank", "name", column), listed, sentence, _lines([kept[int(row)] for row in rows]), space.read)


def _lines(rows: list[int]) -> list[list[int]]:
    return [rows[i : i + COLUMNS] for i in range(0, min(len(rows), COLUMNS * SHEET_ROWS), COLUMNS)]


def write(answer: Answer, out: Path, sheet: Path | None = None) -> None:
    """A .csv or .json file; of duplicates also a .txt list for data.exclude. The first lines go to the screen."""
    if sheet and answer.shown:
        if not answer.read:
            raise UsageError("--sheet needs the images: name them instead of a .npz file.")
        sheet.parent.mkdir(parents=True, exist_ok=True)
        pictures.sheet(sheet, [[answer.read(row) for row in line] for line in answer.shown], (), (CELL, CELL))
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".json":
        write_json(out, [dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif out.suffix == ".txt":
        same = answer.columns.index("same_as")
        lines = [f"{row[1]}\tnearly the same as {row[same]}\n" for row in answer.rows if row[same]]
        write_atomically(out, "".join(lines).encode())
    else:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([answer.columns, *answer.rows])
        write_atomically(out, text.getvalue().encode("utf-8", "surrogateescape"))
    for row in answer.rows[:10]:
        print("  ".join(f"{value:>6}" if isinstance(value, int | float) else str(value) for value in row))
    if len(answer.rows) > 10:
        print(f"… {len(answer.rows) - 10:,} more")
    print(f"{answer.sentence}; all in {out}")


def check_out(out: Path, sheet: Path | None, also: tuple[str, ...] = ()) -> None:
    """Said before anything is computed."""
    if sheet and sheet.suffix != ".png":
        raise UsageError(f"--sheet should end in .png, not be {sheet}.")
    known = (".csv", ".json", *also)
    if out.suffix not in known:
        raise UsageError(f"--out should end in {' or '.join(known)}, not be {out}.")
