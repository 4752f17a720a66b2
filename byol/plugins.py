"""Objectives, encoders and operations of views from a user's own file, which a command or call names: `--plugin my.py`.

The file defines one or more of these dicts, from names to functions:
- `OBJECTIVES`: (φ, ψ, own, config's `objective`) → scalar; vectors (B, D) come with objective.normalization applied;
- `ENCODERS`: config's `network` → a module with `.num_features`, from (B, 3, H, W) to (B, num_features);
- `VIEWS`: (images (B, 3, S, S) in [0, 1], choices, config's `views`) → images of that shape, or a `views.Operation`;
  `views.t.plugin` and `views.t_prime.plugin` are their probabilities.

A record names its plug-in by file name and digest and is never a reason to load one: only the user is.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from byol import networks, objectives, views
from byol.config import Network, Objective, View, Views
from byol.errors import ByolError, UsageError
from byol.run.files import read_regular
from byol.run.record import Plugin

MODULE = "byol_plugin"
TABLES = ("OBJECTIVES", "ENCODERS", "VIEWS")


_loaded: dict[str, Plugin] = {}  # by the file's whole path; at most one


def loaded() -> Plugin | None:
    """The plug-in that this process was given."""
    return next(iter(_loaded.values()), None)


def path() -> str:
    """Where it is; empty without one."""
    return next(iter(_loaded), "")


def load(file: str | Path) -> Plugin:
    """Runs the file and adds what it defines; the same file again changes nothing."""
    place = Path(file).resolve()
    try:
        plugin = Plugin(place.name, hashlib.sha256(read_regular(place)).hexdigest()[:16])
    except OSError as error:
        raise UsageError(f"Cannot read the plug-in {file}: {error.strerror}.") from None
    if loaded() == plugin:
        return plugin
    if loaded():
        raise UsageError(f"The plug-in {path()} is loaded already, and a process takes one: put all into one file.")
    tables = _tables(_module(place, file), file)
    taken = {
        "OBJECTIVES": set(objectives.OBJECTIVES),
        "ENCODERS": set(networks.BACKBONES),
        "VIEWS": {field.name for field in fields(View)} | set(views.COLUMNS) | _drawn(),
    }
    for kind, entries in tables.items():
        for name, entry in entries.items():
            usable = callable(entry) or (kind == "VIEWS" and isinstance(entry, views.Operation))
            if not isinstance(name, str) or not name.isidentifier() or not usable:
                raise UsageError(f"{kind} of the plug-in {file} holds {name!r:.80}: it maps names to functions.")
            if name in taken[kind]:
                raise UsageError(f"{kind} of the plug-in {file} names {name}, which byol has itself: choose another.")
    for name, entry in tables["OBJECTIVES"].items():
        objectives.OBJECTIVES[name] = _objective(name, entry)
    for name, entry in tables["ENCODERS"].items():
        networks.BACKBONES[name] = _encoder(name, entry)
    for name, entry in tables["VIEWS"].items():
        views.OPERATIONS[name] = _operation(name, entry)
    _loaded[str(place)] = plugin
    return plugin


def _drawn() -> set[str]:
    """The names under which operations and their strengths are drawn."""
    strengths = (operation.strengths(View(), Views()) for operation in views.OPERATIONS.values())
    return set(views.OPERATIONS).union(*strengths)


def unload() -> None:
    """Forgets the plug-in and what it added."""
    for place in list(_loaded):
        tables = _tables(sys.modules.pop(MODULE), place)
        for table, known in (
            ("OBJECTIVES", objectives.OBJECTIVES),
            ("ENCODERS", networks.BACKBONES),
            ("VIEWS", views.OPERATIONS),
        ):
            for name in tables[table]:
                known.pop(name)
        del _loaded[place]


def require(plugin: Plugin | None, where: object) -> None:
    """Refuses to go on with what a record says was made with a plug-in that this process was not given."""
    here = loaded()
    if plugin is None or plugin == here:
        return
    again = f"add --plugin {plugin.name}, or byol.plugins.load in Python. Code that a record names is never loaded"
    if here is None:
        raise UsageError(f"{where} was made with the plug-in {plugin.name}: {again}.")
    raise UsageError(
        f"{where} was made with the plug-in {plugin.name} of digest {plugin.digest}, and {here.name} has the digest "
        f"{here.digest}: {again}."
    )


def _module(place: Path, file: str | Path) -> ModuleType:
    spec = spec_from_file_location(MODULE, place)
    if spec is None or spec.loader is None:
        raise UsageError(f"The plug-in {file} is not a Python file: its name should end in .py.")
    module = module_from_spec(spec)
    sys.modules[MODULE] = module  # for dataclasses and other things that look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[MODULE]
        raise UsageError(f"The plug-in {file} cannot be loaded: {_brief(error)}") from error
    return module


def _tables(module: ModuleType, file: str | Path) -> dict[str, dict[Any, Any]]:
    found = {name: getattr(module, name, {}) for name in TABLES}
    if not any(found.values()) or not all(isinstance(table, dict) for table in found.values()):
        raise UsageError(f"The plug-in {file} defines none of the dicts {', '.join(TABLES)}: see docs/extend.md.")
    return found


def _brief(error: Exception) -> str:
    line = (str(error).strip() or "no message").splitlines()[0][:200].rstrip(".")
    return f"{type(error).__name__}: {line}. Add --debug for the traceback."


def _guarded(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose errors are the user's own."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ByolError:
            raise
        except Exception as error:
            raise UsageError(f"{what} of the plug-in failed: {_brief(error)}") from error

    return call


def _objective(name: str, function: Callable[..., Any]) -> Callable[[Tensor, Tensor, Tensor, Objective], Tensor]:
    """The loss of vectors that are normalized as the plan says."""
    call = _guarded(f"The objective {name}", function)

    def loss(phi: Tensor, psi: Tensor, own: Tensor, config: Objective) -> Tensor:
        n = objectives.NORMALIZATIONS[config.normalization]
        found = call(n(phi), n(psi), n(own), config)
        if not isinstance(found, Tensor) or found.ndim:
            shape = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)[:80]
            raise UsageError(
                f"The objective {name} of the plug-in should return one number, the batch's mean, not {shape}."
            )
        return found

    return loss


def _encoder(name: str, function: Callable[..., Any]) -> Callable[[Network], nn.Module]:
    call = _guarded(f"The encoder {name}", function)

    def build(config: Network) -> nn.Module:
        module = call(config)
        if not isinstance(module, nn.Module) or not isinstance(getattr(module, "num_features", None), int):
            raise UsageError(
                f"The encoder {name} of the plug-in should be a torch module with the number num_features."
            )
        return module

    return build


def _operation(name: str, entry: Any) -> views.Operation:
    operation = entry if isinstance(entry, views.Operation) else views.Operation(entry)
    return operation._replace(apply=_guarded(f"The view operation {name}", operation.apply))
