"""The verbs that use an encoder: embed, evaluate."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from byol.cli.app import TRAIN, USE, PlaceFlags, SpecFlags, app, given_values, place_settings
from byol.config import apply
from byol.errors import UsageError
from byol.evals.spec import Specs, chosen_protocols
from byol.presets import seconds_of
from byol.run import output


@app.command(group=USE)
def embed(
    run: Path,
    data: str,
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("features.npz"),
    split: str = "train",
    map: Annotated[bool, Parameter(negative=())] = False,
    sheet: Path | None = None,
    place: Annotated[PlaceFlags | None, Parameter(name="*")] = None,
) -> object:
    """Write the representations of images to a .npz file.

    It holds features, names and, when there are any, labels and classes. With --map it is a .npy file of the last
    feature map of each image, with the names in a .json file beside it.

    Parameters
    ----------
    run
        A run directory or an encoder.safetensors file.
    data
        A folder of images or shards, a pattern or URL of shards, torchvision:NAME, hf:NAME-or-PATH, or scenes.
    out
        The file to write.
    split
        Which part of a data set that comes in parts.
    map
        Write feature maps, float16 (images, features, height, width), instead of their means.
    sheet
        With --map, also draw the first three principal components of some images' maps into this .png file.
    """
    settings = place_settings(place)
    if sheet and not map:
        raise UsageError("--sheet draws feature maps: add --map.")
    out = Path("maps.npy") if map and out == Path("features.npz") else out
    for file in filter(None, (out, sheet)):
        output.check_file(file)
    if map:
        from byol.evals.maps import write_maps

        write_maps(run, data, out, split, settings, sheet)
        return {"out": out}
    from byol.evals.features import write_features

    write_features(run, data, out, split, settings)
    return {"out": out}


@app.command(group=TRAIN)
def evaluate(
    run: str,
    *,
    on: str,
    protocol: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = ["all"],  # noqa: B006 (cyclopts copies it)
    budget: str = "",
    seeds: int = 1,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    cache: Path | None = None,
    untrained: bool = True,
    place: Annotated[PlaceFlags | None, Parameter(name="*")] = None,
    given: Annotated[SpecFlags | None, Parameter(name="*")] = None,
) -> object:
    """Score an encoder by the paper's protocols.

    Choices are made on validation images; the test images are looked at once.

    Parameters
    ----------
    run
        A run directory or an encoder.safetensors file; random:RUN is the same network before training.
    on
        A folder of class folders (with or without train, val and test) or shards, a pattern or URL of shards,
        hf:NAME-or-PATH, scenes, torchvision:NAME, or one of
        imagenet, places365, food101, cifar10, cifar100, birdsnap, sun397, cars, aircraft, voc2007, dtd, pets,
        caltech101, flowers102. For segmentation, detection and depth: images with their masks, boxes or depth maps.
    protocol
        knn, transfer-linear, linear, semi-supervised, finetune, supervised, or all of these; or segmentation,
        detection, depth.
    budget
        Time for everything together, such as 90s, 20m or 2h; what is cut short to fit is said.
    seeds
        Repeat with this many seeds.
    out
        Where result.json files go; RUN/evaluations/DATA when left out.
    cache
        Where features are kept; the user's cache directory when left out.
    untrained
        Also score the same network before training, once for a data set, and print both side by side.
    """
    seconds = seconds_of(budget, "--budget") if budget else float("inf")
    specs = apply(Specs(), given_values(given) if given else {}, "flags")
    settings = place_settings(place)
    protocols = chosen_protocols([name for item in protocol for name in item.split(",")])
    _check(run, seeds, out, cache)
    from byol.evals.evaluation import evaluate as score

    asked = partial(score, specs=specs, seeds=range(seeds), seconds=seconds, compare=untrained)
    return asked(run, on, protocols, out=out, cache=cache, settings=settings)


def check_encoder(path: str) -> None:
    """Refuses a path at which there is neither a run nor an encoder."""
    if not Path(path.removeprefix("random:")).exists():
        raise UsageError(f"There is no encoder at {path}: no such run or file.")


def _check(run: str, seeds: int, *folders: Path | None) -> None:
    """What an evaluation needs is there, and what it writes can be written."""
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, not {seeds}.")
    check_encoder(run)
    for folder in filter(None, folders):
        output.check_folder(folder)
