"""The verbs that write pages for people: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from byol.cli.app import LOOK, app
from byol.errors import UsageError
from byol.run import output


@app.command(group=LOOK)
def report(
    *runs: Path, out: Annotated[Path | None, Parameter(alias="-o")] = None, images: int = 5000, data: str = ""
) -> object:
    """Write one HTML page about a run, several runs or a model.

    The page holds everything it shows, loads nothing and opens offline.

    Parameters
    ----------
    runs
        Run directories, or one model of `byol fit`.
    out
        The file to write; RUN/report.html when left out, ./report.html for several runs.
    images
        The largest number of images on the map; 0 leaves the map out.
    data
        Where the images are now, if they are no longer where the run found them.
    """
    if not runs:
        raise UsageError("Name a run directory, as in byol report RUN, or several to compare them.")
    if images < 0:
        raise UsageError(f"--images must be at least 0, not {images}.")
    for run in runs:
        if not run.is_dir():
            raise UsageError(f"There is no run directory {run}.")
    place = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    if place.suffix not in (".html", ".htm"):
        raise UsageError(f"--out must name an .html file, not {place}.")
    output.check_file(place)
    models = [run for run in runs if (run / "model.json").is_file()]
    if models:
        if len(runs) > 1:
            raise UsageError(f"{models[0]} is a model: name it alone, as in byol report MODEL.")
        from byol.report.model import report as describe

        return {"out": describe(models[0], place, data)}
    from byol.report.build import report as write

    return {"out": write(list(dict.fromkeys(runs)), place, images, data)}
