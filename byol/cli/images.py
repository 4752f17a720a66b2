"""The verbs that look at images: doctor, views; and, by an encoder's eyes, search, dedupe, outliers, pick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from byol.cli.app import LOOK, USE, ConfigFlags, app, given_values
from byol.config_file import read_yaml
from byol.presets import compose

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
) -> None:
    """Check all images before training: what is wrong, how fast.

    Writes doctor.json and bad-files.txt, which `byol pretrain --data.exclude` takes.

    Parameters
    ----------
    data
        A folder of images, torchvision:NAME, or scenes.
    out
        The folder for doctor.json and bad-files.txt.
    leave_out
        What the list holds: unreadable, tiny, duplicates, near-duplicates; of duplicates one stays.
    speed
        Measure loading and training for some seconds.
    preset
        The recipe that speed and views are judged by.
    config
        A YAML file of config fields; flags win over it, it wins over the preset.
    """
    values = given_values(given) if given else {}
    compose(preset, values, read_yaml(config) if config else {}, str(config or ""))
    from byol.doctor import Request
    from byol.doctor import doctor as run

    run(Request(data, out, preset, values, config, tuple(leave_out), speed))


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
) -> None:
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
    from byol.viewing import sheet

    sheet(data, out, preset, values, images, pairs)


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
) -> None:
    """Find the images most similar to one.

    Parameters
    ----------
    image
        A file, or the name of an image of the set.
    run
        A run directory or an encoder.safetensors file.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file of `byol embed`; the run's own when left out.
    count
        How many to find.
    out
        A .csv or .json file of ranks, names and cosines.
    sheet
        Also draw what was found into this .png file.
    approximate
        Use faiss's graph index, for millions of images (extra: faiss).
    """
    from byol import search as answers

    answers.check_out(out, sheet)
    answers.write(answers.search(image, run, data, count, approximate), out, sheet)


@app.command(group=USE)
def dedupe(
    run: str,
    data: str = "",
    *,
    threshold: float = 0.98,
    out: Annotated[Path, Parameter(alias="-o")] = Path("duplicates.csv"),
    sheet: Path | None = None,
    approximate: bool = False,
) -> None:
    """Find images that an encoder takes for the same.

    Of each group the first is kept.

    Parameters
    ----------
    run
        A run directory, an encoder.safetensors file, or a .npz file of `byol embed`.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file; the run's own when left out.
    threshold
        The lowest cosine of two images that count as the same.
    out
        A .csv or .json file of groups, or a .txt list that `byol pretrain --data.exclude` takes.
    sheet
        Also draw what was found into this .png file.
    approximate
        Use faiss's graph index, for millions of images (extra: faiss).
    """
    from byol import search as answers

    answers.check_out(out, sheet, (".txt",))
    answers.write(answers.dedupe(run, data, threshold, approximate), out, sheet)


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
) -> None:
    """Rank images by how unlike all others they are.

    Parameters
    ----------
    run
        A run directory, an encoder.safetensors file, or a .npz file of `byol embed`.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file; the run's own when left out.
    count
        How many to list; 0: all.
    neighbours
        How many nearest others the distance is averaged over.
    out
        A .csv or .json file of ranks, names, distances and nearest images.
    sheet
        Also draw what was found into this .png file.
    approximate
        Use faiss's graph index, for millions of images (extra: faiss).
    """
    from byol import search as answers

    answers.check_out(out, sheet)
    answers.write(answers.outliers(run, data, neighbours, count, approximate), out, sheet)


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
) -> None:
    """Pick the images to label first, so that few cover all.

    Always the same ones for the same set.

    Parameters
    ----------
    count
        How many to pick.
    run
        A run directory, an encoder.safetensors file, or a .npz file of `byol embed`.
    data
        A folder of images, torchvision:NAME, scenes, or a .npz file; the run's own when left out.
    by
        coverage: no image is far from a picked one, strange ones come early. typical: images resemble a picked one
        as much as possible on average.
    exclude
        A list of images not to pick, such as those labelled already: a name a line.
    out
        A .csv or .json file of ranks and names.
    sheet
        Also draw what was found into this .png file.
    """
    from byol import search as answers
    from byol.data import read_list

    answers.check_out(out, sheet)
    answers.write(answers.pick(count, run, data, by, tuple(read_list(exclude)) if exclude else ()), out, sheet)
