"""Plain data to one HTML file: template, style and script from the package, the data beside them as inert JSON.

The page asks for nothing: its policy allows the one script and style that carry these hashes, and images in the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from typing import Any

SCRIPTS = ("parts.js", "charts.js", "pointer.js", "map.js", "shows.js", "facts.js", "page.js")


def render(model: dict[str, Any]) -> bytes:
    """The page; every text of the user's is in the JSON, or escaped here."""
    script = "\n".join(_file(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}\n}})();\n'
    style = _file("page.css")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sentences = " ".join(f"<p>{_text(r['name'])}: {_text(r['verdict']['sentence'])}</p>" for r in model["runs"])
    parts = {
        "POLICY": policy,
        "TITLE": _text(model["title"]),
        "STYLE": style,
        "SENTENCES": sentences,
        "DATA": embedded(model),
        "SCRIPT": script,
    }
    # In one pass: what was put in is never searched for names.
    return re.sub(r"%([A-Z]+)%", lambda found: parts[found[1]], _file("page.html")).encode("utf-8")


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element: no character that HTML could take for its own, no bare NaN."""
    text = json.dumps(_finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """Numbers that JSON does not know become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _text(value: str) -> str:
    """Escaped, also what has no UTF-8."""
    return html.escape(value.encode("utf-8", "backslashreplace").decode("utf-8"))


def _file(name: str) -> str:
    return files("byol.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
