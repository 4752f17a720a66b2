"""The command's app, and its flags: every field of the config and of the evaluations' specs is one."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter, Token

import byol
from byol.config import Config, apply, declared
from byol.evals.spec import Specs


def _default(value: Any) -> str | None:
    """A default as help shows it; that something is off or empty is told by its own text."""
    if value is None or value is False or value in ("", [], ()):
        return None
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


app = App(
    name="byol",
    help="Bootstrap Your Own Latent: a good encoder from unlabelled images. Every verb takes --quiet, which shows no "
    "progress; --json, which prints one JSON object instead of lines; --plugin FILE.py, with objectives, encoders and "
    "view operations of your own (docs/extend.md); and --debug, which shows tracebacks.",
    version=byol.__version__,
    default_parameter=Parameter(show_default=_default),
)

TRAIN, USE, LOOK, HELP = (Group(name, sort_key=k) for k, name in enumerate(("Train", "Use", "Look", "Help")))
for flag in ("--help", "--version"):
    app[flag].group = HELP


# Flags that say where data and device are, in every verb under both names.
# Fields that say where data sets are and what to compute with; verbs that take no config have these flags too.
SHORT = {
    "data.root": "--root",
    "data.resolution": "--resolution",
    "data.workers": "--workers",
    "run.device": "--device",
    "run.precision": "--precision",
}
# Of the config's flags alone.
ALIASES = {**SHORT, "run.budget": "--budget", "network.init": "--init", "network.target_init": "--target-init"}


# Of the many fields these are in every --help; --help-all shows all, and a shell completes all.
COMMON = (
    *("data.resolution", "data.workers", "data.exclude", "data.root", "network.encoder", "network.width"),
    *("optim.epochs", "optim.batch", "optim.accumulate", "optim.lr", "network.init", "run.budget", "run.device"),
    *("run.threads", "run.seed"),
)
EVERYTHING = "--help-all" in sys.argv


def optional(kind: Any) -> Any:
    """`kind | None`, for the flags that may be left out."""
    return Union[kind, types.NoneType]  # noqa: UP007 (built at run time)


def _as_typed(_: Any, tokens: Sequence[Token]) -> Any:
    """The config's own conversion is stricter: cyclopts would round 2.5 to a whole number."""
    return tokens[0].value


def flags_of(kind: type, section: str = "") -> Any:
    """The config's dataclasses once more with every field left out by default, to see which flags were given."""
    members = []
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            nested = flags_of(hint, f"{section}.{name}".strip("."))  # type: ignore[arg-type]
            members.append((name, optional(nested), field(default=None)))
        else:
            help = next(f for f in fields(kind) if f.name == name).metadata["help"]
            several = get_origin(hint) is tuple  # --linear.lrs 0.1 0.2
            group = Group(f"Fields of {section.replace('_', '-')}", sort_key=1)
            flag = Parameter(
                alias=ALIASES.get(f"{section}.{name}"),
                help=help,
                group=group,
                consume_multiple=Ellipsis in get_args(hint),
                negative=() if several else None,
                show=EVERYTHING or f"{section}.{name}" in COMMON,
                converter=_as_typed if hint is int else None,
            )
            members.append((name, Annotated[optional(hint), flag], field(default=None)))
    made = make_dataclass(kind.__name__ + "Flags", members, repr=False, eq=False)
    made.__module__ = __name__  # cyclopts takes a class of the module `types` for a built-in one
    return made


ConfigFlags = flags_of(Config)
SpecFlags = flags_of(Specs)


def place_flags(*names: str) -> Any:
    """A dataclass of these config fields, each a flag by its name in the config (--run.device) and a short one."""
    members = []
    for name, hint, metadata in declared():
        if name in names:
            converter = _as_typed if hint is int else None
            flag = Parameter(name=(f"--{name}", SHORT[name]), help=metadata["help"], converter=converter)
            members.append((name.replace(".", "_"), Annotated[optional(hint), flag], field(default=None)))
    made = make_dataclass("PlaceFlags", members, repr=False, eq=False)
    made.__module__ = __name__
    return made


PlaceFlags = place_flags(*SHORT)


def place_settings(flags: Any) -> dict[str, Any]:
    """`{"run.device": "cpu"}` for the flags of `PlaceFlags` that were given, checked as a config is."""
    settings = {name.replace("_", ".", 1): value for name, value in given_values(flags).items()} if flags else {}
    apply(Config(), settings, "flags")
    return settings


def given_values(flags: Any, prefix: str = "") -> dict[str, Any]:
    """`{"optim.lr": 0.3}` for the flags that were given."""
    given: dict[str, Any] = {}
    for item in fields(flags):
        value = getattr(flags, item.name)
        if is_dataclass(value):
            given |= given_values(value, f"{prefix}{item.name}.")
        elif value is not None:
            given[prefix + item.name] = value
    return given
