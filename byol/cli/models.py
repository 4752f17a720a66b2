"""The verbs that make, use and pass on a model: fit, predict, push, pull."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from byol.cli.app import TRAIN, USE, PlaceFlags, app, place_settings
from byol.cli.scoring import check_encoder
from byol.config import apply
from byol.errors import UsageError
from byol.evals.spec import Specs
from byol.presets import seconds_of
from byol.run import output

GROUP = Group("Choices", sort_key=1)
SEVERAL = Parameter(consume_multiple=True, negative=(), group=GROUP)
ONE = Parameter(group=GROUP, show_default=False)


@dataclass(frozen=True)
class Choices:
    """What is chosen from, where it is not what the protocols choose from."""

    penalties: Annotated[list[float], SEVERAL] = field(default_factory=list)
    "Penalties to choose from, instead of the protocol's 45."
    steps: Annotated[int, ONE] = 0
    "Optimizer steps of --finetune, instead of the protocol's 20,000."
    batch: Annotated[int, ONE] = 0
    "Images a step of --finetune, instead of the protocol's 256."
    lrs: Annotated[list[float], SEVERAL] = field(default_factory=list)
    "Learning rates of --finetune to choose from, instead of the protocol's."
    weight_decays: Annotated[list[float], SEVERAL] = field(default_factory=list)
    "Weight decays of --finetune to choose from, instead of the protocol's."

    def specs(self, finetune: bool, budget: str) -> Specs:
        """The protocols' options with these values; those of the other way to fit are refused."""
        values = {
            "transfer.penalties": self.penalties,
            "finetune.steps": self.steps,
            "finetune.batch": self.batch,
            "finetune.lrs": self.lrs,
            "finetune.weight_decays": self.weight_decays,
        }
        given = {name: value for name, value in values.items() if value}
        if not finetune and (budget or any(name.startswith("finetune.") for name in given)):
            raise UsageError("--budget, --steps, --batch, --lrs and --weight-decays are for --finetune.")
        if finetune and self.penalties:
            raise UsageError("--penalties are for logistic regression, without --finetune.")
        specs = apply(Specs(), given, "flags")
        if any(penalty <= 0 for penalty in specs.transfer.penalties):
            raise UsageError("--penalties must be above 0: without a penalty there may be no best classifier.")
        return specs


@app.command(group=TRAIN)
def fit(
    encoder: str,
    *,
    on: str,
    out: Annotated[Path, Parameter(alias="-o")],
    labels: Path | None = None,
    finetune: bool = False,
    budget: str = "",
    test: bool = False,
    abstain_below: float = 0.0,
    overwrite: bool = False,
    cache: Path | None = None,
    choices: Annotated[Choices | None, Parameter(name="*")] = None,
    place: Annotated[PlaceFlags | None, Parameter(name="*")] = None,
) -> object:
    """Make a classifier from an encoder and labelled images.

    Logistic regression on frozen features, whose penalty is chosen on validation images. The model is a folder of
    weights, classes, preprocessing, calibration and figures; `byol predict` answers with it.

    Parameters
    ----------
    encoder
        A run directory, an encoder.safetensors file, or any file that `byol import` knows.
    on
        A folder of class folders (with or without train, val and test), a CSV of labels beside its images, or any
        labelled data that `byol evaluate` takes.
    out
        The folder for the model.
    labels
        A CSV with a header: the file's name, then its class (several: joined by semicolons), or a column of 1, 0 or
        nothing for each class.
    finetune
        Train the whole network, by the protocol of fine-tuning.
    budget
        Time for --finetune, such as 90s, 20m or 2h; the sweep is cut to fit.
    test
        Hold the fifth of the images out that `byol evaluate` tests on, and score the model on them once.
    abstain_below
        Answer only where at least this share of such answers was right on validation, such as 0.95; 0 answers always.
    overwrite
        Replace another model in the folder.
    cache
        Where features are kept; the user's cache directory when left out.
    """
    specs = (choices or Choices()).specs(finetune, budget)
    if not 0 <= abstain_below < 1:
        raise UsageError(f"--abstain-below is a share from 0 to below 1, such as 0.95, not {abstain_below:g}.")
    seconds, settings = seconds_of(budget, "--budget") if budget else float("inf"), place_settings(place)
    check_encoder(encoder)
    output.check_folder(out)
    from byol.models.fit import Options
    from byol.models.fit import fit as run

    how = "finetune" if finetune else "logistic"
    options = Options(how, specs.transfer, specs.finetune, test, abstain_below, seconds, cache)
    made = run(encoder, on, out, labels=labels, options=options, settings=settings, overwrite=overwrite)
    return {"out": out, "model": made.facts}


@app.command(group=USE)
def predict(
    model: Path,
    images: str,
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("predictions.csv"),
    top: int = 0,
    split: str = "train",
    place: Annotated[PlaceFlags | None, Parameter(name="*")] = None,
) -> object:
    """Answer for images with a model that `byol fit` made.

    A line for each image: its label, its probabilities, and for an image that cannot be read the reason.

    Parameters
    ----------
    model
        The folder of the model.
    images
        An image, a folder of images or shards, a pattern or URL of shards, torchvision:NAME, hf:NAME-or-PATH, or
        scenes.
    out
        The .csv, .json or .parquet file to write.
    top
        Only the likeliest classes, this many; 0 gives the probability of every class.
    split
        Which part of a data set that comes in parts.
    """
    settings = place_settings(place)
    if not model.is_dir():
        raise UsageError(f"There is no model at {model}: `byol fit` makes one.")
    output.check_file(out)
    from byol.models.predicting import predict as run

    return {"out": run(model, images, out, top=top, split=split, settings=settings)}


@app.command(group=USE)
def push(model: Path, to: str, *, private: bool = False) -> object:
    """Send a model to a folder, a URL or the Hugging Face hub.

    Weights as safetensors, records as JSON and the card; `byol pull` checks every byte of them.

    Parameters
    ----------
    model
        The folder of a model that `byol fit` made.
    to
        A folder, a URL such as s3://BUCKET/FOLDER, or hf:OWNER/NAME of the hub, where you are logged in.
    private
        On the hub, for you alone.
    """
    from byol.models import hub

    hub.push(model, to, private)
    return {"model": model, "to": to}


@app.command(group=USE)
def pull(place: str, *, out: Annotated[Path, Parameter(alias="-o")], overwrite: bool = False) -> object:
    """Bring a model that was pushed, and check it.

    Parameters
    ----------
    place
        A folder, a URL such as https://HOST/FOLDER or s3://BUCKET/FOLDER, or hf:OWNER/NAME of the hub.
    out
        The folder for the model.
    overwrite
        Replace another model in the folder.
    """
    output.check_folder(out)
    from byol.models import hub

    hub.pull(place, out, overwrite)
    return {"place": place, "out": out}
