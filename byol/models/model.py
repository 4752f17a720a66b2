"""A model that answers: a frozen or fine-tuned encoder, a linear head, classes, preprocessing and calibration.

A model is a folder. model.json is written first, saying that the fit is under way, and last, when all else is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from byol import checkpoint, data
from byol.config import Data
from byol.data.decode import open_image
from byol.data.folder import EXTENSIONS
from byol.data.loader import worker_count
from byol.data.source import BadImage, Source
from byol.data.stored import is_eight_bit, read_as
from byol.errors import BadData, DiskError, UsageError
from byol.evals.encoder import Encoder, frozen, open_encoder
from byol.evals.features import CHUNK, NOT_FINITE, centre_crops, finite_rows
from byol.models.calibrate import probabilities
from byol.run import record
from byol.run.files import read_json
from byol.run.machine import represent
from byol.run.progress import bar, name_left_out

NAME, HEAD, VALIDATION = "model.json", "head.safetensors", "validation.json"
FORMAT = 1
Images = str | Path | Sequence[Any] | Tensor | np.ndarray


@dataclass(frozen=True)
class ModelRecord:
    """What model.json holds. Nothing in it depends on when or how fast the model was fitted."""

    format: int
    status: Literal["fitting", "done"]
    request: str  # a digest of encoder, images, labels and options: the same command gives the same model
    encoder: str
    weights: str  # digest of the encoder that was given
    classes: list[str]
    several: bool  # labels an image
    how: Literal["logistic", "finetune"]
    margin: float  # short side of an image, once resized, over the side of the central crop
    metric: str
    temperature: float = 1.0
    thresholds: list[float | None] = field(default_factory=list)  # below which it does not answer; None: it never does
    precision: float = 0.0  # that the thresholds were chosen for
    setting: dict[str, float] = field(default_factory=dict)  # penalty, or rate and decay, chosen on validation
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    preprocessing: dict[str, Any] = field(default_factory=dict)


KINDS = (torch.uint8, torch.uint16, torch.int16, torch.int32, torch.float32)


class Answers(NamedTuple):
    """Some consecutive images: probabilities (n, classes) of those at `indices`, and why others could not be read."""

    probabilities: np.ndarray
    indices: list[int]
    bad: dict[int, str]


class Predictions(NamedTuple):
    """Probabilities (N, classes) of the images that could be read, and the labels that the model answers with.

    A label is empty where the model does not answer; of several labels an image, it is a tuple.
    """

    names: list[str]
    labels: list[Any]
    probabilities: np.ndarray
    unreadable: dict[str, str]


class Model(nn.Module):
    """Images in [0, 1], (B, C, S, S) at its resolution → probabilities (B, classes), in evaluation mode."""

    def __init__(self, encoder: Encoder, head: nn.Linear, facts: ModelRecord) -> None:
        super().__init__()
        self.used, self.facts = encoder, facts
        self.encoder, self.head = encoder.module, head
        mean, std = encoder.config.views.mean, encoder.config.views.std
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.facts.classes)

    @property
    def resolution(self) -> int:
        return self.used.resolution

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(self.encoder((images - self.mean) / self.std)) / self.facts.temperature
        answer: Tensor = torch.sigmoid(logits) if self.facts.several else torch.softmax(logits, 1)
        return answer

    def predict(self, images: Images) -> Predictions:
        """Answers for images: a file, a folder, shards or another name that `byol predict` takes, or a sequence of file
        names, PIL images, arrays (H, W, C) or tensors (C, H, W), uint8 for an encoder of 8-bit images.

        Images are resized and cropped as in the fit.
        """
        config = self.used.config.data
        source = self.opened(images) if isinstance(images, str | Path) else _given(images, config)  # type: ignore[arg-type]
        names, found, bad = list[str](), list[np.ndarray](), dict[str, str]()
        for answers in answered(self, source):
            names += [source.describe(i) for i in answers.indices]
            found.append(answers.probabilities)
            bad |= {source.describe(i): reason for i, reason in answers.bad.items()}
        given = np.concatenate(found)
        return Predictions(names, [label for row in given for label in [self.label(row)]], given, bad)

    def opened(self, images: str | Path, split: str = "train") -> Source:
        """The images that a name stands for; one image file is an image."""
        if Path(images).is_file() and Path(images).suffix.lower().removeprefix(".") in EXTENSIONS:
            return _given([images], self.used.config.data)
        return data.open_source(str(images), self.used.config.data, split)

    def label(self, row: np.ndarray) -> Any:
        """What the model answers with for the probabilities (classes,) of one image."""
        if self.facts.several:
            limits = self.facts.thresholds
            return tuple(n for n, p, t in zip(self.classes, row, limits, strict=True) if t is not None and p >= t)
        limit, best = self.facts.thresholds[0], int(row.argmax())
        return self.classes[best] if limit is not None and row[best] >= limit else ""


def load_model(path: str | Path, settings: Mapping[str, Any] | None = None) -> Model:
    """The model in a folder that `byol fit` wrote, with `.classes` and `.predict(images)`, in evaluation mode."""
    folder = Path(path)
    if not (folder / NAME).is_file():
        raise UsageError(f"{folder} is not a model of byol: there is no {NAME} in it. `byol fit` makes one.")
    facts = read_record(folder)
    if facts.status != "done":
        raise UsageError(f"The fit of {folder} was not finished: run the same `byol fit` again.")
    encoder = open_encoder(folder, settings)
    weight, bias = _head(folder / HEAD, len(facts.classes), encoder.num_features)
    head = nn.Linear(encoder.num_features, len(facts.classes))
    head.load_state_dict({"weight": weight, "bias": bias})
    return Model(encoder, head, facts).eval()


def read_record(folder: Path) -> ModelRecord:
    """model.json; a `DiskError` names the field whose value no model can have."""
    path = folder / NAME
    value = read_json(path)
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is int and number != FORMAT:
        raise DiskError(f"{path} has format {number}, of another version of byol; this version reads format {FORMAT}.")
    facts = record.decode(ModelRecord, value, path)
    count = len(facts.thresholds) if facts.several else 1
    if facts.status == "done" and (
        len(facts.classes) < 1
        or len(facts.thresholds) != (len(facts.classes) if facts.several else 1)
        or not 0.01 <= facts.temperature <= 100
        or not 0.5 <= facts.margin <= 4
    ):
        raise DiskError(f"{path} is damaged or is not ours: classes, thresholds ({count}) or temperature do not fit.")
    return facts


def _head(path: Path, classes: int, features: int) -> tuple[Tensor, Tensor]:
    try:
        with checkpoint.opened_tensors(path) as opened:
            weight, bias = (opened.get_tensor(name).float() for name in ("weight", "bias"))
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DiskError(f"{path} is damaged or missing: {str(error).splitlines()[0]:.80}.") from None
    if weight.shape != (classes, features) or bias.shape != (classes,):
        raise DiskError(f"{path} does not hold the head of {classes} classes that {NAME} names.")
    checkpoint.check_finite({"weight": weight, "bias": bias}, path)
    return weight, bias


@torch.no_grad()
def logits_of(head: nn.Linear, features: np.ndarray) -> np.ndarray:
    """Logits float32 (n, classes) of representations (n, D)."""
    return np.asarray(head(torch.from_numpy(features)).numpy())


def answered(model: Model, source: Source) -> Iterator[Answers]:
    """Every image of a source in order, a chunk at a time, as features are computed: float32, with a progress bar."""
    encoder, head = model.used, model.head.float().cpu()
    exact = encoder.place if encoder.place.precision == "float64" else replace(encoder.place, precision="float32")
    workers = worker_count(encoder.config) if len(source) > CHUNK else 0
    first = given = 0
    with frozen(encoder) as module, bar("Predicting", len(source), "images") as shown:
        for pixels, indices, left_out in centre_crops(source, encoder.config.data, workers, model.facts.margin):
            count = len(indices) + len(left_out)
            missing = sorted(set(range(first, first + count)) - set(indices))
            bad = {i: _reason(text, source.describe(i)) for i, text in zip(missing, left_out, strict=True)}
            values = represent(module, pixels, encoder.config, exact).numpy() if indices else np.empty((0, 1))
            finite = finite_rows(values)
            wrong = [i for i, sound in zip(indices, finite, strict=True) if not sound]
            name_left_out([f"{source.describe(i)} ({NOT_FINITE})" for i in wrong], 0)
            bad |= dict.fromkeys(wrong, NOT_FINITE)
            kept = [i for i, sound in zip(indices, finite, strict=True) if sound]
            logits = logits_of(head, values[finite]) if kept else np.empty((0, len(model.classes)), np.float32)
            yield Answers(probabilities(logits, model.facts.temperature, model.facts.several), kept, bad)
            first, given = first + count, given + len(kept)
            shown.advance(count)
    if not given:
        raise BadData(f"None of the {len(source)} images of {source.name} can be read.")


def _reason(text: str, name: str) -> str:
    """`name (reason)` without the name."""
    return text.removeprefix(name).strip().removeprefix("(").removesuffix(")")


def _given(images: Sequence[Any], config: Data) -> Source:
    """Images that are at hand, or the names of their files."""
    if not len(images):
        raise UsageError("There is no image to predict: the sequence is empty.")
    names = [str(image) if isinstance(image, str | Path) else f"image {i}" for i, image in enumerate(images)]
    return Source("the images given", len(images), partial(_pixels, images, config), names.__getitem__)


def _pixels(images: Sequence[Any], config: Data, index: int) -> Tensor:
    """(C, H, W), as the encoder's config wants it."""
    image = images[index]
    if isinstance(image, str | Path):
        with open_image(os.fsencode(image)) as file:
            return read_as(file, config, os.fsencode(image))
    if hasattr(image, "convert"):
        image = np.asarray(image.convert("RGB"))
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.array(image)).permute(2, 0, 1) if image.ndim == 3 else image
    channels, eight = config.channels or 3, is_eight_bit(config)
    kinds = (torch.uint8,) if eight else KINDS
    if not isinstance(image, Tensor) or image.dtype not in kinds or image.ndim != 3 or image.shape[0] != channels:
        kind = "uint8 " * eight
        raise BadImage(
            f"neither a file, a PIL image, a {kind}array (H, W, {channels}) nor a {kind}tensor ({channels}, H, W)"
        )
    return image.contiguous()
