"""The verb that looks for views: tune."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from byol.cli.app import TRAIN, ConfigFlags, app, given_values
from byol.errors import UsageError, nearest


@app.command(group=TRAIN)
def tune(
    data: str,
    *,
    minutes: float = 30.0,
    labels: str = "",
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    jobs: str = "",
    policies: Annotated[list[str], Parameter(consume_multiple=True, negative=())] = [],  # noqa: B006 (cyclopts copies it)
    rates: Annotated[bool, Parameter(negative=())] = False,
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> None:
    """Look for the views that suit these images.

    Writes tune.yaml for `byol pretrain --config`, and a page that shows why. The same command again goes on.

    Parameters
    ----------
    data
        As for pretrain.
    minutes
        Time for the whole search.
    labels
        A folder of class folders, fifty images each or more, by which to choose; they are never trained on. Left out:
        DATA's own class folders where it has some, or no labels; none: no labels.
    out
        The directory of the search; runs/DATA-tune when left out.
    jobs
        local:N runs together here, or slurm:PARTITION[:GPUS[:NODES]]; one after another when left out.
    policies
        Try these alone; all when left out.
    rates
        Look for the learning rate and tau around the best views too.
    """
    began = time.monotonic()
    values = given_values(given) if given else {}
    if not 0 < minutes <= 1e6:
        raise UsageError(f"--minutes must be more than 0, not {minutes:g}.")
    planned = ("views.", "optim.epochs", "run.budget", *(("optim.lr", "optim.tau") if rates else ()))
    if wrong := [name for name in values if name.startswith(planned)]:
        raise UsageError(f"{wrong[0]} is what the search chooses or plans: leave the flag out.")
    from byol.presets import compose
    from byol.tune.policies import POLICIES

    composed, _ = compose("auto", values, {})
    for name in policies:
        if name not in POLICIES:
            raise UsageError(f"There is no policy '{name}'. {nearest(name, POLICIES)}")
    if policies and len(set(policies)) < 2:
        raise UsageError("--policies needs two names or more: there is nothing to choose from one.")
    from byol.data.address import parse
    from byol.run.files import run_place

    root = composed.data.root
    place = run_place(data, parse(data, root).check().location(root), out, "tune")
    from byol.tune.run import Request
    from byol.tune.run import tune as search

    search(Request(data, minutes, place, labels, jobs, values, tuple(dict.fromkeys(policies)), rates, began))
