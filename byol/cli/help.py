"""The verbs that explain: presets, config, explain, paper, completion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from cyclopts import Parameter

from byol.cli.app import HELP, app
from byol.config import Config, declared, flatten, resolve
from byol.errors import UsageError, nearest
from byol.evals.spec import Specs
from byol.presets import KINDS, PRESETS, chooses, compose
from byol.run import output
from byol.run.progress import keeps, send, tell
from byol.tables.constants import IMAGENET

WIDTH = 80


@app.command(group=HELP)
def presets() -> object:
    """List the presets with their figures and where they come from."""
    tell(f"{'preset':<13}{'encoder':<27}{'width':>6}{'px':>5}{'batch':>7}{'epochs':>8}")
    tell(f"{'auto':<13}chosen for the images and the machine, with the reasons in the plan")
    for name, about in KINDS.items():
        tell(f"{name:<13}auto, with views for such images")
        for line in _wrapped(about, WIDTH - 4):
            tell(f"    {line}")
    for name, make in PRESETS.items():
        c = make()
        width = f"{c.network.width:g}" if c.network.encoder.startswith("resnet") else ""
        shape = f"{c.network.encoder:<27}{width:>6}{c.data.resolution:>5}"
        tell(f"{name:<13}{shape}{c.optim.batch:>7}{c.optim.epochs:>8g}")
        for line in _wrapped((make.__doc__ or "").strip().splitlines()[0], WIDTH - 4):
            tell(f"    {line}")
    return {name: flatten(make()) for name, make in PRESETS.items()}


@app.command(group=HELP)
def config(preset: str = "paper-1000", *, images: int = IMAGENET) -> object:
    """Print every field of a preset as YAML, ready for --config.

    Parameters
    ----------
    preset
        Any preset but auto and its kinds of images, which need images to look at.
    images
        For how many images steps and rates are worked out; ImageNet's when left out.
    """
    if chooses(preset):
        raise UsageError(
            f"{preset} chooses when it sees the images: `byol doctor DATA` shows what, or name another preset."
        )
    made = compose(preset, {}, {})[0]
    plan = resolve(made, images)
    lines = _wrapped((PRESETS[preset].__doc__ or "").strip().splitlines()[0], WIDTH - 2)
    derived = f"{images:,} images: {plan.steps:,} steps, {plan.warmup_steps:,} of warm-up, peak learning rate"
    tell("\n".join(f"# {line}" for line in [f"preset {preset}", *lines, f"{derived} {plan.peak_lr:g}"]))
    helps = {name: metadata["help"] for name, _, metadata in declared()}
    tell("\n".join(_yaml(made, helps)))
    return flatten(made)


def _yaml(node: Any, helps: Mapping[str, str], prefix: str = "") -> list[str]:
    """Nested fields, each with its help beside it, or above it where the line would be too long."""
    lines, indent = [], "  " * prefix.count(".")
    for item in fields(node):
        value, name = getattr(node, item.name), prefix + item.name
        if is_dataclass(value):
            lines += [f"{indent}{item.name}:", *_yaml(value, helps, f"{name}.")]
            continue
        line, comment = f"{indent}{item.name}: {scalar(value)}", f"# {helps[name]}"
        if len(line) + 2 + len(comment) <= WIDTH:
            lines.append(f"{line}  {comment}")
        else:
            lines += [f"{indent}# {part}" for part in _wrapped(helps[name], WIDTH - len(indent) - 2)]
            lines.append(line)
    return lines


def scalar(value: Any) -> str:
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True, width=WIDTH * 2).splitlines()[0]


@app.command(group=HELP)
def explain(field: str) -> object:
    """Say what a config field is, and what it is in each preset.

    Parameters
    ----------
    field
        A field such as optim.tau, its last part alone, or a section such as optim.
    """
    known = {name: (kind, metadata) for source in (Config, Specs) for name, kind, metadata in declared(source)}
    wanted = field.lstrip("-").replace("-", "_") if field.startswith("--") else field
    found = [name for name in known if name == wanted or name.startswith(f"{wanted}.") or name.endswith(f".{wanted}")]
    if not found:
        sections = {name.rpartition(".")[0] for name in known}
        raise UsageError(f"There is no field '{field}'. {nearest(field, [*known, *sections])}")
    tell("\n\n".join(_explained(name, *known[name]) for name in found))
    defaults = flatten(Config()) | flatten(Specs())
    return {name: {"what": known[name][1]["help"], "default": defaults[name]} for name in found}


def _explained(name: str, kind: Any, metadata: Mapping[str, Any]) -> str:
    defaults = flatten(Config()) | flatten(Specs())
    lines = [f"{name}: {kind_of(kind, metadata)}", *(f"  {line}" for line in _wrapped(metadata["help"], WIDTH - 2))]
    lines.append(f"  default {scalar(defaults[name])}; flag --{name.replace('_', '-')}")
    if name in flatten(Config()):
        if metadata["on_resume"]:
            lines.append("  may change when a run is continued")
        values = {preset: flatten(make())[name] for preset, make in PRESETS.items()}
        other = [f"{preset} {scalar(value)}" for preset, value in values.items() if value != defaults[name]]
        lines += [f"  {line}" for line in _wrapped("in presets: " + ", ".join(other), WIDTH - 2) if other]
        from byol.tables.constants import constants

        stated = next((c for c in constants() if c.field == name), None)
        if stated:
            lines.append(f"  the paper: {scalar(stated.value)} ({stated.where})")
    return "\n".join(lines)


def kind_of(kind: Any, metadata: Mapping[str, Any]) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        return "numbers" if inner[-1] is Ellipsis else f"{len(inner)} numbers"
    word = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    low, high = metadata["low"], metadata["high"]
    if kind in (int, float) and not math.isinf(low):
        word += f", at least {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")
    return word


def _wrapped(text: str, width: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, width, break_on_hyphens=False)


@app.command(group=HELP)
def paper(
    *, check: Path | None = None, like: str = "", out: Annotated[Path | None, Parameter(alias="-o")] = None
) -> object:
    """List the paper's constants, or check a run against them.

    Parameters
    ----------
    check
        A run directory: each constant is equal, or departs and why.
    like
        paper-1000, paper-300 or paper-512; the run's own recipe, or paper-1000, when left out.
    out
        Also write the comparison to this .json file.
    """
    from byol.run.files import write_json
    from byol.tables import constants

    if check is None:
        tell(constants.listing(like or "paper-1000"))
        return [{"field": c.field, "value": c.value, "where": c.where} for c in constants.constants()]
    if not (check / "run.json").is_file():
        raise UsageError(f"{check} is no run directory: it has no run.json.")
    if out:
        output.check_file(out)
    from byol.run.record import read_run

    lines = constants.check(read_run(check), like)
    if out:
        write_json(out, [line._asdict() for line in lines])
    tell(constants.text(lines))
    return lines


@app.command(group=HELP)
def completion(shell: Literal["bash", "zsh", "fish"]) -> object:
    """Print a script that completes verbs and flags in a shell.

    For bash, `eval "$(byol completion bash)"` in ~/.bashrc; for zsh a file named _byol in a folder of $fpath; for fish
    ~/.config/fish/completions/byol.fish.

    Parameters
    ----------
    shell
        The shell that the script is for.
    """
    script = app.generate_completion(shell=shell)
    if not keeps():  # a shell reads every character as it is
        send("stdout", script)
    return {"script": script}
