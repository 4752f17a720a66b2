"""`byol report`: reads the runs, looks at their images once, and writes one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import byol
from byol import data
from byol.config import Config, declared, flatten
from byol.data.loader import source_fingerprint
from byol.data.source import Source
from byol.errors import ByolError
from byol.evals.encoder import Encoder
from byol.progress import say
from byol.records import write_atomically
from byol.report import collect, gallery, page, samples
from byol.report.collect import Record
from byol.rundir import now

IMAGES = 5000
CHARACTERS = 7_000_000  # of tiles for so many images: with all the rest the page stays below 10 MB


def report(runs: Sequence[Path], out: Path, images: int = IMAGES, moved: str = "") -> Path:
    """One page about one run, or several side by side; `moved` is where the images are now."""
    found = [collect.read(path) for path in runs]
    model = modelled(found, images, moved)
    content = page.render(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    for record in found:
        for note in record.notes:
            say(f"{record.name}: {note}")
    print(f"{out}: {len(found)} run{'s' * (len(found) > 1)}, {len(content) / 1e6:.1f} MB")
    return out


def modelled(records: Sequence[Record], images: int, moved: str = "") -> dict[str, Any]:
    """All that the page holds, as JSON would have it."""
    pictures: dict[Path, dict[str, Any]] = {record.path: {} for record in records}
    galleries: list[dict[str, Any]] = []
    groups = _by_data(records, moved)
    for members in groups:
        source = _open(moved or str(members[0].run["request"].get("data", "")), members)
        if source is None:
            continue
        for record in members:
            pictures[record.path]["views"] = samples.drawn_views(source, record.config)
            pictures[record.path]["neighbours"] = samples.drawn_neighbours(record.path, source)
        able = [record for record in members if record.encoder is not None]
        if able and images:
            _add_maps(able, source, images // len(groups), pictures, galleries)
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


def _by_data(records: Sequence[Record], moved: str) -> list[list[Record]]:
    """Runs on the same images share tiles, and can be compared image by image."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        spec, config = moved or str(record.run["request"].get("data", "")), record.config.data
        rendered = config.resolution if spec.startswith("scenes") else 0  # scenes are drawn in the run's size
        groups.setdefault((spec, config.root, rendered), []).append(record)
    return list(groups.values())


def _open(spec: str, members: Sequence[Record]) -> Source | None:
    """The images, if they are still there; each run is told when they are gone or have changed."""
    try:
        source = data.open_source(spec, members[0].config.data)
    except ByolError as error:
        for record in members:
            record.notes.append(f"The images cannot be shown. {error} Say where they are now with --data.")
        return None
    seen = source_fingerprint(source)
    for record in members:
        if record.run["data"].get("fingerprint") != seen:
            record.notes.append(
                f"The images of {source.name} are not the ones the run began with: names or labels differ."
            )
    return source


def _add_maps(
    able: Sequence[Record],
    source: Source,
    images: int,
    pictures: dict[Path, dict[str, Any]],
    galleries: list[dict[str, Any]],
) -> None:
    encoders: list[Encoder] = [record.encoder for record in able if record.encoder is not None]
    seen = gallery.look(source, encoders, max(images, 1))
    if not seen.tiles:
        for record in able:
            record.notes.append(f"None of the images of {source.name} can be read.")
        return
    galleries.append(gallery.drawn(seen, CHARACTERS * max(images, IMAGES) // IMAGES))
    for record, features in zip(able, seen.features, strict=True):
        pictures[record.path]["map"] = gallery.drawn_map(features, len(galleries) - 1)


def _tell_apart(described: list[dict[str, Any]]) -> None:
    """Runs of one name in different folders get as much of their path as tells them apart."""
    names = [run["name"] for run in described]
    for run in described:
        if names.count(run["name"]) > 1:
            run["name"] = run["path"]
