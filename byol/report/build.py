"""`byol report`: reads the runs, looks at their images once, and writes one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import byol
from byol import data
from byol.config import Config, Data, declared, flatten
from byol.data.address import parse
from byol.data.loader import source_fingerprint
from byol.data.source import Source
from byol.errors import ByolError
from byol.evals.encoder import Encoder
from byol.evals.features import finite_rows
from byol.report import IMAGES, collect, gallery, page, samples
from byol.report.collect import Facts, Record
from byol.run import caution
from byol.run.files import placed, write_atomically
from byol.run.painting import Painter, painter
from byol.run.progress import say, tell
from byol.run.record import now
from byol.run.remembered import Named, images_of

CHARACTERS = 7_000_000  # of tiles for so many images: with all the rest the page stays below 10 MB


def report(runs: Sequence[Path], out: Path, images: int = IMAGES, moved: str = "") -> Path:
    """One page about one run, or several side by side; `moved` is where the images are now, if the command says so."""
    records = [collect.read(path) for path in runs]
    content = page.render(modelled(records, images, moved))
    out = placed(out)
    write_atomically(out, content)
    for record in records:
        caution.repeat(record.path)
        for note in record.notes:
            say(f"{record.name}: {note}")
    tell(f"{out}: {len(records)} run{'s' * (len(records) > 1)}, {len(content) / 1e6:.1f} MB")
    return out


def modelled(records: Sequence[Record], images: int, moved: str = "") -> Facts:
    """Everything that the page holds, as a value that JSON can write."""
    pictures: dict[Path, Facts] = {record.path: {} for record in records}
    galleries: list[Facts] = []
    groups = _by_images(records, moved)
    for named, members in groups.items():
        source = _open(named, members)
        if source is None:
            continue
        paint = painter(source, named.config)
        for record in members:
            record.notes += [f"Colours of the pictures: {paint.words}."] * bool(paint.words)
            pictures[record.path]["views"] = samples.drawn_views(source, record.config, paint)
            pictures[record.path]["neighbours"] = samples.drawn_neighbours(record.path, source, paint)
            pictures[record.path]["parts"] = record.encoder and samples.drawn_maps(source, record.encoder, paint)
        able = [record for record in members if record.encoder is not None]
        if able and images:
            _add_maps(able, source, images // len(groups), pictures, galleries, paint)
    described = [{**collect.described(record), **pictures[record.path]} for record in records]
    _tell_apart(described)
    return {
        "title": f"byol report: {', '.join(run['name'] for run in described)}",
        "created": now(),
        "version": byol.__version__,
        "runs": described,
        "galleries": galleries,
        "help": {name: metadata["help"] for name, _, metadata in declared()},
        "paper": flatten(Config()),
    }


def _by_images(records: Sequence[Record], moved: str) -> dict[Named, list[Record]]:
    """Runs on the same images share tiles, and can be compared image by image."""
    groups: dict[Named, list[Record]] = {}
    for record in records:
        named = images_of(record.run, record.config.data, moved)
        if named is None:
            told = "The run was not made here, and what its record names is not opened."
            record.notes.append(f"The images cannot be shown. {told} Say where they are with --data.")
            continue
        # Only scenes depend on more than where they are: they are drawn in the size that the run asked for.
        drawn = parse(named.data, named.config.root).kind == "scenes"
        same = named if drawn else named._replace(config=replace(named.config, resolution=Data.resolution))
        groups.setdefault(same, []).append(record)
    return groups


def _open(named: Named, members: Sequence[Record]) -> Source | None:
    """The images, if they are still there; each run is told when they are gone or have changed."""
    try:
        source = data.open_source(named.data, named.config)
    except ByolError as error:
        for record in members:
            record.notes.append(f"The images cannot be shown. {error} Say where they are now with --data.")
        return None
    seen = source_fingerprint(source)
    for record in members:
        if record.run.data.fingerprint != seen:
            record.notes.append(
                f"The images of {source.name} are not the ones the run began with: names or labels differ."
            )
    return source


def _add_maps(
    able: Sequence[Record],
    source: Source,
    images: int,
    pictures: dict[Path, Facts],
    galleries: list[Facts],
    paint: Painter,
) -> None:
    encoders: list[Encoder] = [record.encoder for record in able if record.encoder is not None]
    seen = gallery.look(source, encoders, max(images, 1), paint)
    if not seen.tiles:
        for record in able:
            record.notes.append(f"None of the images of {source.name} can be read.")
        return
    galleries.append(gallery.drawn(seen, CHARACTERS * max(images, IMAGES) // IMAGES))
    for record, features in zip(able, seen.features, strict=True):
        infinite = int((~finite_rows(features.numpy())).sum())
        if infinite:
            record.notes.append(f"There is no map: the features of {infinite} images are not finite.")
            continue
        pictures[record.path]["map"] = gallery.drawn_map(features, len(galleries) - 1)


def _tell_apart(described: list[Facts]) -> None:
    """Runs of one name in different folders get as much of their path as tells them apart."""
    names = [run["name"] for run in described]
    for run in described:
        if names.count(run["name"]) > 1:
            run["name"] = run["path"]
