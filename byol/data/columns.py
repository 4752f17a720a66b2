"""Which column of a table holds the images and which their classes: by type and name, or as asked for."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from byol.config import Data
from byol.data.decode import printable
from byol.errors import UsageError, nearest

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
LABELS = ("label", "labels", "fine_label", "class", "cls", "target")
NO_LABELS = "none"
MOST_CLASSES = 1_000_000


class Columns(NamedTuple):
    """Where image and class are in a row."""

    image: str
    nested: bool  # the bytes are a field of the column
    label: str
    classes: tuple[str, ...]


def find_columns(arrow: Any, schema: Any, config: Data, spec: str) -> Columns:
    """By type: the data sets of the hub say which column is an image and which a class."""
    told = _features(schema)
    held = [f.name for f in schema if _holds_bytes(arrow, f.type)]
    images = [n for n in held if told.get(n, {}).get("_type") == "Image"] or held
    image = config.image_column or next(
        (n for n in (*IMAGES, images[0] if len(images) == 1 else "") if n in images), ""
    )
    if image not in held:
        what = f"'{image}'" if image else "that is surely the images'"
        offer = nearest(image, held) if held else "None holds bytes."
        raise UsageError(f"{spec} has no column {what}: choose one with --data.image_column. {offer}")
    known = [n for n in schema.names if told.get(n, {}).get("_type") == "ClassLabel"]
    plain = [f.name for f in schema if arrow.types.is_integer(f.type) or arrow.types.is_string(f.type)]
    label = config.label_column or next((n for n in (*LABELS, *known) if n in (known or plain)), "")
    if label in ("", NO_LABELS):
        return Columns(image, arrow.types.is_struct(schema.field(image).type), "", ())
    if label not in plain:
        raise UsageError(f"{spec} has no label column '{label}'. {nearest(label, [*plain, NO_LABELS])}")
    names = told.get(label, {}).get("names") or ()
    return Columns(image, arrow.types.is_struct(schema.field(image).type), label, tuple(map(str, names)))


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: value for name, value in found.items() if isinstance(value, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _holds_bytes(arrow: Any, kind: Any) -> bool:
    if arrow.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(arrow, kind.field("bytes").type)
    return bool(arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind))


def numbered(values: list[Any], classes: tuple[str, ...]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Class numbers and names; nothing when a row has no class, which the hub writes as nothing or -1."""
    if any(value is None or (not isinstance(value, str) and value < 0) for value in values):
        return None, ()
    if values and isinstance(values[0], str):
        names = tuple(sorted(set(values)))
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[value] for value in values], np.int64), tuple(map(printable, names))
    if max(values, default=0) >= MOST_CLASSES:  # numbers of something else
        return None, ()
    labels = np.array(values, np.int64)
    if len(classes) <= labels.max(initial=-1):
        classes = tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
    return labels, classes
