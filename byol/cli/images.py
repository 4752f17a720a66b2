"""The verbs that look at images: doctor and views; and, with an encoder, search, dedupe, outliers and pick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from byol.cli.app import LOOK, USE, ConfigFlags, app, given_values
from byol.config_file import read_yaml
from byol.presets import compose
from byol.run import output

if TYPE_CHECKING:
    from byol.explore.search import Answer

Kind = Literal["unreadable", "tiny", "duplicates", "near-duplicates"]


@app.command(group=LOOK)
def doctor(
    data: str,
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("doctor"),
    leave_out: Annotated[list[Kind], Parameter(consume_multiple=True, negative=())] = [  # noqa: B006 (cyclopts copies it)
        "unreadable",
        "tiny",
        "duplicates",
    ],
    speed: bool = True,
    preset: str = "auto",
    config: Path | None = None,
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> object:
    """Check all images before training, and how fast they load.

    Writes doctor.json and bad-files.txt, which `byol pretrain --data.exclude` takes.

    Parameters
    ----------
    data
        A folder of images, torchvision:NAME, or scenes.
    out
        The folder for doctor.json and bad-files.txt.
    leave_out
        Which images the list names: unreadable, tiny, duplicates, near-duplicates; one of each group stays.
    speed
        Also measure the speed of loading and training, for some seconds.
    preset
        The recipe for which speed is measured and views are judged.
    config
        A YAML file of config fields; flags win over it, it wins over the preset.
    """
    values = given_values(given) if given else {}
    compose(preset, values, read_yaml(config) if config else {}, str(config or ""))
    output.check_folder(out)
    from byol.explore.doctor import Request
    from byol.explore.doctor import doctor as run

    return run(Request(data, out, preset, values, config, tuple(leave_out), speed))


@app.command(group=LOOK)
def views(
    data: str,
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("views.png"),
    images: int = 8,
    pairs: int = 4,
    preset: str = "auto",
    config: Path | None = None,
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> object:
    """Draw a sheet of the views T and T' of some images.

    Parameters
    ----------
    data
        A folder of images, torchvision:NAME, or scenes.
    out
        The PNG file to write.
    images
        How many images, one a row.
    pairs
        How many draws of T and T' for each.
    preset
        The recipe whose views are drawn.
    config
        A YAML file of config fields; flags win over it, it wins over the preset.
    """
    in_file = read_yaml(config) if config else {}
    values = {**in_file, **(given_values(given) if given else {})}
    compose(preset, values, {}, str(config or ""))
    output.check_file(out)
    from byol.explore.sheets import sheet

    sheet(data, out, preset, values, images, pairs)
    return {"out": out}


@app.command(group=USE)
def search(
    image: Path,
    run: str,
    data: str = "",
    *,
    count: Annotated[int, Parameter(alias="-k")] = 10,
    out: Annotated[Path, Parameter(alias="-o")] = Path("search.csv"),
    sheet: Path | None = None,
    approximate: bool = False,
) -> object:
    """Find the images most similar to a given image.

    Parameters
    ----------
    image
        An image file, or the name of an image of the set.
    run
        A run directory or a file of weights.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file of `byol embed`; the run's own when left out.
    count
        How many images to find.
    out
        A .csv or .json file of ranks, names and cosines.
    sheet
        Also draw the images that were found into this .png file.
    approximate
        Use faiss's graph index, for millions of images (extra: faiss).
    """
    _check(out, sheet)
    from byol.explore import search as answers

    answers.check_out(out, sheet)
    return _written(answers.search(image, run, data, count, approximate), out, sheet)


@app.command(group=USE)
def dedupe(
    run: str,
    data: str = "",
    *,
    threshold: float = 0.98,
    out: Annotated[Path, Parameter(alias="-o")] = Path("duplicates.csv"),
    sheet: Path | None = None,
    yes: Annotated[bool, Parameter(negative=())] = False,
    approximate: bool = False,
) -> object:
    """Find images that an encoder takes for the same.

    The first image of each group is kept, and every other one of the group is as similar to it as the threshold asks.

    Parameters
    ----------
    run
        A run directory, a file of weights, or a .npz file of `byol embed`.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file; the run's own when left out.
    threshold
        The lowest cosine of two images that count as the same.
    out
        A .csv or .json file of groups, or a .txt list that `byol pretrain --data.exclude` takes.
    sheet
        Also draw the images that were found into this .png file.
    yes
        List more than 30 % of all images, which an encoder that has learned little would take for repeats.
    approximate
        Use faiss's graph index, for millions of images (extra: faiss).
    """
    _check(out, sheet)
    from byol.explore import search as answers

    answers.check_out(out, sheet, (".txt",))
    return _written(answers.dedupe(run, data, threshold, approximate, yes), out, sheet)


@app.command(group=USE)
def outliers(
    run: str,
    data: str = "",
    *,
    count: int = 0,
    neighbours: Annotated[int, Parameter(alias="-k")] = 10,
    out: Annotated[Path, Parameter(alias="-o")] = Path("outliers.csv"),
    sheet: Path | None = None,
    approximate: bool = False,
) -> object:
    """Rank images by how unlike all others they are.

    Parameters
    ----------
    run
        A run directory, a file of weights, or a .npz file of `byol embed`.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file; the run's own when left out.
    count
        How many images to list; 0 lists all.
    neighbours
        How many of the nearest images the distance is averaged over.
    out
        A .csv or .json file of ranks, names, distances and nearest images.
    sheet
        Also draw the images that were found into this .png file.
    approximate
        Use faiss's graph index, for millions of images (extra: faiss).
    """
    _check(out, sheet)
    from byol.explore import search as answers

    answers.check_out(out, sheet)
    return _written(answers.outliers(run, data, neighbours, count, approximate), out, sheet)


@app.command(group=USE)
def pick(
    count: int,
    run: str,
    data: str = "",
    *,
    by: Literal["coverage", "typical"] = "coverage",
    exclude: Path | None = None,
    out: Annotated[Path, Parameter(alias="-o")] = Path("picked.csv"),
    sheet: Path | None = None,
) -> object:
    """Pick the images to label first, so that few cover all.

    The same set always gives the same picks.

    Parameters
    ----------
    count
        How many images to pick.
    run
        A run directory, a file of weights, or a .npz file of `byol embed`.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file; the run's own when left out.
    by
        coverage: no image is far from a picked one, so unusual images come early. typical: the mean similarity of all
        images to the nearest picked one is as high as possible.
    exclude
        A text file of images not to pick, such as those that have labels already, with one name on each line.
    out
        A .csv or .json file of ranks and names.
    sheet
        Also draw the images that were found into this .png file.
    """
    _check(out, sheet)
    from byol.data.source import read_list
    from byol.explore import search as answers

    answers.check_out(out, sheet)
    return _written(answers.pick(count, run, data, by, tuple(read_list(exclude)) if exclude else ()), out, sheet)


def _written(answer: Answer, out: Path, sheet: Path | None) -> object:
    """What was found, in the file and for a program."""
    from byol.explore.search import write

    write(answer, out, sheet)
    return {"out": out, "sheet": sheet, "columns": answer.columns, "rows": answer.rows, "sentence": answer.sentence}


def _check(out: Path, sheet: Path | None) -> None:
    """What a search writes can be written."""
    for path in filter(None, (out, sheet)):
        output.check_file(path)
