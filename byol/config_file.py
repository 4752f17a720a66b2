"""A config file: YAML without what silently misleads, or could hurt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from byol.errors import UsageError
from byol.run.files import regular_text

MOST_BYTES, DEEPEST = 100_000, 20  # of a config file: with all fields and their help it has 8 kB and three levels


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses what silently misleads, duplicate keys and aliases, and what no config needs."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, "too deeply nested", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain name", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key.value}'", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A config file as `{"optim.lr": value}`; sections may be nested or dotted."""
    try:
        loaded = yaml.load(regular_text(path, MOST_BYTES), _StrictLoader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise UsageError(f"Cannot read the config file {path}: {error.strerror}.") from None
    except (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UsageError(f"{place}: not valid YAML: {_problem(error)}.") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(f"{path}: a config file is a mapping such as 'optim: {{lr: 0.3}}'.")
    return flat(loaded, path)


def flat(mapping: Mapping[Any, Any], origin: object) -> dict[str, Any]:
    """`{"optim": {"lr": value}}` as `{"optim.lr": value}`; what is dotted already stays."""
    found: dict[str, Any] = {}
    for name, value in _flatten_mapping(mapping, "", origin):
        if name in found:
            raise UsageError(f"{origin}: duplicate key '{name}', once nested and once dotted.")
        found[name] = value
    return found


def _problem(error: Exception) -> str:
    """PyYAML's own words where it has any; values it cannot convert leak Python's errors."""
    if isinstance(error, RecursionError):
        return "too deeply nested"
    found = getattr(error, "problem", None) or getattr(error, "reason", None) or f"a value cannot be read ({error})"
    return str(found)[:200]


def _flatten_mapping(mapping: Mapping[Any, Any], prefix: str, path: object) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise UsageError(f"{path}: the key {key!r} is not text.")
        if isinstance(value, dict):
            yield from _flatten_mapping(value, f"{prefix}{key}.", path)
        else:
            yield prefix + key, value
