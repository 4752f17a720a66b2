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
    label: str  # empty: there is none
    classes: tuple[str, ...]


def find_columns(arrow: Any, schema: Any, config: Data, spec: str) -> Columns:
    """By type, since data sets of the hub say which column is an image and which a class, or else by name."""
    features = _features(schema)
    image = _image(arrow, schema, features, config.image_column, spec)
    label = _label(arrow, schema, features, config.label_column, spec)
    names = features.get(label, {}).get("names") or () if label else ()
    return Columns(image, arrow.types.is_struct(schema.field(image).type), label, tuple(map(str, names)))


def _image(arrow: Any, schema: Any, features: dict[str, dict[str, Any]], asked: str, spec: str) -> str:
    with_bytes = [field.name for field in schema if _holds_bytes(arrow, field.type)]
    likely = [name for name in with_bytes if features.get(name, {}).get("_type") == "Image"] or with_bytes
    sure = (*IMAGES, *likely[: len(likely) == 1])
    image = asked or next((name for name in sure if name in likely), "")
    if image in with_bytes:
        return image
    what = f"'{image}'" if image else "that is surely the images'"
    offer = nearest(image, with_bytes) if with_bytes else "None holds bytes."
    raise UsageError(f"{spec} has no column {what}: choose one with --data.image_column. {offer}")


def _label(arrow: Any, schema: Any, features: dict[str, dict[str, Any]], asked: str, spec: str) -> str:
    known = [name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"]
    plain = [field.name for field in schema if arrow.types.is_integer(field.type) or arrow.types.is_string(field.type)]
    label = asked or next((name for name in (*LABELS, *known) if name in (known or plain)), "")
    if label in ("", NO_LABELS):
        return ""
    if label not in plain:
        raise UsageError(f"{spec} has no label column '{label}'. {nearest(label, [*plain, NO_LABELS])}")
    return label


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What the datasets library noted of each column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: value for name, value in features.items() if isinstance(value, dict)}
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
