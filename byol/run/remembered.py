"""Where the images of a run are: as this user named them in a command, remembered in the user's cache.

A run directory may come from a stranger, so that what its run.json says is shown and never opened: it could name any
folder of this machine, or a server that would learn of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from byol.config import Config, Data, apply, flatten
from byol.data.address import is_remote, parse
from byol.errors import ByolError
from byol.run.files import read_json, user_cache, write_atomically
from byol.run.record import RunRecord


class Named(NamedTuple):
    """Images that a command has named, and the settings that they are opened with."""

    data: str
    config: Data


def remember(run: RunRecord, config: Data) -> None:
    """Notes where the images of a run are that begins or goes on here; a cache that cannot be written is no reason to
    stop."""
    places = {name: os.path.abspath(place) for name in PLACES if (place := getattr(config, name))}
    named = {"data": _absolute(run.request.data, config.root), "config": flatten(replace(config, **places))}
    with suppress(ByolError, OSError, RuntimeError):
        path = _path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(named).encode())


def images_of(run: RunRecord, config: Data, given: str = "") -> Named | None:
    """The images that the command names, or else those that an earlier command of this user named for the run.

    None: neither is known. Scenes are drawn and not opened, so that of them the run's own word is enough.
    """
    plain = Data(resolution=config.resolution)
    if given:
        return Named(given, plain)
    with suppress(ByolError, OSError, RuntimeError, KeyError, TypeError, AttributeError):
        named: Mapping[str, Any] = read_json(_path(run))
        fields = {f"data.{name}": value for name, value in named["config"].items()}
        return Named(str(named["data"]), apply(Config(), fields).data)
    with suppress(ByolError):
        if parse(run.request.data, plain.root).kind == "scenes":
            return Named(run.request.data, plain)
    return None


def _path(run: RunRecord) -> Path:
    """By what tells a run from others also after it was moved or copied."""
    own = json.dumps([run.created, run.data.fingerprint, run.request.data])
    return user_cache("runs") / f"{hashlib.sha256(own.encode()).hexdigest()[:24]}.json"


def _absolute(data: str, root: str) -> str:
    """The text with its path in full, for commands that are started in another folder."""
    address = parse(data, root)
    if is_remote(address.place) or address.kind not in ("folder", "shards", "hf"):
        return data
    if address.kind != "hf":
        return os.path.abspath(address.place)
    place = os.path.abspath(address.place) if os.path.exists(address.place) else address.place
    return f"hf:{place}" + (f":{address.split}" if address.split else "")


PLACES = ("root", "exclude", "cache")  # the fields of Data that are paths
