"""What a trained encoder is good for: find similar images, duplicates, outliers, and the images to label first.

Similarity is the cosine of representations after the mean over the set is subtracted, because what all images share
says nothing about any two of them.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol import data, neighbours
from byol.data.arrays import read_npz
from byol.data.decode import open_image, printable, visible
from byol.data.parts import Part
from byol.data.source import Source
from byol.data.stored import read_as
from byol.errors import BadData, UsageError
from byol.evals import features
from byol.evals.encoder import Encoder, open_encoder
from byol.run import caution, pictures
from byol.run.files import open_regular, placed, write_atomically, write_json
from byol.run.monitor import directions
from byol.run.painting import painter
from byol.run.progress import bar, name_left_out, say, tell
from byol.run.record import NAME, read_run
from byol.run.remembered import Named, images_of

COLUMNS, SHEET_ROWS, CELL = 8, 25, 96  # of a sheet
MOST_REPEATS = 0.3  # of all images, that dedupe lists without being asked twice
FRIENDS, FRIENDS_FROM = 3, 0.03  # pairs shown whose cosine is below dedupe's threshold, by so much at most
SAMPLED, FEWEST_DIRECTIONS = 1000, 1.5  # an untrained network tells about two directions apart, a trained one more
CAPTION = 15  # letters that fit below an image of a sheet
CENTRED_FROM = 16  # fewer images than this have no mean worth subtracting


class Space(NamedTuple):
    """A set of images as an encoder sees it: vectors (N, D) of length 1, names, and the subtracted mean (D,)."""

    vectors: Tensor
    names: list[str]
    mean: Tensor
    read: Callable[[int], Tensor] | None  # the image of a row, to be shown; None when only features are at hand
    notes: tuple[str, ...] = ()  # what is wrong with it
    colours: str = ""  # what red, green and blue of an image are, where they are not its own


@dataclass(frozen=True)
class Answer:
    """The rows of a table that is written to a file and printed, with a sentence about them."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    sentence: str
    shown: list[list[int]]  # for each line of a sheet, which images of the space it shows
    read: Callable[[int], Tensor] | None
    notes: tuple[str, ...] = ()  # sentences to print after the rows
    colours: str = ""  # of the sheet


def open_space(run: str, name: str = "", cache: Path | None = None) -> Space:
    """The images `name`, or those that a run of this user was trained on, as the encoder sees them; or a file of
    `byol embed`."""
    for file in (name, run):
        if file.endswith(".npz"):
            return _space(*_stored(Path(file)), None)
    encoder = open_encoder(run)
    caution.repeat(run)
    named = Named(name, encoder.config.data) if name else _own_images(Path(run), encoder)
    source = data.open_source(named.data, named.config)
    every = np.arange(len(source))
    seen = features.of_part(encoder, Part(source, every, every), cache or features.default_cache())
    rows, paint = seen.targets, painter(source, named.config)
    names = [source.describe(int(i)) for i in rows]
    space = _space(seen.values, names, lambda row: paint.stored(source.read(int(rows[row]))))
    return space._replace(colours=paint.words)


def _space(values: np.ndarray, names: list[str], read: Callable[[int], Tensor] | None) -> Space:
    vectors = torch.from_numpy(np.array(values, np.float32))
    mean = vectors.mean(0) if len(vectors) >= CENTRED_FROM else torch.zeros(vectors.shape[1])
    own = F.normalize(vectors - mean, dim=1)
    return Space(own, names, mean, read, degenerate(own))


def degenerate(vectors: Tensor) -> tuple[str, ...]:
    """A sentence where an encoder tells too few directions apart for similarities to mean anything; vectors (N, D)
    are centred already, and of length 1."""
    some = vectors[:: max(1, len(vectors) // SAMPLED)]
    if len(some) < CENTRED_FROM or (told := directions(some, centred=True)) >= FEWEST_DIRECTIONS:
        return ()
    return (
        f"Similarities mean little here: images look alike to this encoder, which tells {told:.1f} directions apart (1 "
        "is a line, on which two images are the same or opposite).",
    )


def _stored(file: Path) -> tuple[np.ndarray, list[str]]:
    try:
        with open_regular(file) as opened:
            stored = read_npz(opened, file.stat().st_size)
        values, names = stored["features"], stored["names"]
    except OSError as error:
        kind = UsageError if isinstance(error, FileNotFoundError) else BadData
        raise kind(f"Cannot read {file}: {error.strerror}.") from None
    except (KeyError, ValueError):
        raise UsageError(f"{file} does not hold features and names as `byol embed` writes them.") from None
    if values.ndim != 2 or values.dtype.kind != "f" or names.shape != (len(values),) or not len(values):
        raise BadData(f"{file}: {values.shape} features do not belong to {names.shape} names.")
    finite = features.finite_rows(values)
    if not finite.any():
        raise BadData(f"{file}: the features of all {len(values):,} images are not finite.")
    for line in stored.get("verdict", np.array([])).ravel()[:1].astype(str).tolist():
        say(caution.bounded(line))
    told = [visible(str(name)) for name in names.tolist()]
    wrong = [f"{told[row]} ({features.NOT_FINITE})" for row in np.flatnonzero(~finite)]
    name_left_out(wrong, 0, f"the features of {len(wrong):,} images are not finite")
    return values[finite], [name for name, sound in zip(told, finite, strict=True) if sound]


def _own_images(run: Path, encoder: Encoder) -> Named:
    """The images that this user named when the run was made."""
    if not (run / NAME).exists():
        raise UsageError(f"{run} does not say which images it was trained on: name the images after it.")
    record = read_run(run)
    named = images_of(record, encoder.config.data)
    if named is None:
        raise UsageError(f"{run} was not made here, and its own word is not opened: name the images after it.")
    return named


def query(encoder: Encoder, image: Path) -> np.ndarray:
    """The representation (1, D) of one image file."""

    def read(_: int) -> Tensor:
        with open_image(bytes(image)) as file:
            return read_as(file, encoder.config.data, bytes(image))

    source = Source(str(image), 1, read, lambda _: printable(image))
    return features.extract(encoder, source)[0]


def search(image: Path, run: str, name: str = "", count: int = 10, approximate: bool = False) -> Answer:
    """The images most similar to an image file, or to an image of the set that is given by its name."""
    space = open_space(run, name)
    if image.is_file():
        vector = torch.from_numpy(query(open_encoder(run), image)) - space.mean
    elif str(image) in space.names:
        vector = space.vectors[[space.names.index(str(image))]]
    else:
        raise UsageError(f"There is no file {image}, and the set has no image of that name.")
    find = neighbours.approximate if approximate else neighbours.nearest
    near = find(space.vectors, F.normalize(vector.float(), dim=1), count)
    cosines, rows = near.cosines[0].tolist(), near.rows[0].tolist()
    listed = [(rank, space.names[row], round(cosines[rank - 1], 4)) for rank, row in enumerate(rows, 1)]
    sentence = f"The {len(listed)} most similar of {len(space.names):,} images"
    columns = ("rank", "name", "similarity")
    return Answer(columns, listed, sentence, _lines(rows), space.read, space.notes, space.colours)


def dedupe(run: str, name: str = "", threshold: float = 0.98, approximate: bool = False, yes: bool = False) -> Answer:
    """Groups of images that the encoder takes for the same as the first of the group, which is kept.

    More than MOST_REPEATS of all images are listed only if `yes` says so.
    """
    space = open_space(run, name)
    kept = np.arange(len(space.names))
    friends: list[tuple[float, int, int]] = []  # the most similar pairs below the threshold
    with bar("Comparing", len(space.names), "images") as shown:
        for lower, higher, cosines in _similar(space.vectors, threshold - FRIENDS_FROM, approximate, shown.advance):
            same = cosines >= threshold
            neighbours.keep_first(kept, lower[same], higher[same])
            below = np.flatnonzero(~same)
            below = below[np.argsort(-cosines[below], kind="stable")[:FRIENDS]]
            found = [(float(cosines[i]), int(lower[i]), int(higher[i])) for i in below]
            friends = sorted([*friends, *found], reverse=True)[:FRIENDS]
    groups = neighbours.groups(kept)
    repeats, share = sum(map(len, groups)) - len(groups), MOST_REPEATS * len(space.names)
    told = f"{repeats:,} of {len(space.names):,} images repeat another image, in {len(groups):,} groups"
    if repeats > max(share, 1) and not yes:
        raise UsageError(
            f"{told}: more than the {MOST_REPEATS:.0%} that are listed unasked. Nothing was written: an encoder that "
            "takes so many images for the same is rarely right. Raise --threshold, use a better encoder, or add --yes."
        )
    listed = [
        (number, space.names[row], "" if row == group[0] else space.names[group[0]], round(float(value), 4))
        for number, group in enumerate(groups, 1)
        for row, value in zip(group, space.vectors[group] @ space.vectors[group[0]], strict=True)
    ]
    notes = [f"{space.names[one]} and {space.names[two]}: {value:.4f}" for value, one, two in friends]
    if notes:
        notes.insert(
            0, f"Nearest below the threshold of {threshold:g}, and not listed; look whether they are the same:"
        )
    lines = [group[:COLUMNS] for group in groups[:SHEET_ROWS]]
    columns = ("group", "name", "same_as", "similarity")
    return Answer(columns, listed, told, lines, space.read, (*space.notes, *notes), space.colours)


def _similar(
    vectors: Tensor, threshold: float, approximate: bool, advance: Callable[[int], None]
) -> Iterator[neighbours.Pairs]:
    """Pairs of at least this cosine: all of them, or most by faiss."""
    if not approximate:
        yield from neighbours.pairs(vectors, threshold, advance)
        return
    near = neighbours.approximate(vectors, vectors, 32)
    query, rank = (near.cosines >= threshold).nonzero(as_tuple=True)
    ends = torch.stack([query, near.rows[query, rank]]).sort(0).values
    (lower, higher), first = np.unique(ends.numpy(), axis=1, return_index=True)
    apart = higher > lower
    yield neighbours.Pairs(lower[apart], higher[apart], near.cosines[query, rank].numpy()[first][apart])


def outliers(run: str, name: str = "", k: int = 10, count: int = 0, approximate: bool = False) -> Answer:
    """All images, ordered by their mean distance to the k images nearest to them; the farthest first."""
    space = open_space(run, name)
    if len(space.names) < 3:
        raise BadData(f"There are only {len(space.names)} images: too few to say which one is unlike the others.")
    with bar("Comparing", len(space.names), "images") as shown:
        if approximate:
            near = neighbours.approximate(space.vectors, space.vectors, k + 1)
            cosines, rows = near.cosines[:, 1:], near.rows[:, 1:]  # the nearest is the image itself
        else:
            every = torch.arange(len(space.names))
            cosines, rows = neighbours.nearest(space.vectors, space.vectors, k, every, shown.advance)
    far = 1 - cosines.mean(1)
    order = far.argsort(descending=True, stable=True).tolist()[: count or None]
    listed = [
        (rank, space.names[row], round(float(far[row]), 4), space.names[int(rows[row, 0])])
        for rank, row in enumerate(order, 1)
    ]
    sentence = f"{len(space.names):,} images, the least similar to others first"
    columns = ("rank", "name", "distance", "nearest")
    return Answer(columns, listed, sentence, _lines(order), space.read, space.notes, space.colours)


def pick(
    count: int, run: str, name: str = "", by: Literal["coverage", "typical"] = "coverage", exclude: Sequence[str] = ()
) -> Answer:
    """The images to label first: those that together cover all images, or that are typical of them."""
    space = open_space(run, name)
    kept = [i for i, each in enumerate(space.names) if each not in set(exclude)]
    if not 1 <= count <= len(kept):
        raise UsageError(f"COUNT must be between 1 and {len(kept):,}, the number of images to pick from, not {count}.")
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
        f"no image is farther than {figures[-1]:.2f} from a picked one (2 is the largest distance)"
        if by == "coverage"
        else f"the mean similarity of an image to its nearest picked one is {figures[-1]:.2f}"
    )
    sentence = f"{count} of {len(kept):,} images picked; {end}"
    lines = _lines([kept[int(row)] for row in rows])
    return Answer(("rank", "name", column), listed, sentence, lines, space.read, space.notes, space.colours)


def _lines(rows: list[int]) -> list[list[int]]:
    return [rows[i : i + COLUMNS] for i in range(0, min(len(rows), COLUMNS * SHEET_ROWS), COLUMNS)]


def write(answer: Answer, out: Path, sheet: Path | None = None) -> None:
    """Writes a .csv or .json file, or for duplicates a .txt list for data.exclude, and prints the first rows."""
    if sheet and answer.shown:
        if not answer.read:
            raise UsageError("--sheet needs the images themselves: name them instead of a .npz file.")
        sheet.parent.mkdir(parents=True, exist_ok=True)
        images = [[answer.read(row) for row in line] for line in answer.shown]
        pictures.sheet(sheet, images, (), (CELL, CELL), captions=captions(answer), footnote=answer.colours)
    out = placed(out)
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
        tell("  ".join(f"{value:>6}" if isinstance(value, int | float) else str(value) for value in row))
    if len(answer.rows) > 10:
        tell(f"… {len(answer.rows) - 10:,} more")
    for note in answer.notes:
        tell(note)
    tell(f"{answer.sentence}. The whole list is in {out}.")


def captions(answer: Answer) -> list[list[str]]:
    """For each image of a sheet its name, as far as it fits, and the first number of its row."""
    rows: list[list[tuple[Any, ...]]] = []
    if answer.columns[0] == "group":
        for _, members in itertools.groupby(answer.rows, key=lambda row: row[0]):
            rows.append(list(members))
    else:
        rest = iter(answer.rows)
        rows = [list(itertools.islice(rest, len(line))) for line in answer.shown]
    figure = answer.columns.index("similarity") if "similarity" in answer.columns else 2
    return [
        [f"{Path(row[1]).name[-CAPTION:]}\n{row[figure]}" for row in line[: len(shown)]]
        for line, shown in zip(rows, answer.shown, strict=False)
    ]


def check_out(out: Path, sheet: Path | None, also: tuple[str, ...] = ()) -> None:
    """Refuses file names with a wrong ending before anything is computed."""
    if sheet and sheet.suffix != ".png":
        raise UsageError(f"--sheet must name a .png file, not {sheet}.")
    known = (".csv", ".json", *also)
    if out.suffix not in known:
        raise UsageError(f"--out must name a {' or '.join(known)} file, not {out}.")
