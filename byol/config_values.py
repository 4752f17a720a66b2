"""What a value of a config field may be: text, numbers and lists to the field's own type, within its range, and in
agreement with the other fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from byol.config import Config, Data, Network, View, Views
from byol.errors import UsageError, nearest

RANGES = ("auto", "8-bit", "dtype", "percentiles")  # that data.range may be, besides numbers

LOGGERS = ("tensorboard", "wandb", "mlflow")  # byol/run/logs.py has them


def logger_names(log: str) -> list[str]:
    """`tensorboard, wandb` as names."""
    return [name.strip() for name in log.split(",") if name.strip()]


def convert(value: Any, kind: Any, metadata: Mapping[str, Any], where: str) -> Any:
    """The value in the type of its field; a `UsageError` says where it has another, or is out of range."""
    if "auto" in metadata and (value == "auto" or (isinstance(value, list | tuple) and list(value) in ([], ["auto"]))):
        return metadata["auto"]
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise UsageError(f"{where} cannot be {value!r}. {nearest(str(value), map(str, choices))}")
        return value
    if get_origin(kind) is tuple:
        return _convert_tuple(value, get_args(kind), metadata, where)
    converted = _convert_plain(value, kind, where)
    low, high = metadata["low"], metadata["high"]
    number = isinstance(converted, int | float) and not isinstance(converted, bool)
    if number and not (math.isfinite(converted) and low <= converted <= high):
        bounds = "finite" if math.isinf(low) else f"at least {low:g}"
        bounds += "" if math.isinf(high) else f" and at most {high:g}"
        raise UsageError(f"{where} must be {bounds}, not {value!r}.")
    return converted


def _convert_tuple(value: Any, kinds: tuple[Any, ...], metadata: Mapping[str, Any], where: str) -> Any:
    """Of a fixed length, or of any when the type ends in an ellipsis."""
    several = not isinstance(value, str) and hasattr(value, "__len__")
    if kinds[-1] is Ellipsis and several and len(value):
        kinds = kinds[:1] * len(value)
    if kinds[-1] is Ellipsis or not several or len(value) != len(kinds):
        count = "one or more" if kinds[-1] is Ellipsis else len(kinds)
        raise UsageError(f"{where} needs {count} numbers, not {value!r}.")
    return tuple(convert(v, k, metadata, where) for v, k in zip(value, kinds, strict=True))


def _convert_plain(value: Any, kind: type, where: str) -> Any:
    """YAML reads 1e-4 as text and 4 as an integer, so text of a number and whole floats are accepted."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif kind is str:
        if isinstance(value, str):
            return value
    elif not isinstance(value, bool):
        try:
            if kind is int and isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
                return int(value)
            if kind is int and float(value) == int(float(value)):
                return value if isinstance(value, int) else int(float(value))
            if kind is float:
                return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    expected = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    raise UsageError(f"{where} must be {expected}, not {value!r}.")


def bounds(text: str, origin: str = "config") -> tuple[tuple[float, float], ...]:
    """The pairs of data.range, one for all channels or one for each; none for a word."""
    if text in RANGES:
        return ()
    try:
        pairs = [tuple(float(number) for number in pair.split(",")) for pair in text.split(";")]
    except ValueError:
        pairs = []
    if not pairs or not all(len(p) == 2 and all(map(math.isfinite, p)) and p[0] < p[1] for p in pairs):
        raise UsageError(
            f"{origin}: data.range must be {', '.join(RANGES)} or two rising numbers such as 0,4095, with a "
            f"semicolon between those of different channels, not {text[:80]!r}."
        )
    return tuple((low, high) for low, high in pairs)


def check_together(config: Config, origin: str) -> None:
    """What no single field can see."""
    bounds(config.data.range, origin)
    _check_files(config.data, origin)
    _check_views(config.views, origin)
    if config.optim.batch % config.optim.accumulate:
        raise UsageError(
            f"{origin}: optim.batch ({config.optim.batch}) is not a multiple of "
            f"optim.accumulate ({config.optim.accumulate})."
        )
    if config.optim.batch == config.optim.accumulate:
        raise UsageError(f"{origin}: batch normalization needs two images a pass: optim.batch / optim.accumulate is 1.")
    if config.objective.contrasts and config.objective.normalization != "l2":
        raise UsageError(
            f"{origin}: objective.normalization {config.objective.normalization} is for the objective byol; "
            f"{config.objective.name} compares by the cosine, which is l2."
        )
    for name, set_too in (("optim.head_epochs", config.optim.head_epochs > 0), ("run.compile", config.run.compile)):
        if config.run.shard and set_too:
            raise UsageError(f"{origin}: run.shard cannot be had together with {name}: leave out one of them.")
    _check_target(config.network, origin)
    for name in logger_names(config.run.log):
        if name not in LOGGERS:
            raise UsageError(f"{origin}: there is no logger '{name}' for run.log. {nearest(name, LOGGERS)}")
    batch, size = config.optim.batch // config.optim.accumulate, config.network.projection
    if config.network.predictor == "optimal-linear" and batch <= size:
        raise UsageError(
            f"{origin}: a linear predictor of {size} features fits {batch} images a pass exactly and leaves nothing to "
            "learn. Lower network.projection below the images a pass."
        )


def _check_files(data: Data, origin: str) -> None:
    """How files are read: the letters of axes, the numbers of a window, the places in a pattern."""
    axes = data.axes
    if axes != "auto" and not (set("YX") <= set(axes) <= set("NCYX") and len(set(axes)) == len(axes)):
        raise UsageError(
            f"{origin}: data.axes must be auto or letters of N, C, Y and X, such as NYXC, not {axes[:80]!r}."
        )
    centre, _, width = data.voi.partition("/")
    try:
        sound = data.voi in ("file", "none") or (math.isfinite(float(centre)) and 0 < float(width) < math.inf)
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(
            f"{origin}: data.voi must be file, none or CENTRE/WIDTH such as 40/400, not {data.voi[:80]!r}."
        )
    pattern = re.sub(r"\{band:[^{}]+\}", "{band}", data.pattern)
    if pattern and (pattern.count("{stem}") != 1 or pattern.count("{band}") != 1 or "/" in pattern):
        raise UsageError(
            f"{origin}: data.pattern must be a file's name with one {{stem}} and one {{band}} in it, such as "
            f"{{stem}}_B{{band}}.tif, not {data.pattern[:80]!r}."
        )


def _check_views(views: Views, origin: str) -> None:
    for name in ("t", "t_prime"):
        view: View = getattr(views, name)
        for what in ("area", "ratio", "sigma"):
            if getattr(view, f"{what}_min") > getattr(view, f"{what}_max"):
                raise UsageError(f"{origin}: views.{name}.{what}_min is larger than views.{name}.{what}_max.")
    mean, std = views.mean, views.std
    if mean and std and len(mean) != len(std):  # empty: auto
        raise UsageError(f"{origin}: views.mean has {len(mean)} numbers and views.std {len(std)}: one a channel each.")


def _check_target(network: Network, origin: str) -> None:
    """Only a fixed target has a shape or weights of its own: any other one follows the online network."""
    own = {
        "target_init": network.target_init not in ("independent", "same"),
        "target_encoder": bool(network.target_encoder),
        "target_projector_hidden": bool(network.target_projector_hidden),
    }
    for name in (name for name, given in own.items() if given and network.target != "fixed"):
        value = str(getattr(network, name))
        shown = value if value.isprintable() else repr(value)
        raise UsageError(
            f"{origin}: network.{name} {shown} is for network.target fixed; a target that is {network.target} has the "
            "online network's shape and start."
        )


def fields_html(values: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Fields as a table for notebooks: those that are not as usual, the rest folded; without scripts."""
    from html import escape

    def rows(names: list[str]) -> str:
        cell = '<td style="text-align:left">'
        return "".join(
            f"<tr>{cell}<code>{escape(n)}</code></td>{cell}{escape(str(values[n]))}</td></tr>" for n in names
        )

    other = [name for name in values if values[name] != usual.get(name)]
    rest = [name for name in values if name not in other]
    shown = f"<table>{rows(other)}</table>" if other else "<p>As the paper's defaults.</p>"
    folded = f"<details><summary>{len(rest)} fields as usual</summary><table>{rows(rest)}</table></details>"
    return f"<div><b>Config</b>{shown}{folded}</div>"
