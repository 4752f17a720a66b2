"""Hugging Face data as a `Source`: Parquet and Arrow files here or at a URL, and data sets of the hub by name.

An Arrow file on this machine is read in place. Parquet packs hundreds of images into one compressed group, so reading
them in any order would unpack each group again and again: it is copied once into shards in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from byol.config import Data
from byol.data import places
from byol.data.columns import Columns, find_columns, numbered
from byol.data.decode import decode, open_regular, printable
from byol.data.folder import SPLITS, check_size
from byol.data.index import alone, read_manifest
from byol.data.sharding import Image, Job, write
from byol.data.shards import open_shards
from byol.data.source import BadImage, Source
from byol.errors import BadData, ByolError, UsageError, nearest
from byol.progress import say

T = TypeVar("T")

ENDINGS = (".parquet", ".arrow")
COPY_BYTES = 256_000_000  # of a shard of the copy
KINDS = ((b"\xff\xd8", "jpg"), (b"\x89PNG", "png"), (b"GIF8", "gif"), (b"RIFF", "webp"), (b"BM", "bmp"))


class Spec(NamedTuple):
    """`hf:NAME[@CONFIG][:SPLIT]`, the name being one of the hub's or a path, pattern or URL."""

    name: str
    split: str

    @classmethod
    def parse(cls, spec: str) -> Spec:
        rest = spec.removeprefix("hf:")
        match = re.fullmatch(r"(.+?):([A-Za-z_][\w.+-]*(?:\[[\w%:-]*\])?)", rest)
        name, split = (match[1], match[2]) if match else (rest, "")
        if not name:
            raise UsageError("hf: needs a name of the hub or a path, such as hf:beans:train or hf:data/train.parquet.")
        return cls(places.local(name), split)

    @property
    def on_hub(self) -> bool:
        path = self.name.endswith(ENDINGS) or places.is_pattern(self.name) or places.is_remote(self.name)
        return not path and not os.path.exists(self.name) and bool(re.fullmatch(HUB_NAME, self.name))


HUB_NAME = r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w.+-]+)?"


@dataclass(frozen=True)
class Groups:
    """The row groups (of Parquet) or record batches (of Arrow) of several files, one after the other."""

    files: tuple[str, ...]
    file: np.ndarray  # int64 (groups,)
    number: np.ndarray  # int64 (groups,), within its file
    ends: np.ndarray  # int64 (groups,), rows up to the end of each
    first: np.ndarray  # int64 (files,), the row that each begins with
    columns: Columns

    def find(self, row: int) -> tuple[int, int]:
        """(group, row within it)"""
        if not 0 <= row < self.ends[-1]:
            raise IndexError(f"image {row} of {self.ends[-1]}")
        group = int(np.searchsorted(self.ends, row, "right"))
        return group, row - int(self.ends[group - 1] if group else 0)


def open_huggingface(spec: str, config: Data, split: str = "train") -> Source:
    """`hf:NAME[@CONFIG][:SPLIT]` from the hub (which needs a network), or `hf:PATH[:SPLIT]` of Parquet or Arrow."""
    asked = Spec.parse(spec)
    if asked.on_hub:
        return _hub(asked, config, split)
    files = _part(asked, split)
    groups = _groups(files, config, spec)
    if all(file.endswith(".arrow") and not places.is_remote(file) for file in files):
        return _in_place(spec, groups, config)
    return _copied(spec, groups, config)


def parts(spec: str) -> set[str]:
    """Which of train, val and test there are by the names of files or, of the hub, as it says; none if one is asked."""
    asked = Spec.parse(spec)
    if asked.split:
        return set()
    if asked.on_hub:
        name, _, variant = asked.name.partition("@")
        found = _asked(asked, lambda: set(_library().get_dataset_split_names(name, variant or None)))
        return {split for split, aliases in SPLITS.items() if found & set(aliases)}
    files = _files(asked.name)
    return {split for split in SPLITS if _of_split(files, asked.name, split)}


def _files(name: str) -> list[str]:
    if places.is_pattern(name):
        found = places.expand(name)
    elif name.endswith(ENDINGS):
        found = [name]
    else:
        found = places.below(name, ENDINGS)
    if any(places.is_remote(path) and path.endswith(".arrow") for path in found):
        raise UsageError("Arrow files are read in place: copy them to this machine first, or use Parquet.")
    kept = [path for path in found if not os.path.basename(path).startswith("cache-")]
    if not kept:
        raise UsageError(f"There are no Parquet or Arrow files at {printable(name)}.")
    return kept


def _of_split(files: list[str], root: str, split: str) -> list[str]:
    """Those with the split in their names, such as train/0000.parquet or data/train-00000-of-00002.parquet."""
    names = "|".join(map(re.escape, SPLITS.get(split, (split,))))
    pattern = re.compile(rf"(?:^|/)(?:{names})(?:[-_.][^/]*)?(?:/|$)")
    base = root.rstrip("/").rpartition("/")[0] if root.endswith(ENDINGS) or places.is_pattern(root) else root
    return [file for file in files if pattern.search(file.removeprefix(base))]


def _part(asked: Spec, split: str) -> list[str]:
    files = _files(asked.name)
    found = _of_split(files, asked.name, asked.split or split)
    if asked.split and not found:
        raise UsageError(f"No file at {printable(asked.name)} has '{asked.split}' in its name.")
    if split == "test" and not found and not asked.split:
        found = _of_split(files, asked.name, "val")
    if found:
        return found
    if split != "train":
        raise UsageError(f"{printable(asked.name)} has no {split} part: no file has that in its name.")
    return files


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UsageError("Parquet and Arrow files need the package pyarrow: pip install 'byol[hf]'.") from None
    return pyarrow


def _groups(files: list[str], config: Data, spec: str) -> Groups:
    arrow = _arrow()
    owner, number, rows, first = list[int](), list[int](), list[int](), list[int]()
    columns: Columns | None = None
    for place, file in enumerate(files):
        try:
            schema, counts = _layout(arrow, file)
            found = find_columns(arrow, schema, config, spec)
        except (arrow.ArrowException, OSError, ValueError, KeyError) as error:  # also names that are no UTF-8, or twice
            raise BadData(f"{printable(file)} cannot be read: {places.first_line(error)}.") from None
        if columns is not None and found != columns:
            raise BadData(f"{printable(file)} has other columns or classes than {printable(files[0])}.")
        columns = found
        first.append(sum(rows))
        owner += [place] * len(counts)
        number += range(len(counts))
        rows += counts
    if not sum(rows) or columns is None:
        raise BadData(f"{spec} has no rows.")
    return Groups(tuple(files), np.array(owner), np.array(number), np.cumsum(rows), np.array(first), columns)


def _layout(arrow: Any, file: str) -> tuple[Any, list[int]]:
    """(schema, rows of each group) of a file."""
    if file.endswith(".parquet"):
        with places.opened(file) as source:
            opened = arrow.parquet.ParquetFile(source)
            facts = opened.metadata
            rows = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
            if not all(0 <= count <= source.seek(0, os.SEEK_END) for count in rows):  # memory would be made for them
                raise ValueError("it says it has more rows than bytes")
            return opened.schema_arrow, rows
    schema, batches = _batches(file)
    return schema, [batch.num_rows for batch in batches]


@lru_cache(maxsize=1024)
def _batches(file: str) -> tuple[Any, list[Any]]:
    """(schema, record batches) of an Arrow file, which stay on the disk until they are looked at."""
    arrow = _arrow()
    source = arrow.memory_map(file)
    try:
        reader = arrow.ipc.open_stream(source)  # what the datasets library writes
    except arrow.ArrowInvalid:
        reader = arrow.ipc.open_file(source)
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    else:
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)  # offsets that lead out of the file would end the process
    return reader.schema, batches


@lru_cache(maxsize=2)
def _unpacked(file: str, group: int, columns: Columns) -> Any:
    """The images' bytes of a row group of a Parquet file."""
    name = f"{columns.image}.bytes" if columns.nested else columns.image
    with places.opened(file) as source:
        opened = _arrow().parquet.ParquetFile(source, page_checksum_verification=True)
        found = opened.read_row_group(group, columns=[name], use_threads=False).column(columns.image).combine_chunks()
    return found.field("bytes") if columns.nested else found


def _bytes(groups: Groups, row: int) -> bytes:
    """Of the image in a row; none when the row has none."""
    group, place = groups.find(row)
    file = groups.files[groups.file[group]]
    number = int(groups.number[group])
    if file.endswith(".parquet"):
        found = _unpacked(file, number, groups.columns)
    else:
        found = _batches(file)[1][number].column(groups.columns.image)
        found = found.field("bytes") if groups.columns.nested else found
    if place >= len(found):
        raise ValueError("its group has fewer rows than the file says")
    return found[place].as_py() or b""


def _describe(groups: Groups, row: int) -> str:
    group, _ = groups.find(row)
    file = int(groups.file[group])
    return f"{printable(os.path.basename(groups.files[file]))} row {row - int(groups.first[file])}"


def _in_place(spec: str, groups: Groups, config: Data) -> Source:
    labels, classes = _labels(groups)
    stamps = tuple(places.status(file)[1] for file in groups.files)
    return Source(
        name=printable(spec),
        count=int(groups.ends[-1]),
        read=partial(_read, groups, config.max_megapixels),
        describe=partial(_describe, groups),
        labels=labels,
        classes=classes,
        stamp=partial(_stamp, groups, stamps),
        blocks=np.repeat(groups.file, np.diff(groups.ends, prepend=0)).astype(np.int32),
    )


def _read(groups: Groups, max_megapixels: float, row: int) -> torch.Tensor:
    try:
        content = _bytes(groups, row)
    except (_arrow().ArrowException, OSError, ValueError) as error:
        raise BadImage(places.first_line(error)) from None
    check_size(len(content), max_megapixels)
    return decode(content, max_megapixels)


def _stamp(groups: Groups, stamps: tuple[str, ...], row: int) -> bytes:
    return f"{stamps[groups.file[groups.find(row)[0]]]} {row}".encode()


def _copied(spec: str, groups: Groups, config: Data) -> Source:
    """From the copy in the cache, made or finished first."""
    job = _job(spec, groups, COPY_BYTES, shuffle=False)
    cache = Path(config.cache) if config.cache else places.default_cache()
    out = cache / "unpacked" / job.key
    with alone(out.with_suffix(".npz")):
        manifest = read_manifest(str(out))
        if not manifest or not manifest.index:
            say(f"{printable(spec)} is copied once to {printable(out)}, for reading in any order.")
            write(job, out)
    found = open_shards(str(out), config)
    return replace(found, name=printable(spec))


def _job(spec: str, groups: Groups, shard_bytes: int, shuffle: bool) -> Job:
    states = [places.status(file) for file in groups.files]
    told = json.dumps([*groups.files, *(stamp for _, stamp in states), *groups.columns])
    labels, classes = _labels(groups)
    return Job(
        name=printable(spec),
        count=int(groups.ends[-1]),
        size=sum(size for size, _ in states),
        image=partial(_image, groups),
        labels=labels,
        classes=classes,
        identity=hashlib.sha256(told.encode()).hexdigest(),
        shard_bytes=shard_bytes,
        shuffle=shuffle,
    )


def _image(groups: Groups, row: int) -> Image:
    """As it is stored; a group that cannot be unpacked costs its images, which are kept as empty ones."""
    try:
        content = _bytes(groups, row)
    except (_arrow().ArrowException, OSError, ValueError, KeyError) as error:
        say(f"{_describe(groups, row)} cannot be read ({places.first_line(error)}); it is kept as an empty image.")
        content = b""
    extension = next((name for magic, name in KINDS if content.startswith(magic)), "jpg")
    return Image(_describe(groups, row), extension, content)


def _labels(groups: Groups) -> tuple[np.ndarray | None, tuple[str, ...]]:
    columns, found = groups.columns, list[Any]()
    if not columns.label:
        return None, ()
    for file in groups.files:
        try:
            found += _column(file, columns.label)
        except (_arrow().ArrowException, OSError, ValueError, KeyError) as error:
            raise BadData(f"The labels of {printable(file)} cannot be read: {places.first_line(error)}.") from None
    if len(found) != groups.ends[-1]:
        raise BadData(f"{printable(groups.files[0])} has {len(found):,} labels for {groups.ends[-1]:,} rows.")
    return numbered(found, columns.classes)


def _column(file: str, name: str) -> list[Any]:
    if not file.endswith(".parquet"):
        return [value for batch in _batches(file)[1] for value in batch.column(name).to_pylist()]
    with places.opened(file) as source:
        table = _arrow().parquet.ParquetFile(source).read(columns=[name], use_threads=False)
    values: list[Any] = table.column(name).to_pylist()
    return values


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise UsageError("Names of the Hugging Face hub need the package datasets: pip install 'byol[hf]'.") from None
    return datasets


def _asked(asked: Spec, question: Callable[[], T]) -> T:
    try:
        return question()
    except ByolError:
        raise
    except Exception as error:
        raise UsageError(
            f"hf:{asked.name} could not be loaded from the hub; is this machine offline? ({places.first_line(error)})"
        ) from None


def _hub(asked: Spec, config: Data, split: str) -> Source:
    """By the datasets library, which downloads what it does not have yet."""
    library = _library()
    name, _, variant = asked.name.partition("@")
    part = asked.split
    if not part:
        there = _asked(asked, lambda: list(library.get_dataset_split_names(name, variant or None)))
        wanted = (*SPLITS.get(split, (split,)), *(SPLITS["val"] if split == "test" else ()))
        part = next((p for p in wanted if p in there), "")
        if not part:
            raise UsageError(f"hf:{asked.name} has no {split} part. {nearest(split, there)}")
    found = _asked(asked, lambda: library.load_dataset(name, variant or None, split=part))
    columns = find_columns(_arrow(), found.features.arrow_schema, config, f"hf:{asked.name}")
    labels, classes = (None, ()) if not columns.label else numbered(list(found[columns.label]), columns.classes)
    images = found.select_columns([columns.image])
    if columns.nested:
        images = images.cast_column(columns.image, library.Image(decode=False))
    title = printable(f"hf:{asked.name}:{part}")
    return Source(
        name=title,
        count=len(found),
        read=partial(_read_hub, images, columns, config.max_megapixels),
        describe=partial(_describe_hub, title),
        labels=labels,
        classes=classes,
        stamp=partial(_stamp_hub, f"{title} {getattr(found, '_fingerprint', '')}"),
    )


def _read_hub(images: Any, columns: Columns, max_megapixels: float, row: int) -> torch.Tensor:
    if not 0 <= row < len(images):
        raise IndexError(f"image {row} of {len(images)}")
    value = images[row][columns.image]
    content = value.get("bytes") if isinstance(value, dict) else value
    if content is None and isinstance(value, dict) and value.get("path"):
        with open_regular(os.fsencode(value["path"])) as file:  # unpacked by the library itself
            check_size(os.fstat(file.fileno()).st_size, max_megapixels)
            return decode(file, max_megapixels)
    if not content:
        raise BadImage("no bytes in its row")
    check_size(len(content), max_megapixels)
    return decode(content, max_megapixels)


def _describe_hub(title: str, row: int) -> str:
    return f"{title} row {row}"


def _stamp_hub(title: str, row: int) -> bytes:
    return f"{title} {row}".encode()
