"""Parquet and Arrow files as a `Source`. An Arrow file is read in place, a Parquet file is unpacked once into a cache.

By pyarrow itself: the datasets library gives up a whole Parquet file for one damaged group, maps an Arrow file without
checking that its offsets stay inside, and knows only one of Arrow's two formats.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol.config import Data
from byol.data import places
from byol.data.columns import Columns, find_columns, numbered
from byol.data.decode import printable
from byol.data.folder import check_size
from byol.data.shards.index import alone
from byol.data.source import BadImage, Source
from byol.data.stored import read_stored
from byol.errors import BadData, ByolError, UsageError
from byol.run.files import open_regular, replacing, require_space
from byol.run.progress import bar, say


@dataclass(frozen=True)
class Rows:
    """The rows of several Arrow files, one after the other."""

    names: tuple[str, ...]  # of the files as they were given
    files: tuple[str, ...]  # the Arrow files, of which some may be in the cache
    ends: np.ndarray  # int64 (files,), rows up to the end of each
    image: str  # the column

    def find(self, row: int) -> tuple[int, int]:
        """(file, row within it)"""
        if not 0 <= row < self.ends[-1]:
            raise IndexError(f"image {row} of {self.ends[-1]}")
        file = int(np.searchsorted(self.ends, row, "right"))
        return file, row - int(self.ends[file - 1] if file else 0)


def open_files(files: list[str], config: Data, spec: str) -> Source:
    """All rows of Parquet and Arrow files in their order."""
    all_columns = [_columns(file, config, spec) for file in files]
    for file, other in zip(files, all_columns, strict=True):
        if other != all_columns[0]:
            raise BadData(f"{printable(file)} has other columns or classes than {printable(files[0])}.")
    columns, cache = all_columns[0], Path(config.cache) if config.cache else places.default_cache()
    stamps = tuple(places.status(file)[1] for file in files)
    arrow_files = tuple(_unpacked(f, columns, cache) if f.endswith(".parquet") else f for f in files)
    counts = [_table(file).num_rows for file in arrow_files]
    if not sum(counts):
        raise BadData(f"{spec} has no rows.")
    values = [value for file in arrow_files for value in _labels(file, columns.label)]
    labels, classes = numbered(values, columns.classes) if columns.label else (None, ())
    rows = Rows(tuple(map(os.path.basename, files)), arrow_files, np.cumsum(counts), columns.image)
    return Source(
        name=printable(spec),
        count=sum(counts),
        read=partial(_read, rows, config.max_megapixels),
        describe=partial(_describe, rows),
        labels=labels,
        classes=classes,
        stamp=partial(_stamp, rows, stamps),
        blocks=np.repeat(np.arange(len(files)), counts).astype(np.int32),
    )


def pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UsageError("Parquet and Arrow files need the package pyarrow: pip install 'byol[hf]'.") from None
    return pyarrow


@contextmanager
def _understood(file: str, what: str = "") -> Iterator[None]:
    """Whatever pyarrow stumbles over is in the file: damage, names that are no UTF-8, or a name twice."""
    try:
        yield
    except ByolError:
        raise
    except (pyarrow().ArrowException, OSError, ValueError, KeyError) as error:
        raise BadData(f"{what}{printable(file)} cannot be read: {places.first_line(error)}.") from None


def _columns(file: str, config: Data, spec: str) -> Columns:
    arrow = pyarrow()
    with _understood(file):
        if not file.endswith(".parquet"):
            return find_columns(arrow, _table(file).schema, config, spec)
        with places.opened(file) as source:
            parquet = arrow.parquet.ParquetFile(source)
            counts = [parquet.metadata.row_group(i).num_rows for i in range(parquet.metadata.num_row_groups)]
            if not all(0 <= count <= source.seek(0, os.SEEK_END) for count in counts):  # memory would be made for them
                raise ValueError("it says it has more rows than bytes")
            return find_columns(arrow, parquet.schema_arrow, config, spec)


@lru_cache(maxsize=1024)
def _table(file: str) -> Any:
    """An Arrow file, which stays on the disk until its rows are looked at."""
    arrow = pyarrow()
    open_regular(os.fsencode(file)).close()  # a pipe or a device would be waited for
    source = arrow.memory_map(file)
    try:
        reader = arrow.ipc.open_stream(source)  # what the datasets library writes
    except arrow.ArrowInvalid:
        reader = arrow.ipc.open_file(source)
    table = reader.read_all()
    table.validate(full=True)  # offsets that lead out of the file would end the process
    return table


def _unpacked(file: str, columns: Columns, cache: Path) -> str:
    """The images and classes of a Parquet file as an Arrow file in the cache.

    Parquet packs hundreds of images into one compressed group, which reading in any order would unpack again and again.
    """
    size, stamp = places.status(file)
    key = hashlib.sha256(repr((file, stamp, columns)).encode()).hexdigest()[:24]
    path = cache / "unpacked" / f"{key}.arrow"
    with alone(path):
        if path.exists():
            return str(path)
        say(f"{printable(file)} is unpacked once to {printable(path)}, for reading in any order.")
        require_space(path.parent, size, "the unpacked images")
        with replacing(path, size) as target:
            _unpack(file, columns, target)
    return str(path)


def _unpack(file: str, columns: Columns, target: Any) -> None:
    arrow = pyarrow()
    with places.opened(file) as source, _understood(file):
        parquet = arrow.parquet.ParquetFile(source, page_checksum_verification=True)
        fields = [arrow.field(columns.image, arrow.large_binary())]
        if columns.label:
            fields.append(parquet.schema_arrow.field(columns.label))
        schema, groups = arrow.schema(fields), parquet.metadata.num_row_groups
        with arrow.ipc.new_stream(target, schema) as writer, bar("Unpacking", groups, "groups") as shown:
            for group in range(groups):
                arrays = [_images(parquet, group, columns, file)]
                if columns.label:
                    with _understood(file, "The labels of "):
                        arrays.append(parquet.read_row_group(group, [columns.label], use_threads=False).column(0))
                writer.write_table(arrow.table(arrays, schema=schema))
                shown.advance()


def _images(parquet: Any, group: int, columns: Columns, file: str) -> Any:
    """The images' bytes of a row group; a group that cannot be read costs its images and no others."""
    arrow = pyarrow()
    count = parquet.metadata.row_group(group).num_rows
    name = f"{columns.image}.bytes" if columns.nested else columns.image
    try:
        images = parquet.read_row_group(group, columns=[name], use_threads=False).column(columns.image)
        if len(images) != count:
            raise ValueError("the group has fewer rows than the file says")
        flat = images.combine_chunks()
        return (flat.field("bytes") if columns.nested else flat).cast(arrow.large_binary())
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        say(f"{count} images of {printable(file)}, group {group}, cannot be read: {places.first_line(error)}.")
        return arrow.nulls(count, arrow.large_binary())


def _labels(file: str, column: str) -> list[Any]:
    with _understood(file, "The labels of "):
        values: list[Any] = _table(file).column(column).to_pylist() if column else []
        return values


def _read(rows: Rows, max_megapixels: float, row: int) -> torch.Tensor:
    file, place = rows.find(row)
    try:
        cell = _table(rows.files[file]).column(rows.image)[place]
        content = (cell["bytes"] if pyarrow().types.is_struct(cell.type) else cell).as_py() or b""
    except (pyarrow().ArrowException, OSError, ValueError, KeyError) as error:
        raise BadImage(places.first_line(error)) from None
    check_size(len(content), max_megapixels)
    return read_stored(content, max_megapixels)


def _describe(rows: Rows, row: int) -> str:
    file, place = rows.find(row)
    return f"{printable(rows.names[file])} row {place}"


def _stamp(rows: Rows, stamps: tuple[str, ...], row: int) -> bytes:
    return f"{stamps[rows.find(row)[0]]} {row}".encode()
