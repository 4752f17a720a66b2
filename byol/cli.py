"""The command line: verbs to one function each; torch is imported only behind a verb that needs it."""

from __future__ import annotations

import sys
from dataclasses import field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, UnknownOptionError

import byol
from byol import interrupt
from byol.config import Config, apply, declared, flatten, optional
from byol.errors import ByolError, Interrupted, UsageError, nearest
from byol.evals.spec import Specs, chosen_protocols

app = App(
    name="byol", help="Bootstrap Your Own Latent: a good encoder from unlabelled images.", version=byol.__version__
)


def _flags(kind: type) -> Any:
    """The config's dataclasses once more with every field left out by default, to see which flags were given."""
    members = []
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            nested = _flags(hint)  # type: ignore[arg-type]
            members.append((name, optional(nested), field(default=None)))
        else:
            help = next(f for f in fields(kind) if f.name == name).metadata["help"]
            several = Ellipsis in get_args(hint)  # --linear.lrs 0.1 0.2
            flag = Parameter(help=help, consume_multiple=True, negative=()) if several else Parameter(help=help)
            members.append((name, Annotated[optional(hint), flag], field(default=None)))
    made = make_dataclass(kind.__name__ + "Flags", members, frozen=True)
    made.__module__ = __name__  # cyclopts takes a class of the module `types` for a built-in one
    return made


ConfigFlags = _flags(Config)
SpecFlags = _flags(Specs)


def _given(flags: Any, prefix: str = "") -> dict[str, Any]:
    """`{"optim.lr": 0.3}` for the flags that were given."""
    given: dict[str, Any] = {}
    for item in fields(flags):
        value = getattr(flags, item.name)
        if is_dataclass(value):
            given |= _given(value, f"{prefix}{item.name}.")
        elif value is not None:
            given[prefix + item.name] = value
    return given


@app.command
def pretrain(
    data: str = "scenes",
    *,
    preset: str = "auto",
    config: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
) -> None:
    """Pretrain an encoder on images; the same command again continues a run that was stopped.

    Parameters
    ----------
    data
        A folder of images, torchvision:NAME, or scenes (rendered, needs no files).
    preset
        auto, paper-1000, paper-300, paper-100, paper-40, paper-512, simclr, imagenette, cifar10 or cifar10-cpu.
    config
        A YAML file of config fields; flags win over it, it wins over the preset.
    out
        The run directory; runs/DATA-PRESET when left out.
    overwrite
        Start again when the directory holds another run.
    """
    overrides = _given(given) if given else {}
    _check(data, preset, config, overrides)
    from byol.pretraining import pretrain as run

    run(data, out, preset, overrides, config_file=config, overwrite=overwrite)


def _check(data: str, preset: str, config: Path | None, overrides: dict[str, Any]) -> None:
    """What can be wrong in the command itself is said before torch is loaded."""
    from byol.config import read_yaml
    from byol.presets import compose

    compose(preset, overrides, read_yaml(config) if config else {}, str(config or ""))
    known = data == "scenes" or data.startswith(("scenes:", "torchvision:"))
    if not known and not Path(data).is_dir():
        raise UsageError(f"There is no folder {data}. Give a folder of images, torchvision:NAME or scenes.")


@app.command
def embed(
    run: Path, data: str, *, out: Annotated[Path, Parameter(alias="-o")] = Path("features.npz"), split: str = "train"
) -> None:
    """Write the representations of images as a .npz file with features, names and labels.

    Parameters
    ----------
    run
        A run directory or an encoder.safetensors file.
    data
        A folder of images, torchvision:NAME, or scenes.
    out
        The file to write.
    split
        Which part of a data set that comes in parts.
    """
    from byol.evals.features import write_features

    write_features(run, data, out, split)


@app.command
def evaluate(
    run: str,
    *,
    on: str,
    protocol: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = ["all"],  # noqa: B006 (cyclopts copies it)
    budget: str = "",
    seeds: int = 1,
    out: Path | None = None,
    cache: Path | None = None,
    root: str = "datasets",
    resolution: int = 0,
    device: str = "auto",
    precision: str = "auto",
    given: Annotated[SpecFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
) -> None:
    """Score an encoder by the paper's protocols: choices on validation images, one look at the test images.

    Parameters
    ----------
    run
        A run directory or an encoder.safetensors file; random:RUN is the same network before training.
    on
        A folder of class folders (with or without train, val and test), scenes, torchvision:NAME, or one of
        imagenet, places365, food101, cifar10, cifar100, birdsnap, sun397, cars, aircraft, voc2007, dtd, pets,
        caltech101, flowers102.
    protocol
        knn, transfer-linear, linear, semi-supervised, finetune, supervised, or all.
    budget
        Time for everything together, such as 90s, 20m or 2h; what is cut short to fit is said.
    seeds
        Repeat with this many seeds.
    out
        Where result.json files go; RUN/evaluations/DATA when left out.
    cache
        Where features are kept; the user's cache directory when left out.
    root
        Where the data sets with names are.
    resolution
        Side of the encoder's input in pixels; 0: as in pretraining.
    device
        auto, cpu, cuda or mps.
    precision
        auto, bf16, float32 or float64; features are never kept in less than float32.
    """
    seconds = _seconds(budget) if budget else float("inf")
    specs = apply(Specs(), _given(given) if given else {}, "flags")
    settings: dict[str, Any] = {"data.root": root, "run.device": device, "run.precision": precision}
    if resolution:
        settings["data.resolution"] = resolution
    apply(Config(), settings, "flags")
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, not {seeds}.")
    protocols = chosen_protocols([name for item in protocol for name in item.split(",")])
    if not Path(run.removeprefix("random:")).exists():
        raise UsageError(f"There is no encoder at {run}: no such run or file.")
    from byol.evaluation import evaluate as score

    score(
        run,
        on,
        protocols,
        specs=specs,
        seeds=range(seeds),
        seconds=seconds,
        out=out,
        cache=cache,
        settings=settings,
    )


def _seconds(text: str) -> float:
    """`90s`, `20m` or `1.5h` in seconds."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        seconds = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--budget should be a time such as 90s, 20m or 2h, not '{text}'.")
    return seconds


@app.command
def table(
    name: str = "",
    *,
    listed: Annotated[bool, Parameter(name="--list", negative=())] = False,
    scale: Literal["paper", "cpu"] = "paper",
    seeds: int = 0,
    data: str = "",
    out: Path = Path("tables"),
    jobs: str = "",
    rows: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = [],  # noqa: B006 (cyclopts copies it)
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,  # type: ignore[valid-type]
) -> None:
    """Run a table of the paper beside its published figures; the same command again computes only what is missing.

    Config fields that are given hold for every row that does not set them itself.

    Parameters
    ----------
    name
        One of those that --list shows.
    listed
        Show all tables and end.
    scale
        paper: ImageNet as in the paper, below --data.root. cpu: minutes a cell on the images of --data.
    seeds
        Repeat every row with this many seeds; the paper's number when left out.
    data
        A folder of class folders with a test part, torchvision:NAME or scenes, instead of the paper's data.
    out
        Where runs, cells and the table go.
    jobs
        local:N for N processes here, slurm:PARTITION[:GPUS] for a cluster; this process when left out.
    rows
        Only rows whose label holds one of these texts.
    """
    from byol.tables import paper

    if listed or not name:
        print(paper.listing())
        return
    asked = paper.Request(name, scale, seeds, data, out, tuple(rows), _given(given) if given else {})
    plan = paper.plan(asked)
    from byol.tables.run import run

    run(plan, jobs)


@app.command
def demo(*, out: Path = Path("runs/demo")) -> None:
    """Pretrain on rendered scenes in a few minutes and compare with random and supervised encoders.

    Parameters
    ----------
    out
        Where the run, the table and the pictures go.
    """
    from byol.demo import demo as run

    run(out)


@app.command
def config(*, preset: str = "paper-1000") -> None:
    """Print every config field of a preset as YAML, ready for --config.

    Parameters
    ----------
    preset
        Any preset but auto, which needs images to look at.
    """
    import yaml

    from byol.presets import compose

    nested: dict[str, Any] = {}
    for name, value in flatten(compose(preset, {}, {})[0]).items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = list(value) if isinstance(value, tuple) else value
    print(yaml.safe_dump(nested, sort_keys=False), end="")


def _explain(error: CycloptsError) -> str:
    """The sentence of a wrong flag, with the nearest ones that exist."""
    if not isinstance(error, UnknownOptionError):
        return " ".join(str(error).split())
    given = str((error.token.keyword or error.token.value) if error.token else "").split("=")[0]
    verbs = {"--preset", "--config", "--out", "--overwrite", "--split", "--on", "--protocol", "--budget", "--seeds"}
    verbs |= {"--list", "--scale", "--data", "--jobs", "--rows"}
    fields = {f"--{name}" for kind in (Config, Specs) for name, _, _ in declared(kind)}
    return f"There is no flag {given}. {nearest(given, verbs | fields)}"


def _unexpected(error: Exception) -> str:
    """What is not the user's mistake, still in a sentence; running out of memory has a remedy."""
    text = (str(error).strip() or "no message").splitlines()[0][:300]
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return f"Out of memory ({text}). Raise optim.accumulate, or lower optim.batch or data.resolution."
    return f"This should not happen: {type(error).__name__}: {text} Add --debug for the traceback."


def main() -> None:
    """Runs the verb; an error of the user's is one sentence and its exit code, a traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    code = 0
    try:
        with interrupt.handled():
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        print(f"byol: {_explain(error)}", file=sys.stderr)
        code = 2
    except ByolError as error:
        if debug and not isinstance(error, Interrupted):
            raise
        print(f"byol: {error}", file=sys.stderr)
        code = error.exit_code
    except Exception as error:
        if debug:
            raise
        print(f"byol: {_unexpected(error)}", file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
