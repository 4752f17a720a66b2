"""The small files of a run directory: run.json, metrics.jsonl, and the lock that lets one process write there."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from filelock import FileLock, Timeout

from byol.errors import DiskError, OutputBusy, UsageError, process_number
from byol.run.progress import say

LOCK, HOLDER = ".lock", ".holder"
MOST_BYTES = 200_000_000  # of a JSON file; metrics.jsonl of a million lines is as large
PIECE = 1 << 20
LONGEST_NAME = 255  # bytes, on every file system in use
MOST_OF_NAME = 100  # bytes of a name that is made from another
_held: dict[Path, int] = {}  # run directory → the thread of this process that writes there


def write_atomically(path: Path, content: bytes) -> None:
    """The file is whole or not there."""
    with replacing(path, len(content)) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, needed: int) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block has ended well and its bytes are on the disk.

    Nobody can guess its name until then, and neither that name nor the directory may be a link: what somebody else
    prepared in the directory leads no byte elsewhere, and two writers of one file do not meet. `needed` is the number
    of bytes that a full disk is told to lack.
    """
    directory, temporary = -1, f".{path.name[:MOST_OF_NAME]}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
    try:
        path.parent.mkdir(exist_ok=True)
        refuse_link(path.parent)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        _forget_killed(path)
        with open(
            temporary, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=directory)
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    except OSError as error:
        raise disk_error(path, error, needed) from None
    finally:
        if directory >= 0:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            with suppress(OSError):
                os.close(directory)


def _forget_killed(path: Path) -> None:
    """Removes what killed processes of this machine had written of the file."""
    for left in path.parent.glob(f".{glob.escape(path.name[:MOST_OF_NAME])}.*.*.tmp"):
        try:
            os.kill(int(left.name.split(".")[-3]), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            with suppress(OSError):
                left.unlink()
        except OSError:
            continue  # alive, and another user's


def refuse_link(*inside: Path) -> None:
    """Nothing is written through a link inside a run directory: somebody else may have put the link there."""
    for path in inside:
        if path.is_symlink():
            raise DiskError(f"Cannot write to {path}: it is a link. Remove the link, or name the place it leads to.")


def followed(place: Path) -> Path:
    """A directory as the user names it, which may itself be a link: the directory that the link leads to."""
    return place.resolve() if place.is_symlink() else place


def placed(file: Path) -> Path:
    """A file as the user names it, in its folder, which is made if it is missing and followed if it is a link."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(file, error, 0) from None
    return followed(file.parent) / file.name


def open_to_append(path: Path) -> BinaryIO:
    """Opens a file of a run directory for more lines at its end; a link in its place is not followed."""
    refuse_link(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise disk_error(path, error, 0) from None
    return os.fdopen(handle, "ab")


def open_regular(path: Path | bytes) -> BufferedReader:
    """Opens a file that comes from outside. What is not a regular file (a pipe, a device, a directory) is refused at
    once with an `OSError` that says so; a pipe would otherwise be waited for, and a device never ends."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a zero byte in the name
        raise OSError(errno.EINVAL, "no file can have this name") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        directory = (errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(*(directory if stat.S_ISDIR(mode) else (errno.EINVAL, "not a regular file")))
    return os.fdopen(handle, "rb")


def read_regular(path: Path | bytes, most: int = MOST_BYTES) -> bytes:
    """All of a file that comes from outside, if it is a regular one of at most so many bytes; else an `OSError`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size) if size <= most else b""
        while size <= most and (more := file.read(PIECE)):  # what was added meanwhile
            content += more
            size = len(content)
    if size > most:
        raise OSError(errno.EFBIG, f"larger than {most / 1000:,.0f} kB")
    return content


def regular_text(path: Path, most: int = MOST_BYTES, errors: str = "strict") -> str:
    """All of a text file that comes from outside; an `OSError` that says why not, also for what is not UTF-8."""
    try:
        return read_regular(path, most).decode("utf-8", errors)
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "not UTF-8 text") from None


def user_cache(kind: str) -> Path:
    """The folder in the user's cache for one kind of files; it may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "byol" / kind


def disk_error(path: Path, error: OSError, needed: int) -> DiskError:
    """One sentence with the path, the reason and, when space is short, how much is needed and free."""
    space = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with suppress(OSError):
            free = shutil.disk_usage(path.parent).free
            space = f" ({needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free)"
    return DiskError(f"Cannot write {path}: {error.strerror}{space}.")


def write_json(path: Path, value: Any) -> None:
    """As UTF-8 text; bytes of a file name that are not UTF-8 are written as JSON's escapes, and read as they were."""
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError):  # a bomb of brackets is the latter
        raise DiskError(f"{path} is not valid JSON; it was damaged or is not ours.") from None


def read_text(path: Path) -> str:
    """All of a small file; no record of ours is as large as the limit."""
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError:
        raise DiskError(f"{path} is damaged or is not ours: it is not UTF-8 text.") from None
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror}.") from None


class Listener(Protocol):
    """Who is told every line as well: loggers of others."""

    def add(self, line: dict[str, Any]) -> None: ...


class Metrics:
    """metrics.jsonl: one line a record, a pure function of config and data, so timing never goes in here."""

    def __init__(self, path: Path | None, step: int = 0, listener: Listener | None = None) -> None:
        """Opens for appending after dropping what was logged at or after `step`, which will be done again; at 0 that is
        everything, also the look before the first step.

        Without a path nothing is written: another process does that. The listener is given every line too.
        """
        self.path, self.listener, self.file = path, listener, None
        self.history: list[dict[str, Any]] = []
        if path is None:
            return
        refuse_link(path)
        self.history = [record for record in read_metrics(path) if record["step"] < step] if step else []
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in self.history).encode())
        self.file = open_to_append(path)

    def add(self, record: dict[str, Any]) -> None:
        self.history.append(record)
        if self.path is None or self.file is None:
            return
        line = (json.dumps(record) + "\n").encode()
        try:
            self.file.write(line)
            self.file.flush()
        except OSError as error:
            raise disk_error(self.path, error, len(line)) from None
        if self.listener:
            self.listener.add(record)

    def close(self) -> None:
        if self.file:
            with suppress(OSError):
                self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl: a step and measured numbers each."""
    return read_lines(path, _measured)


def _measured(record: dict[str, Any]) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in record.values())
    return numbers and isinstance(record.get("step"), int)


def read_lines(path: Path, sound: Callable[[dict[str, Any]], bool] = bool) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line. A last line that a kill cut short is left out; any other line that holds
    no `sound` record is left out by its number, and those after it are kept."""
    if not path.exists():
        return []
    records, damaged = list[dict[str, Any]](), list[int]()
    lines = read_text(path).split("\n")  # the last of them is empty, or was cut short
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and sound(record):
            records.append(record)
        elif number < len(lines):
            damaged.append(number)
    if damaged and not records:
        raise DiskError(f"{path} is damaged or is not ours: none of its lines can be read.")
    if damaged:
        some = ", ".join(map(str, damaged[:5])) + ", …" * (len(damaged) > 5)
        say(f"{path} is damaged: {len(damaged)} of its lines ({some}) cannot be read and are left out.")
    return records


def run_place(data: str | Path, location: str, out: str | Path | None, preset: str) -> Path:
    """The run directory: as given, or named after data and preset.

    Data sets of one name at two locations have two directories: the second is named after its parent folder too.
    """
    if out:
        check_place(Path(out))
        return followed(Path(out))
    places = [Path("runs") / f"{name}-{preset}" for name in distinct_names(str(data), location)]
    known = {place: _location(place) for place in places}
    own = [place for place in places if known[place] == location]
    place = (own or [place for place in places if not known[place]] or places[-1:])[0]
    if known[places[0]] not in ("", location) and not process_number():
        say(f"{places[0]} holds the run on {known[places[0]]}; the run on {location} is in {place}.")
    check_place(place)
    return followed(place)


def distinct_names(data: str, location: str) -> list[str]:
    """Names for the files of a data set: its own, the same after that of its parent folder, and with a digest."""
    own, parent = plain_name(data), plain_name(str(Path(location).parent))
    return [own, f"{parent}-{own}", f"{own}-{hashlib.sha256(os.fsencode(location)).hexdigest()[:8]}"]


def _location(place: Path) -> str:
    """Where the images of the run in a directory are; empty: there is no run, or its record does not say so."""
    try:
        location = read_json(place / "run.json")["data"]["location"]
    except (DiskError, KeyError, TypeError):
        return ""
    return location if isinstance(location, str) else ""


def refuse_foreign(out: Path) -> None:
    """A directory with anything in it but a run is somebody else's."""
    try:
        visible = out.is_dir() and [p for p in out.iterdir() if not p.name.startswith(".")]
        foreign = out.exists() and not (out.is_dir() and ((out / "run.json").exists() or not visible))
    except OSError:
        foreign = False
    if foreign:
        raise OutputBusy(f"{out} exists and is not a run of byol. Choose another --out.")


def plain_name(place: str) -> str:
    """The last part of a path or URL as a name that leads nowhere and that every file system takes."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(place).name)
    return name.encode()[:MOST_OF_NAME].decode("utf-8", "ignore").lstrip(".") or "images"


def check_place(out: Path) -> None:
    """A directory whose name no file system takes is a mistake in the command, said before anything is written."""
    if "\0" in str(out):
        raise UsageError(f"{str(out)!r} cannot be the name of a directory: it holds a zero byte.")
    long = next((part for part in out.parts if len(os.fsencode(part)) > LONGEST_NAME), "")
    if long:
        raise UsageError(f"The name {long[:40]}… is longer than {LONGEST_NAME} bytes: choose a shorter one.")


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Holds the run directory: a second process or thread is refused by name; the lock dies with its holder, who may
    ask twice.

    What was made for nothing is removed.
    """
    check_place(out)
    place = out.resolve()
    if _held.get(place) == threading.get_ident():
        yield
        return
    made = [path for path in (out, *out.parents) if not path.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        refuse_link(out / LOCK)
        lock = FileLock(out / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        other = "another thread of this process" if place in _held else f"another process{_holder(out)}"
        raise OutputBusy(f"{out} is being written by {other}. Choose another --out.") from None
    except OSError as error:
        raise DiskError(f"Cannot write to {out}: {error.strerror}.") from None
    _held[place] = threading.get_ident()
    try:
        write_atomically(out / HOLDER, f"{os.getpid()} {socket.gethostname()}\n".encode())
        yield
    finally:
        _held.pop(place, None)
        with suppress(OSError):
            if made and {path.name for path in out.iterdir()} <= {LOCK, HOLDER}:
                (out / HOLDER).unlink(missing_ok=True)
                (out / LOCK).unlink()
                for path in made:
                    path.rmdir()
        lock.release()


def _holder(out: Path) -> str:
    """Who has the lock; it writes its number down right after, so an old one may be there for a moment."""
    for _ in range(20):
        with suppress(OSError, ValueError):
            number, host = regular_text(out / HOLDER, 1000).split()
            if host != socket.gethostname():
                return f" (process {number} on {host})"
            os.kill(int(number), 0)
            return f" (process {number})"
        time.sleep(0.05)
    return ""


def require_space(out: Path, needed: int, what: str = "checkpoints") -> None:
    """Says before a long run, not after it, that the disk is too full."""
    free = shutil.disk_usage(out).free
    if free < needed:
        raise DiskError(f"Not enough space in {out}: {what} need {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free.")


def require_there(out: Path) -> None:
    """A run directory that was removed or renamed is not made again in silence, without its beginning."""
    if not (out / "run.json").exists():
        raise DiskError(f"{out} was removed or renamed, or its disk is gone, while the run wrote there.")
