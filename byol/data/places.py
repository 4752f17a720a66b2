"""Where files are read from: this machine or any fsspec URL, whole, in pieces, or by way of a local copy."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from filelock import FileLock

from byol.data.address import is_remote
from byol.data.decode import printable
from byol.data.source import BadImage
from byol.errors import BadData, ByolError, DiskError, UsageError
from byol.run.files import disk_error, open_regular, read_regular, replacing, user_cache

T = TypeVar("T")

PATIENCE = (1.0, 4.0)  # seconds before another try at a network that failed
CHUNK = 1 << 22
MOST_FILES = 1_000_000
MOST_INDEX_BYTES = 4_000_000_000  # of shards.npz: some 40 million images

_alive: dict[int, Any] = {}


def expand(spec: str) -> list[str]:
    """The files that a pattern stands for, in order."""
    matches: list[str] = []
    for item in _braces(spec):
        if not re.search(r"[*?\[]", item):
            matches.append(item)
        elif is_remote(item):
            files, path = filesystem(item)
            matches += [files.unstrip_protocol(p) for p in sorted(_tried(item, partial(files.glob, path)))]
        else:
            matches += sorted(glob.glob(item), key=os.fsencode)
    return list(dict.fromkeys(matches))


def _braces(spec: str) -> list[str]:
    """`a{00..02}` and `a{x,y}` written out, as a shell does."""
    match = re.search(r"\{([^{}]*)\}", spec)
    if not match or not (".." in match[1] or "," in match[1]):
        return [spec]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if span:
        first, last = int(span[1]), int(span[2])
        if abs(last - first) >= MOST_FILES:
            raise UsageError(f"{spec} stands for more than a million files.")
        width = len(span[1]) if span[1].startswith("0") else 0
        middle = [f"{n:0{width}d}" for n in range(first, last + 1)] or [
            f"{n:0{width}d}" for n in range(first, last, -1)
        ]
    else:
        middle = match[1].split(",")
    ends = _braces(spec[match.end() :])
    return [spec[: match.start()] + text + end for text in middle for end in ends]


def names(folder: str) -> tuple[list[str], list[str]]:
    """(files, sub-folders) by their bare names, sorted; nothing when it is no folder."""
    if not is_remote(folder):
        try:
            with os.scandir(folder) as scan:
                entries = sorted((e.name, e.is_dir()) for e in scan if not e.name.startswith("."))
        except OSError:
            return [], []
        return [n for n, is_folder in entries if not is_folder], [n for n, is_folder in entries if is_folder]
    files, path = filesystem(folder)
    try:
        listing = _tried(folder, lambda: files.ls(path, detail=True))
    except FileNotFoundError:
        return [], []
    kinds = sorted((str(e["name"]).rstrip("/").rpartition("/")[2], e["type"]) for e in listing)
    return [n for n, kind in kinds if kind != "directory"], [n for n, kind in kinds if kind == "directory"]


def matching(folder: str, pattern: str) -> list[str]:
    """The files right in a folder whose names match."""
    return [f"{folder.rstrip('/')}/{name}" for name in names(folder)[0] if fnmatch.fnmatch(name, pattern)]


def below(folder: str, endings: tuple[str, ...]) -> list[str]:
    """All files anywhere below a folder whose names end so, sorted."""
    if not is_remote(folder):
        walk = sorted(os.path.join(at, name) for at, _, files_there in os.walk(folder) for name in files_there)
        return [path for path in walk if path.endswith(endings)]
    files, path = filesystem(folder)
    paths = sorted(_tried(folder, lambda: files.find(path)))
    return [files.unstrip_protocol(p) for p in paths if p.endswith(endings)]


def status(place: str) -> tuple[int, str]:
    """(bytes, a text that changes when the content does)."""
    if not is_remote(place):
        try:
            facts = os.stat(place)
        except OSError as error:
            raise BadData(f"Cannot read {printable(place)}: {error.strerror}.") from None
        return facts.st_size, f"{facts.st_size} {facts.st_mtime_ns}"
    files, path = filesystem(place)
    try:
        info = _tried(place, lambda: files.info(path))
    except FileNotFoundError:
        raise BadData(f"There is no {printable(place)}.") from None
    told = next((str(info[k]) for k in ("ETag", "etag", "md5", "mtime", "LastModified", "created") if info.get(k)), "")
    return int(info["size"] or 0), f"{info['size']} {told}"


def read(place: str, start: int, size: int) -> bytes:
    """A piece of a file, shorter where the file ends; `BadImage` when it cannot be read and never will."""
    if not is_remote(place):
        try:
            with open_regular(os.fsencode(place)) as file:
                return os.pread(file.fileno(), size, start)
        except OSError as error:
            raise BadImage((error.strerror or "cannot be read").lower()) from None
    files, path = filesystem(place)
    try:
        return cast(bytes, _tried(place, lambda: files.cat_file(path, start=start, end=start + size)))
    except FileNotFoundError:
        raise BadImage("shard not found") from None


def whole(place: str) -> bytes | None:
    """All of a file that says what others hold; None when there is none."""
    try:
        if not is_remote(place):
            return read_regular(os.fsencode(place), MOST_INDEX_BYTES)
        files, path = filesystem(place)
        return cast(bytes, _tried(place, lambda: files.cat_file(path)))
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = DiskError if is_remote(place) else BadData
        raise kind(f"Cannot read {printable(place)}: {error.strerror or error}.") from None


def opened(place: str) -> BinaryIO:
    """A file to read and seek in; over a network it is fetched in pieces of some megabytes."""
    try:
        if not is_remote(place):
            return open_regular(os.fsencode(place))
        files, path = filesystem(place)
        return cast(BinaryIO, _tried(place, lambda: files.open(path, "rb", block_size=CHUNK)))
    except OSError as error:
        raise BadData(f"Cannot read {printable(place)}: {error.strerror or error}.") from None


def default_cache() -> Path:
    """Where indexes and copies are kept when nothing else is asked for."""
    return user_cache("shards")


def copy_path(place: str, stamp: str, cache: Path) -> Path:
    """Where a local copy of a remote file is or would be."""
    return cache / "copies" / f"{hashlib.sha256(f'{place} {stamp}'.encode()).hexdigest()[:24]}.tar"


def copied(place: str, stamp: str, cache: Path, limit: float) -> Path:
    """A local copy, made when there is none; those not used for longest make room below `limit` bytes."""
    path = copy_path(place, stamp, cache)
    with suppress(OSError):
        os.utime(path)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # several workers need it, one fetches it
            if not path.exists():
                _fetch(place, path)
                _make_room(path, limit)
    except OSError as error:
        raise disk_error(path, error, 0) from None
    return path


def _fetch(place: str, path: Path) -> None:
    with replacing(path, 0) as target:
        try:
            _tried(place, lambda: _download(place, target))
        except FileNotFoundError:
            raise BadImage("shard not found") from None


def _download(place: str, target: BinaryIO) -> None:
    """From the start, because an attempt before this one may have ended halfway."""
    target.seek(0)
    target.truncate()
    files, path = filesystem(place)
    with files.open(path, "rb", block_size=CHUNK) as source:
        while data := source.read(CHUNK):
            try:
                target.write(data)
            except OSError as error:
                raise disk_error(Path(target.name), error, len(data)) from None


def stream(place: str, take: Callable[[bytes], object]) -> None:
    """The pieces of a file at a URL, in order and each once; `FileNotFoundError` when there is none."""
    files, path = filesystem(place)
    try:
        with files.open(path, "rb", block_size=CHUNK) as source:
            while piece := source.read(CHUNK):
                take(piece)
    except ByolError:
        raise
    except Exception as error:  # whatever the file systems of fsspec raise
        cause = _cause(error)
        if isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) in (404, 410):
            raise FileNotFoundError from None
        raise DiskError(f"Cannot read {printable(place)}: {first_line(cause)}. The same command tries again.") from None


def _cause(error: Exception) -> BaseException:
    """What is behind it: over HTTP a server that does not answer is said to have no such file."""
    return error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error


def _make_room(newest: Path, limit: float) -> None:
    """A copy that another worker reads from meanwhile lives on until it is closed."""
    copies = []
    for path in newest.parent.glob("*.tar"):
        with suppress(OSError):
            status = path.stat()
            copies.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total <= limit:
            break
        if path != newest:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            total -= size


def filesystem(place: str) -> tuple[Any, str]:
    """fsspec's own object for it, asked for anew each time: it must not be carried over into a forked worker."""
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(place)
    except ImportError as error:
        raise UsageError(f"{place.partition('://')[0]}:// needs another package: {first_line(error)}.") from None
    except ValueError as error:
        raise UsageError(f"{printable(place)} cannot be opened: {first_line(error)}.") from None
    # A forked worker that lets go of an inherited connection takes it from the event loop that it still shares with its
    # parent, whose next request would then wait for ever: so nobody lets go.
    _alive[id(files)] = files
    return files, path


def _tried(place: str, action: Callable[[], T]) -> T:
    """What the action gives; a network that fails gets another chance, twice, and then ends the run, resumably."""
    for wait in (*PATIENCE, None):
        try:
            return action()
        except (FileNotFoundError, DiskError):
            raise
        except Exception as error:
            if wait is None or isinstance(error, PermissionError):
                raise DiskError(
                    f"Cannot read {printable(place)}: {first_line(error)}. The same command tries again."
                ) from None
            time.sleep(wait)
    raise AssertionError("unreachable")


def first_line(error: BaseException) -> str:
    """What an error of another library says, short enough for a sentence of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".:")
