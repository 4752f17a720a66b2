"""Hugging Face data as a `Source`: Parquet and Arrow files here or at a URL, and data sets of the hub by name."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from byol.config import Data
from byol.data import arrow_files, places
from byol.data.address import Address, is_pattern, is_remote
from byol.data.columns import find_columns, numbered
from byol.data.decode import open_image, printable
from byol.data.folder import SPLITS, check_size
from byol.data.source import BadImage, Source
from byol.data.stored import read_stored
from byol.errors import ByolError, UsageError, nearest

T = TypeVar("T")

PATIENCE = 3.0  # seconds for the hub to take a connection
ENDINGS = (".parquet", ".arrow")
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w.+-]+)?")


def open_source(address: Address, config: Data, split: str) -> Source:
    """`hf:NAME[@VARIANT][:SPLIT]` from the hub (which needs a network), or `hf:PATH[:SPLIT]` of Parquet or Arrow."""
    if not address.place:
        raise UsageError("hf: needs a name of the hub or a path, such as hf:beans:train or hf:data/train.parquet.")
    if on_hub(address):
        return _hub(address, config, split)
    return arrow_files.open_files(_part(address, split), config, address.text)


def parts(address: Address) -> set[str]:
    """By the names of files or, of the hub, as it says; a split that is asked for by name is all that is used."""
    if address.split:
        return set()
    if on_hub(address):
        there = set(_hub_splits(address))
        return {split for split, aliases in SPLITS.items() if there & set(aliases)}
    files = _files(address.place)
    return {split for split in SPLITS if _of_split(files, address.place, split)}


def on_hub(address: Address) -> bool:
    """Whether the name is one of the hub and no file, folder, pattern or URL."""
    place = address.place
    files = place.endswith(ENDINGS) or is_pattern(place) or is_remote(place) or os.path.exists(place)
    return not files and bool(HUB_NAME.fullmatch(place))


def _files(place: str) -> list[str]:
    if is_pattern(place):
        files = places.expand(place)
    else:
        files = [place] if place.endswith(ENDINGS) else places.below(place, ENDINGS)
    if any(is_remote(path) and path.endswith(".arrow") for path in files):
        raise UsageError("Arrow files are read in place: copy them to this machine first, or use Parquet.")
    files = [path for path in files if not os.path.basename(path).startswith("cache-")]
    if not files:
        raise UsageError(f"There are no Parquet or Arrow files at {printable(place)}.")
    return files


def _of_split(files: list[str], root: str, split: str) -> list[str]:
    """Those with the split in their names, such as train/0000.parquet or data/train-00000-of-00002.parquet."""
    names = "|".join(map(re.escape, SPLITS.get(split, (split,))))
    pattern = re.compile(rf"(?:^|/)(?:{names})(?:[-_.][^/]*)?(?:/|$)")
    base = root.rstrip("/").rpartition("/")[0] if root.endswith(ENDINGS) or is_pattern(root) else root
    return [file for file in files if pattern.search(file.removeprefix(base))]


def _part(address: Address, split: str) -> list[str]:
    """The files of the split that the address names, or else of the one that is wanted; val stands in for test."""
    files = _files(address.place)
    if address.split:
        named = _of_split(files, address.place, address.split)
        if not named:
            raise UsageError(f"No file at {printable(address.place)} has '{address.split}' in its name.")
        return named
    wanted = _of_split(files, address.place, split) or (
        _of_split(files, address.place, "val") if split == "test" else []
    )
    if not wanted and split != "train":
        raise UsageError(f"{printable(address.place)} has no {split} part: no file has that in its name.")
    return wanted or files


def _library() -> Any:
    try:
        import datasets
        import huggingface_hub
    except ImportError:
        raise UsageError("Names of the Hugging Face hub need the package datasets: pip install 'byol[hf]'.") from None
    if not _answers(huggingface_hub.constants.ENDPOINT):
        # The library would try again for half a minute; told so, it opens at once what it has downloaded before.
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    return datasets


@cache
def _answers(endpoint: str) -> bool:
    """Whether the hub, or the proxy on the way to it, takes a connection; the search for its name may hang too."""
    url = urlsplit(getproxies().get(urlsplit(endpoint).scheme) or endpoint)
    address = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    made = list[bool]()

    def connect() -> None:
        with suppress(OSError, UnicodeError):
            socket.create_connection(address, PATIENCE).close()
            made.append(True)

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PATIENCE)
    return bool(made)


def _asked(address: Address, question: Callable[[], T]) -> T:
    try:
        return question()
    except ByolError:
        raise
    except Exception as error:
        reason = places.first_line(error)
        raise UsageError(
            f"hf:{address.place} could not be loaded from the hub; is this machine offline? ({reason})"
        ) from None


def _hub_splits(address: Address) -> list[str]:
    name, _, variant = address.place.partition("@")
    return _asked(address, lambda: list(_library().get_dataset_split_names(name, variant or None)))


def _hub(address: Address, config: Data, split: str) -> Source:
    """By the datasets library, which downloads what it does not have yet and runs no script of a data set."""
    library, part = _library(), address.split
    name, _, variant = address.place.partition("@")
    if not part:
        there = _hub_splits(address)
        wanted = (*SPLITS.get(split, (split,)), *(SPLITS["val"] if split == "test" else ()))
        part = next((p for p in wanted if p in there), "")
        if not part:
            raise UsageError(f"hf:{address.place} has no {split} part. {nearest(split, there)}")
    rows = _asked(address, lambda: library.load_dataset(name, variant or None, split=part))
    columns = find_columns(arrow_files.pyarrow(), rows.features.arrow_schema, config, f"hf:{address.place}")
    labels, classes = numbered(list(rows[columns.label]), columns.classes) if columns.label else (None, ())
    images = rows.select_columns([columns.image])
    if columns.nested:
        images = images.cast_column(columns.image, library.Image(decode=False))
    title = printable(f"hf:{address.place}:{part}")
    return Source(
        name=title,
        count=len(rows),
        read=partial(_read, images, columns.image, config.max_megapixels),
        describe=partial("{} row {}".format, title),
        labels=labels,
        classes=classes,
        stamp=partial(_stamp, f"{title} {getattr(rows, '_fingerprint', '')}"),
    )


def _read(images: Any, column: str, max_megapixels: float, row: int) -> torch.Tensor:
    if not 0 <= row < len(images):
        raise IndexError(f"image {row} of {len(images)}")
    value = images[row][column]
    content = value.get("bytes") if isinstance(value, dict) else value
    if content is None and isinstance(value, dict) and value.get("path"):
        with open_image(os.fsencode(value["path"])) as file:  # unpacked by the library itself
            check_size(os.fstat(file.fileno()).st_size, max_megapixels)
            return read_stored(file, max_megapixels, value["path"])
    if not content:
        raise BadImage("no bytes in its row")
    check_size(len(content), max_megapixels)
    return read_stored(content, max_megapixels)


def _stamp(title: str, row: int) -> bytes:
    return f"{title} {row}".encode()
