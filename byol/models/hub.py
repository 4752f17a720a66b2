"""`byol push` and `byol pull`: the folder of a model to another folder, a URL of fsspec or the hub, and back.

Only weights as safetensors, records as JSON and the card travel. contents.json goes last and names every file with its
digest, so that a model that was sent halfway is not taken for whole, and one that was changed on the way is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from byol import checkpoint
from byol.data import places
from byol.data.address import checked, is_remote, local
from byol.errors import BadData, DiskError, OutputBusy, UsageError
from byol.models import card
from byol.models.model import HEAD, NAME, VALIDATION, load_model
from byol.run.files import open_regular, placed, replacing, write_json
from byol.run.progress import bar, tell

CONTENTS = "contents.json"
FILES = (checkpoint.ENCODER, HEAD, VALIDATION, card.NAME, NAME)  # the record last: without it there is no model
NEEDED = (checkpoint.ENCODER, HEAD, NAME)
HUB = "hf:"
MOST_BYTES = 20e9
MOST_CONTENTS = 100_000  # bytes


Take = Callable[[bytes], object]
Get = Callable[[str, Take], None]  # gives a file of a model, by its name, piece by piece


def push(model: Path, to: str, private: bool = False) -> None:
    """Sends a model that is whole; the same model again changes nothing."""
    load_model(model, {"data.workers": 0})  # refuses what is no model, unfinished or damaged
    names = [name for name in FILES if (model / name).is_file()]
    sizes = {name: (model / name).stat().st_size for name in names}
    contents = {name: {"bytes": size, "sha256": _digest(model / name)} for name, size in sizes.items()}
    write_json(model / CONTENTS, {"format": 1, "files": contents})
    if to.startswith(HUB):
        _to_hub(model, to.removeprefix(HUB), [*names, CONTENTS], private)
    else:
        place = checked(local(to))
        with bar("Sending", sum(sizes.values()), "bytes") as shown:
            for name in [*names, CONTENTS]:
                _put(model / name, place)
                shown.advance(sizes.get(name, 0))
    tell(f"{to}: {len(names)} files of {model}. Take it with: byol pull {to} -o MODEL")


def pull(place: str, out: Path, overwrite: bool = False) -> None:
    """Brings a model, checks every byte of it, and opens it once."""
    get = _from_hub(place.removeprefix(HUB)) if place.startswith(HUB) else _from(checked(local(place)))
    listed = _contents(get, place)
    _refuse_other(out, listed, overwrite)
    with bar("Bringing", sum(size for size, _ in listed.values()), "bytes") as shown:
        for name in FILES:
            if name in listed and not _there(out / name, listed[name]):
                _bring(get, name, placed(out / name), listed[name], place)
            shown.advance(listed.get(name, (0, ""))[0])
    model = load_model(out, {"data.workers": 0})
    tell(f"{out}: {len(model.classes)} classes. Use it with: byol predict {out} IMAGES")


def _bring(get: Get, name: str, path: Path, fact: tuple[int, str], place: str) -> None:
    size, sha256 = fact
    digest, room = hashlib.sha256(), size
    with replacing(path, size) as file:

        def take(piece: bytes) -> None:
            nonlocal room
            room -= len(piece)
            if room < 0:
                raise BadData(f"{name} at {place} is longer than its {CONTENTS} says; nothing of it was kept.")
            digest.update(piece)
            file.write(piece)

        try:
            get(name, take)
        except FileNotFoundError:
            raise BadData(f"{name} is missing at {place}, though its {CONTENTS} names it.") from None
        if room or digest.hexdigest() != sha256:
            raise BadData(f"{name} at {place} is not what its {CONTENTS} says, so it was damaged or sent halfway.")


def _contents(get: Get, place: str) -> dict[str, tuple[int, str]]:
    """Sizes and digests of the files of a model, nothing of which is believed to be more than text and numbers."""
    pieces: list[bytes] = []

    def take(piece: bytes) -> None:
        pieces.append(piece)
        if sum(map(len, pieces)) > MOST_CONTENTS:
            raise BadData(f"{CONTENTS} at {place} is too long to be that of a model.")

    try:
        get(CONTENTS, take)
    except FileNotFoundError:
        raise UsageError(f"There is no model at {place}: `byol push` writes {CONTENTS} when one is whole.") from None
    try:
        files = json.loads(b"".join(pieces))["files"]
        found = {str(name): (int(fact["bytes"]), str(fact["sha256"])) for name, fact in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadData(f"{CONTENTS} at {place} is not that of a model of byol.") from None
    if not set(NEEDED) <= set(found) <= set(FILES) or not 0 < sum(size for size, _ in found.values()) <= MOST_BYTES:
        raise BadData(f"{CONTENTS} at {place} does not name the files of a model of byol alone.")
    return found


def _refuse_other(out: Path, listed: Mapping[str, tuple[int, str]], overwrite: bool) -> None:
    """A folder with another model, or with anything but a model, stays as it is."""
    try:
        visible = {path.name for path in out.iterdir() if not path.name.startswith(".")} if out.exists() else set()
    except OSError as error:
        raise UsageError(f"--out {out} is no folder: {error.strerror}.") from None
    if strange := visible - {*FILES, CONTENTS}:
        raise OutputBusy(f"{out} holds {min(strange)}, which is no file of a model. Choose another --out.")
    if (out / NAME).is_file() and not _there(out / NAME, listed[NAME]):
        if not overwrite:
            raise OutputBusy(f"{out} holds another model. Choose another --out, or --overwrite to replace it.")
        (out / NAME).unlink()


def _there(path: Path, fact: tuple[int, str]) -> bool:
    return path.is_file() and path.stat().st_size == fact[0] and _digest(path) == fact[1]


def _put(path: Path, place: str) -> None:
    """A file into a folder here, or into one at a URL."""
    if not is_remote(place):
        with replacing(placed(Path(place) / path.name), path.stat().st_size) as file:
            return _read(path, file.write)
    if place.startswith(("http://", "https://")):
        raise UsageError(f"{place} can be read and not written to: push to a folder that is served there.")
    files, folder = places.filesystem(place.rstrip("/"))
    try:
        files.makedirs(folder, exist_ok=True)
        files.put_file(str(path), f"{folder}/{path.name}")
    except Exception as error:  # whatever the file systems of fsspec raise
        raise DiskError(f"Cannot write {path.name} to {place}: {places.first_line(error)}.") from None


def _from(place: str) -> Get:
    """A folder here, or one at a URL."""
    if is_remote(place):
        return lambda name, take: places.stream(f"{place.rstrip('/')}/{name}", take)
    return lambda name, take: _read(Path(place) / name, take)


def _read(path: Path, take: Take) -> None:
    try:
        with open_regular(path) as file:
            while piece := file.read(places.CHUNK):
                take(piece)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError from None
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror}.") from None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    _read(path, digest.update)
    return digest.hexdigest()


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError("hf:NAME needs the client of the hub: pip install 'byol[hf]'.") from None
    return huggingface_hub


def _to_hub(model: Path, name: str, names: list[str], private: bool) -> None:
    """One commit, so that nobody sees half of it."""
    hub = _hub()
    adds = [hub.CommitOperationAdd(path_in_repo=each, path_or_fileobj=str(model / each)) for each in names]
    try:
        hub.HfApi().create_repo(name, exist_ok=True, private=private)
        hub.HfApi().create_commit(name, adds, commit_message="A model of byol")
    except Exception as error:  # of the network, of rights, of names
        raise DiskError(f"The hub did not take hf:{name}: {places.first_line(error)}.") from None


def _from_hub(name: str) -> Get:
    hub = _hub()

    def get(each: str, take: Take) -> None:
        try:
            path = Path(hub.hf_hub_download(name, each))
        except Exception as error:
            if each == CONTENTS and "404" in str(error):
                raise FileNotFoundError from None
            raise DiskError(f"The hub did not give {each} of hf:{name}: {places.first_line(error)}.") from None
        _read(path, take)

    return get
