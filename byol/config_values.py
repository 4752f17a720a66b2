"""What a value of a config field may be: text, numbers and lists to the field's own type, within its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from byol.errors import UsageError, nearest


def convert(value: Any, kind: Any, metadata: Mapping[str, Any], where: str) -> Any:
    """The value in the type of its field; a `UsageError` says where it has another, or is out of range."""
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
