"""The verbs that look at images: doctor, views; and, by an encoder's eyes, search, dedupe, outliers, pick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from byol.cli.app import ConfigFlags, app, given_values
from byol.config import read_yaml
from byol.presets import compose

Kind = Literal["unreadable", "tiny", "duplicates", "near-duplicates"]


@app.command
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
    """Look at every image before training: what is there, what is wrong, how fast it would go.

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


@app.command
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
    """Draw a sheet of the views T and T' of some images, as training would see them.

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
