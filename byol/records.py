"""The small files of a run directory: run.json, metrics.jsonl, and the lock that lets one process write there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from byol.errors import DiskError, OutputBusy, UsageError

LOCK, HOLDER = ".lock", ".holder"
MOST_BYTES = 200_000_000  # of a JSON file; metrics.jsonl of a million lines is as large
LONGEST_NAME = 255  # bytes, on every file system in use
MOST_OF_NAME = 100  # bytes of a name that is made from another
_held: set[Path] = set()


def write_atomically(path: Path, content: bytes) -> None:
    """The file is whole or not there: written beside, synced, renamed, and the directory synced too."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(path, error, len(content)) from None


def disk_error(path: Path, error: OSError, needed: int) -> DiskError:
    """One sentence with the path, the reason and, when space is short, how much is needed and free."""
    space = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with suppress(OSError):
            free = shutil.disk_usage(path.parent).free
            space = f" ({needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free)"
    return DiskError(f"Cannot write {path}: {error.strerror}{space}.")


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError):  # a bomb of brackets is the latter
        raise DiskError(f"{path} is not valid JSON; it was damaged or is not ours.") from None


def read_object(path: Path, *needed: str) -> dict[str, Any]:
    """A JSON file that must be an object with these names in it."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise DiskError(f"{path} is damaged or is not ours: it holds no record.")
    require(found, path, needed)
    return found


def require(record: dict[str, Any], path: Path, needed: Iterable[str]) -> None:
    missing = [name for name in needed if name not in record]
    if missing:
        raise DiskError(f"{path} is damaged or is not ours: it does not hold {', '.join(missing)}.")


@contextmanager
def meaning_of(path: Path) -> Iterator[None]:
    """Values of other kinds than a file of ours has are damage, and said so."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise DiskError(f"{path} is damaged or is not ours: its values are not those of a run.") from error


def read_text(path: Path) -> str:
    """All of a small file; no record of ours is as large as the limit."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror}.") from None
    if len(content) > MOST_BYTES:
        raise DiskError(f"{path} is larger than {MOST_BYTES / 1e6:g} MB, which no record of a run is.")
    return content.decode("utf-8")


class Metrics:
    """metrics.jsonl: one line a record, a pure function of config and data, so timing never goes in here."""

    def __init__(self, path: Path | None, step: int = 0, tensorboard: bool = False) -> None:
        """Opens for appending after dropping what was logged at or after `step`, which will be done again.

        Without a path nothing is written: another process does that.
        """
        self.path, self.events, self.file = path, None, None
        self.history: list[dict[str, Any]] = []
        if path is None:
            return
        self.events = _events(path.with_name("tensorboard"), step) if tensorboard else None
        kept = [record for record in read_metrics(path) if _step(record, path) < step]
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self.history = kept

    def add(self, record: dict[str, Any]) -> None:
        self.history.append(record)
        if self.path is None or self.file is None:
            return
        line = json.dumps(record) + "\n"
        try:
            self.file.write(line)
            self.file.flush()
        except OSError as error:
            raise disk_error(self.path, error, len(line)) from None
        if self.events:
            for name, value in record.items():
                if name != "step":
                    self.events.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self.file:
            with suppress(OSError):
                self.file.close()
        if self.events:
            self.events.close()


def _step(record: dict[str, Any], path: Path) -> int:
    step = record.get("step")
    if not isinstance(step, int):
        raise DiskError(f"{path} is damaged or is not ours: a line has no step.")
    return step


def _events(directory: Path, step: int) -> Any:
    """TensorBoard's writer; events from `step` on are hidden, as their steps will be done again."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("run.tensorboard needs TensorBoard: pip install 'byol[tensorboard]'.") from None
    return SummaryWriter(str(directory), purge_step=step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last line cut short by a kill is left out."""
    records = []
    if not path.exists():
        return []
    try:
        lines = read_text(path).splitlines()
    except UnicodeDecodeError:
        raise DiskError(f"{path} is damaged or is not ours: it is not UTF-8 text.") from None
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            raise DiskError(f"{path} is damaged or is not ours: a line holds no record.")
        records.append(record)
    return records


def run_place(data: str | Path, out: str | Path | None, preset: str) -> Path:
    """The run directory: as given, or named after data and preset."""
    place = Path(out) if out else Path("runs") / f"{plain_name(str(data))}-{preset}"
    check_place(place)
    return place


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
    """Holds the run directory: a second process is refused by name; the lock dies with its holder, who may ask twice.

    What was made for nothing is removed.
    """
    check_place(out)
    place = out.absolute()
    if place in _held:
        yield
        return
    made = [path for path in (out, *out.parents) if not path.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise OutputBusy(f"{out} is being written by another process{_holder(out)}. Choose another --out.") from None
    except OSError as error:
        raise DiskError(f"Cannot write to {out}: {error.strerror}.") from None
    _held.add(place)
    try:
        write_atomically(out / HOLDER, f"{os.getpid()} {socket.gethostname()}\n".encode())
        yield
    finally:
        _held.discard(place)
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
            number, host = (out / HOLDER).read_text().split()
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
