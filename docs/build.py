"""The documentation site: `make docs`, or `python docs/build.py [FOLDER]`. Neither build nor site fetches anything.

Pages are those of docs/, the README as the home page, and a reference that is written from the code: verbs and flags
from the command line, fields from the config, functions from their docstrings, the paper's tables from their
declarations with ours beside them. A link that leads nowhere fails the build.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import byol
from byol import cli  # noqa: F401 (adds the verbs)
from byol.cli.app import app
from byol.cli.help import kind_of, scalar
from byol.config import Config, declared, flatten, resolve
from byol.evals.spec import Specs
from byol.presets import PRESETS
from byol.tables import constants
from byol.tables.catalog import TABLES
from byol.tables.record import read_table
from byol.tables.render import markdown
from byol.tables.scales import SCALES
from byol.tables.table import Table, cited

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
WORKER = "iframe-worker.js"  # under this name Material takes it for its own, which it would fetch from elsewhere
SHELF = (
    "networks",
    "objectives",
    "optim",
    "schedules",
    "views",
    "method",
    "algorithm",
    "presets",
    "plugins",
    "neighbours",
)
START = ("own-images", "from-weights", "any-image", "tables")
HOW = (
    *("use", "learning", "evaluation", "tune", "sounds", "weights", "loggers", "shards", "gpu", "processes"),
    *("cluster", "containers", "faq"),
)
WHY = ("architecture", "departures", "resume", "guarantees", "extend")
MEASURED = ("results", "speed", "paper-tables")


def head(title: str, text: str) -> list[str]:
    return [f"# {title}", "", text, ""]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown, with a line after it."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return [
        *lines,
        *("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows),
        "",
    ]


def commands() -> dict[str, str]:
    """A page a verb, and one that lists them by group."""
    pages, groups = {}, dict[str, list[tuple[str, str]]]()
    for verb in sorted(name for name in app if not name.startswith("-")):
        sub = app[verb]
        doc = inspect.cleandoc(sub.default_command.__doc__ or "")
        first, _, rest = doc.partition("\n")
        groups.setdefault(str(sub.group[0].name), []).append((verb, first))
        about = rest.split("\nParameters\n")[0].strip()
        arguments = list(sub.assemble_argument_collection(parse_docstring=True))
        own = [
            each for each in arguments if "Fields of" not in str(each.parameter.group[0].name) and each.parameter.help
        ]
        places = [each.name.lstrip("-").upper() for each in own if each.index is not None]
        usage = " ".join(
            ["byol", verb, *(f"[{p}]" if not a.required else p for p, a in zip(places, own, strict=False)), "[FLAGS]"]
        )
        lines = [*head(f"byol {verb}", first), *([about, ""] if about else []), "```text", usage, "```", ""]
        lines += table(("argument or flag", "what", "default"), [_argument(each) for each in own])
        sections = sorted(
            {
                str(e.parameter.group[0].name).removeprefix("Fields of ").split(".")[0]
                for e in arguments
                if "Fields of" in str(e.parameter.group[0].name)
            }
        )
        if sections:
            links = ", ".join(f"[{s}](../config.md#{s.replace('-', '_')})" for s in sections)
            lines += [f"Every field of these sections is a flag as well: {links}.", ""]
        pages[f"reference/commands/{verb}.md"] = "\n".join(lines)
    lines = head(
        "Commands",
        "`byol` alone shows five tasks. Every verb also takes `--quiet`, `--json`, `--plugin FILE.py`, "
        "`--debug` and `--help`; those with config fields take `--help-all`.",
    )
    for group in ("Train", "Use", "Look", "Help"):
        rows = [(f"[`byol {verb}`](commands/{verb}.md)", first) for verb, first in groups.pop(group)]
        lines += [f"## {group}", "", *table(("verb", "what"), rows)]
    assert not groups, f"verbs in a group that the page does not show: {groups}"
    return pages | {"reference/commands.md": "\n".join(lines)}


def _argument(each: Any) -> tuple[str, str, str]:
    names = [each.name.lstrip("-").upper()] if each.index is not None else [f"`{name}`" for name in each.names]
    default = each.field_info.default
    shown = "required" if each.required else "" if default in (None, False, "", [], ()) else f"`{_words(default)}`"
    return " ".join(names), " ".join(str(each.parameter.help).split()), shown


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def fields_page() -> str:
    """Every field of config and protocols, by section."""
    lines = head(
        "Config fields",
        "Every field is a flag (`--optim.lr 0.3`) and a key of `--config FILE.yaml`. Defaults "
        "are the paper's for 1,000 epochs. Fields with ↻ may change when a run goes on.",
    )
    stated = {constant.field: constant for constant in constants.constants()}
    presets = {name: flatten(make()) for name, make in PRESETS.items()}
    for kind, title in ((Config, ""), (Specs, " (evaluation)")):
        sections: dict[str, list[tuple[str, Any, Mapping[str, Any]]]] = {}
        for name, hint, metadata in declared(kind):
            sections.setdefault(name.rpartition(".")[0], []).append((name, hint, metadata))
        defaults = flatten(kind())
        for section, found in sections.items():
            lines += [
                f"## {section}{title}" + (f" {{#{section.replace('.', '-')}}}" if title or "." in section else ""),
                "",
            ]
            rows = []
            for name, hint, metadata in found:
                again = " ↻" if metadata.get("on_resume") and kind is Config else ""
                other = [
                    f"{p} {scalar(v[name])}" for p, v in presets.items() if name in v and v[name] != defaults[name]
                ]
                paper = f" Paper: {scalar(stated[name].value)} ({stated[name].where})." if name in stated else ""
                about = f"{metadata['help']}; {kind_of(hint, metadata)}.{paper}" + (
                    f" In presets: {', '.join(other)}." if other else ""
                )
                rows.append((f"`{name}`{again}", about, f"`{scalar(defaults[name])}`"))
            lines += table(("field", "what", "default"), rows)
    return "\n".join(lines)


def presets_page() -> str:
    lines = head(
        "Presets", "Recipes by name, for `--preset`; `auto`, the default, chooses by images, machine and time."
    )
    for name, make in PRESETS.items():
        made = make()
        plan = resolve(made, constants.IMAGENET)
        changed = [
            f"`{field}` {scalar(value)}" for field, value in flatten(made).items() if value != flatten(Config())[field]
        ]
        lines += [f"## {name}", "", inspect.cleandoc(make.__doc__ or ""), ""]
        lines += [
            f"On ImageNet {plan.steps:,} steps, {plan.warmup_steps:,} of warm-up, peak learning rate {plan.peak_lr:g}.",
            "",
        ]
        lines += [f"Beside the defaults: {', '.join(changed)}." if changed else "The defaults themselves.", ""]
    return "\n".join(lines)


def python_page() -> str:
    """`byol.NAME`, then the paper's shelf, module by module."""
    lines = head(
        "Python", "What `import byol` gives, and the functions of the paper's shelf; all from the code's own words."
    )
    lines += ["## byol", ""]
    for name in byol.__all__:
        thing = getattr(byol, name)
        if not isinstance(thing, ModuleType) or callable(thing):  # byol.report is both
            lines += _described(f"byol.{name}", thing)
    from byol.pretraining import Run

    lines += _described("byol.pretraining.Run", Run, members=True)
    for name in SHELF:
        module = importlib.import_module(f"byol.{name}")
        lines += [f"## byol.{name}", "", inspect.cleandoc(module.__doc__ or ""), ""]
        for thing_name, thing in sorted(vars(module).items()):
            own = getattr(thing, "__module__", "") == module.__name__ and not thing_name.startswith("_")
            if own and (inspect.isfunction(thing) or inspect.isclass(thing)):
                lines += _described(f"byol.{name}.{thing_name}", thing)
    return "\n".join(lines)


def _described(name: str, thing: Any, members: bool = False) -> list[str]:
    try:
        signature = str(inspect.signature(thing)).replace("'", "")
    except (TypeError, ValueError):
        signature = ""
    kind = "class " if inspect.isclass(thing) else ""
    lines = [f"### {name}", "", "```text", f"{kind}{name.rpartition('.')[2]}{signature}", "```", ""]
    lines += [
        inspect.cleandoc(thing.__doc__ or "")
        if not (thing.__doc__ or "").startswith(f"{name.rpartition('.')[2]}(")
        else "",
        "",
    ]
    if members:
        found = {
            n: v
            for n, v in vars(thing).items()
            if not n.startswith("_") and (inspect.isfunction(v) or isinstance(v, property))
        }
        rows = [
            (f"`{n}`" if isinstance(v, property) else f"`{n}()`", (v.__doc__ or "").split("\n")[0])
            for n, v in found.items()
        ]
        lines += table(("member", "what"), rows)
    return lines


def paper_pages() -> dict[str, str]:
    """A page a table of the paper, ours beside it where we have run it."""
    pages, rows = {}, []
    for name, each in TABLES.items():
        results = sorted((RESULTS / "tables").glob(f"{name}-*.json"))
        found = [record for record in map(read_table, results) if record.table == name]
        pages[f"paper/{name}.md"] = "\n".join(_paper_page(each, [markdown(record) for record in found]))
        ran = ", ".join(f"`{record.scale}` scale" for record in found) or "not run here"
        rows.append((f"[{each.title}]({name}.md)", cited(each.source), ran))
    lines = head(
        "The paper's tables",
        f"{len(TABLES)} tables and figures as data; each page has the published figures, and "
        "ours beside them where they were run.",
    )
    return pages | {"paper/index.md": "\n".join([*lines, *table(("table", "in the paper", "ours"), rows)])}


def _paper_page(each: Table, ours: list[str]) -> list[str]:
    lines = head(each.title, f"{cited(each.source)} of Grill et al., 2020.")
    small = next((name for name in ("cpu", "night") if each.at(SCALES[name])), "")
    lines += ["```text", "# as in the paper", f"byol table {each.name} --data.root /datasets"]
    lines += ["# small, on a laptop", f"byol table {each.name} --scale {small} --data ./cifar10"] if small else []
    lines += ["```", ""]
    if ours:
        lines += ["## Ours beside the paper's", "", *ours]
    lines += ["## As published", ""]
    titles = [column.title for column in each.columns]
    lines += table(
        ("row", *titles),
        [(row.label, *(figure.replace("±", " ± ") for figure in row.printed.split())) for row in each.rows],
    )
    changed = [
        (row.label, ", ".join(f"`{field}` {_words(value)}" for field, value in row.overrides.items()))
        for row in each.rows
        if row.overrides
    ]
    if changed:
        lines += [
            "## What makes a row",
            "",
            f"Beside the preset `{each.base}`:",
            "",
            *table(("row", "fields"), changed),
        ]
    return [*lines, *(f"- {note}" for note in each.notes), "", "[All tables](index.md)"]


def moved(text: str, name: str) -> str:
    """A page of the repository as a page of the site: links to what lies outside docs/ lead to its copy."""
    prefix = r"\]\((?:docs/)" if name == "README.md" else r"\]\(docs/"
    text = re.sub(prefix, "](", text)
    text = re.sub(r"\]\((?:\.\./)?CONTRIBUTING\.md", "](contributing.md", text)
    text = re.sub(r"\]\((?:\.\./)?README\.md", "](index.md", text)
    text = re.sub(r"\]\((?:\.\./)?(notebooks/)", r"](\1", text)
    return text.replace("](../results/", "](results/")


def write_pages(place: Path) -> dict[str, str]:
    """All pages as Markdown, and the files that they show; returns the pages by name."""
    pages = {path.name: moved(path.read_text("utf-8"), path.name) for path in sorted(DOCS.glob("*.md"))}
    pages["index.md"] = moved((ROOT / "README.md").read_text("utf-8"), "README.md")
    pages["contributing.md"] = moved((ROOT / "CONTRIBUTING.md").read_text("utf-8"), "CONTRIBUTING.md")
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text("utf-8")
    pages |= commands() | paper_pages()
    pages |= {
        "reference/config.md": fields_page(),
        "reference/presets.md": presets_page(),
        "reference/python.md": python_page(),
    }
    for name, text in pages.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text.replace(" ± ", "\u00a0±\u00a0"), encoding="utf-8")
    for picture in (
        *DOCS.glob("*.png"),
        *DOCS.glob("*.svg"),
        DOCS / "site.css",
        DOCS / WORKER,
        *RESULTS.glob("*.png"),
        *(ROOT / "notebooks").glob("*.ipynb"),
    ):
        target = place / ("" if picture.parent == DOCS else picture.parent.name) / picture.name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(picture, target)
    return pages


def title_of(page: str) -> str:
    found = re.search(r"^# (.*)$", page, re.MULTILINE)
    return found[1] if found else "?"


def settings(pages: Mapping[str, str], source: Path, target: Path) -> dict[str, Any]:
    """mkdocs.yml: Material without a font, a script or a style from elsewhere."""
    known = {*START, *HOW, *WHY, *MEASURED}
    others = sorted(p for p in pages if "/" not in p and p[:-3] not in known | {"index", "contributing", "changelog"})

    def named(names: Iterable[str]) -> list[dict[str, str]]:
        return [{title_of(pages[f"{name}.md"]): f"{name}.md"} for name in names if f"{name}.md" in pages]

    verbs = sorted(p for p in pages if p.startswith("reference/commands/"))
    papers = sorted(p for p in pages if p.startswith("paper/") and p != "paper/index.md")
    return {
        "site_name": "byol",
        "docs_dir": str(source),
        "site_dir": str(target),
        "theme": {
            "name": "material",
            "font": False,
            "icon": {"logo": "material/image-multiple-outline"},
            "features": [
                "navigation.tabs",
                "navigation.indexes",
                "navigation.top",
                "content.code.copy",
                "search.highlight",
                "toc.follow",
            ],
            "palette": [
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "primary": "white",
                    "accent": "indigo",
                    "toggle": {"icon": "material/weather-night", "name": "Dark"},
                },
                {
                    "media": "(prefers-color-scheme: dark)",
                    "scheme": "slate",
                    "primary": "black",
                    "accent": "indigo",
                    "toggle": {"icon": "material/weather-sunny", "name": "Light"},
                },
            ],
        },
        "extra_css": ["site.css"],
        "extra": {"generator": False, "polyfills": [WORKER]},
        "plugins": ["search", "offline"],
        "markdown_extensions": [
            "tables",
            "attr_list",
            "admonition",
            "sane_lists",
            {"toc": {"permalink": True, "toc_depth": 3}},
            "pymdownx.superfences",
            "pymdownx.highlight",
        ],
        "validation": {"links": {"not_found": "warn", "anchors": "warn"}, "nav": {"omitted_files": "warn"}},
        "nav": [
            {"Start": [{"byol": "index.md"}, *named(START), *({title_of(pages[p]): p} for p in others)]},
            {"How to": named(HOW)},
            {
                "Reference": [
                    {"Commands": ["reference/commands.md", *({title_of(pages[p]): p} for p in verbs)]},
                    "reference/config.md",
                    "reference/presets.md",
                    "reference/python.md",
                ]
            },
            {
                "Results": [
                    *named(MEASURED),
                    {"The paper, table by table": ["paper/index.md", *({title_of(pages[p]): p} for p in papers)]},
                ]
            },
            {"Inside": [*named(WHY), {"Contributing": "contributing.md"}, {"Changelog": "changelog.md"}]},
        ],
    }


def build(place: Path) -> Path:
    """The site in `place`/site; raises `SystemExit` where a link leads nowhere."""
    from mkdocs.commands.build import build as render
    from mkdocs.config import load_config

    logging.getLogger("mkdocs").addHandler(logging.StreamHandler())
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    source, target, file = place / "pages", place / "site", place / "mkdocs.yml"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    pages = write_pages(source)
    file.write_text(yaml.safe_dump(settings(pages, source, target), allow_unicode=True), encoding="utf-8")
    render(load_config(str(file), strict=True))
    return target


if __name__ == "__main__":
    built = build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve())
    print(f"{built / 'index.html'}: {sum(1 for _ in built.rglob('*.html'))} pages")
