"""The command line: verbs to one function each; torch is imported only behind a verb that needs it."""

from __future__ import annotations

import sys
from dataclasses import field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, UnknownOptionError

import byol
from byol import interrupt
from byol.config import Config, declared, flatten, optional
from byol.errors import ByolError, Interrupted, nearest

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
            members.append((name, Annotated[optional(hint), Parameter(help=help)], field(default=None)))
    made = make_dataclass(kind.__name__ + "Flags", members, frozen=True)
    made.__module__ = __name__  # cyclopts takes a class of the module `types` for a built-in one
    return made


ConfigFlags = _flags(Config)


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
    from byol.errors import UsageError
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
    given = str(error.token.value if error.token else "").split("=")[0]
    verbs = {"--preset", "--config", "--out", "--overwrite", "--split"}
    return f"There is no flag {given}. {nearest(given, verbs | {f'--{name}' for name, _, _ in declared()})}"


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
