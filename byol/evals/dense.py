"""What the dense tasks share: samples in memory or streamed, one training run by SGD, the choice on validation."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from byol import optim, pictures, schedules, views
from byol.config import Config
from byol.data.dense import DenseTask, Sample, Samples, joined
from byol.data.loader import SUBSTITUTES, Bad, batch_positions, check_bad, fits, in_threads, loaded, worker_count
from byol.data.source import BadImage
from byol.errors import BadData, Diverged
from byol.evals.encoder import Encoder
from byol.evals.sweep import Ledger, Session, Setting, Trial, best, cut, timed_first, tried
from byol.progress import bar, say

T = TypeVar("T")
B = TypeVar("B")

TIMED_STEPS, TIMED_IMAGES = 3, 4
MEASURING = 0.02  # of a budget
PICTURED, PICTURE = 8, 192  # images on a sheet, and the longer side of each
MARGIN = 0.9  # of a budget is planned with


@dataclass(frozen=True)
class Recipe:
    """One training run by SGD with momentum, its learning rate falling to a tenth at each of the `drops`."""

    steps: int
    batch: int
    lr: float
    weight_decay: float
    drops: tuple[float, ...] = ()  # fractions of the steps
    warmup_steps: int = 0  # linear, at most a tenth of all
    momentum: float = 0.9
    seed: int = 0


@dataclass(frozen=True)
class Work(Generic[T, B]):
    """One dense task, as training sees it."""

    model: Callable[[int], nn.Module]  # seed → a new one, around a copy of the encoder
    batch: Callable[[Samples[T], Recipe, int], B]  # of a step, on the CPU: a pure function, called in loader workers
    loss: Callable[[nn.Module, B], Tensor]  # of a batch, called under autocast, the model in training mode
    score: Callable[[nn.Module, Samples[T]], float]  # in evaluation mode; higher is better
    spec: Any = None  # what else a score depends on: tried settings are known again only with the same


class Trained(NamedTuple):
    """The final model, trained on train and validation together, and how its setting was chosen."""

    model: nn.Module
    trials: list[Trial]
    chosen: Setting
    notes: list[str]
    steps: int


def train(
    work: Work[T, B],
    task: DenseTask[T],
    recipe: Recipe,
    settings: Sequence[Setting],
    encoder: Encoder,
    session: Session,
) -> Trained:
    """Tries the settings (fields of the recipe) on validation if there are several, then trains with the best one."""
    part, held = hold(task.train, encoder.config), hold(task.validation, encoder.config)
    recipe = replace(recipe, seed=session.seed)
    chosen, notes, several = list(settings), list[str](), len(settings) > 1
    if timed_first(session, recipe.steps * len(settings)):
        each, look = _measured(work, part, held, recipe, encoder, session.left)
        # The size of the test part is not known before it is opened; it is taken to be twice that of validation.
        left = session.left * MARGIN - look * (2 + len(settings) * several)
        # A single setting is not tried, so its only run is the final one.
        chosen, share, notes = cut(settings, lambda _: recipe.steps, each, max(left, 0.0), finals=int(several))
        recipe = replace(recipe, steps=max(1, int(recipe.steps * share)))

    def attempt(setting: Setting) -> float:
        model = work.model(session.seed)
        good = fit(work, model, part, replace(recipe, **setting), encoder)
        return work.score(model.eval(), held) if good else -1.0

    trials = list[Trial]()
    if several:
        key = [encoder.checksum(), task.train.fingerprint(), task.validation.fingerprint(), repr((recipe, work.spec))]
        trials = tried(chosen, attempt, Ledger(session.out, key))
    setting = best(trials).setting if trials else chosen[0]
    model = work.model(session.seed)
    if not fit(work, model, joined(part, held), replace(recipe, **setting), encoder, "Final training"):
        raise Diverged(f"Training on {task.name} stopped: its loss is no longer finite. Lower the learning rate.")
    return Trained(model.eval(), trials, setting, notes, recipe.steps)


def fit(
    work: Work[T, B], model: nn.Module, part: Samples[T], recipe: Recipe, encoder: Encoder, title: str = "Training"
) -> bool:
    """Trains the model in place; False when the loss stopped being finite."""
    place = encoder.place
    model.train().to(**place.placement(encoder.config))
    groups = optim.parameter_groups(model, recipe.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=0.0, momentum=recipe.momentum)
    batches = stream(work, part, recipe, encoder.config)
    with contextlib.closing(batches), bar(title, recipe.steps, "images", units_each=recipe.batch) as shown:
        for step, batch in enumerate(batches):
            with place.autocast():
                loss = work.loss(model, batch)
            if not math.isfinite(loss.item()):
                return False
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            lr = schedules.in_pieces(step, base=recipe.lr, drops=recipe.drops, total_steps=recipe.steps)
            lr *= min(1.0, (step + 1) / (min(recipe.warmup_steps, recipe.steps // 10) + 1))
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            shown.advance(text=f"loss {loss.item():.3f} lr {lr:.3g}")
    return True


def normalized(images: Tensor, encoder: Encoder) -> Tensor:
    """Images (B, 3, H, W) in [0, 1] as the encoder saw them in pretraining, where it computes."""
    config, place = encoder.config, encoder.place
    return place.images(views.normalize(images.to(place.device), config.views.mean, config.views.std), config)


def _measured(
    work: Work[T, B], part: Samples[T], held: Samples[T], recipe: Recipe, encoder: Encoder, left: float
) -> tuple[float, float]:
    """Seconds of a training step, and of one look at the validation part."""
    model = work.model(0)

    def timed(steps: int) -> float:
        began = time.monotonic()
        fit(work, model, part, replace(recipe, steps=steps, lr=0.0), encoder, "Measuring")
        return (time.monotonic() - began) / steps

    each = timed(1)
    if each < MEASURING * left:  # the first step is slower than those after it, but few of them fit in the budget
        each = timed(TIMED_STEPS)
    few = held.take(range(min(len(held), TIMED_IMAGES)))
    began = time.monotonic()
    work.score(model.eval(), few)
    return each, (time.monotonic() - began) * len(held) / len(few)


class _Stream(torch.utils.data.Dataset[B]):
    """Item k is the batch of step k."""

    def __init__(self, work: Work[T, B], part: Samples[T], recipe: Recipe) -> None:
        self.work, self.part, self.recipe = work, part, recipe

    def __getitem__(self, step: int) -> B:
        return self.work.batch(self.part, self.recipe, step)


def stream(work: Work[T, B], part: Samples[T], recipe: Recipe, config: Config) -> Generator[B, None, None]:
    """The batch of every step, in order, made by loader workers where there are steps enough to start them."""
    workers = min(worker_count(config), recipe.steps // 20)
    yield from loaded(_Stream(work, part, recipe), range(recipe.steps), workers, config.data.prefetch)


def samples_of(part: Samples[T], recipe: Recipe, step: int) -> list[Sample[T]]:
    """The samples of a step: epoch after epoch, each a new permutation; a bad one is replaced by the next good one."""
    return [_good(part, int(index)) for index in batch_positions(recipe.seed, step, recipe.batch, len(part))]


def _good(part: Samples[T], index: int) -> Sample[T]:
    bad = list[str]()
    for offset in range(min(SUBSTITUTES, len(part))):
        place = (index + offset) % len(part)
        try:
            return part.read(place)
        except BadImage as error:
            bad.append(f"{part.describe(place)}: {error}")
    raise BadData(f"{len(bad)} images of {part.name} in a row cannot be read; the first is {bad[0]}.")


def hold(part: Samples[T], config: Config) -> Samples[T]:
    """The samples decoded in memory if they fit; what cannot be read is named and left out."""
    if not _fits(part, config):
        return part
    samples, kept, bad = list[Sample[T]](), list[int](), list[Bad]()
    for index, result in enumerate(_read_all(part)):
        if isinstance(result, BadImage):
            bad.append(Bad(part.describe(index), str(result)))
            say(f"Left out: {bad[-1].name} ({bad[-1].reason})")
        else:
            samples.append(result)
            kept.append(index)
    check_bad(len(bad), len(part), config, bad)
    return replace(part.take(kept), read=samples.__getitem__)


def _read_all(part: Samples[T]) -> Iterator[Sample[T] | BadImage]:
    def attempt(index: int) -> Sample[T] | BadImage:
        try:
            return part.read(index)
        except BadImage as error:
            return error

    with bar("Reading", len(part), "images") as shown:
        for result in in_threads(attempt, range(len(part))):
            yield result
            shown.advance()


def _fits(part: Samples[T], config: Config) -> bool:
    pixels = [height * width for height, width in sizes(part)]
    # 3 bytes a pixel of the image and 4 of a depth map, the largest kind of target.
    return fits(7 * len(part) * float(np.mean(pixels or [0])), config)


def sizes(part: Samples[T], count: int = 16) -> list[tuple[int, int]]:
    """(height, width) of up to `count` images spread over the part; bad ones are left out."""
    found = []
    for index in np.unique(np.linspace(0, len(part) - 1, count).astype(int)):
        with contextlib.suppress(BadImage):
            height, width = part.read(int(index)).image.shape[1:]
            found.append((height, width))
    return found


def watched(found: Iterator[T], total: int, kept: list[T]) -> Iterator[T]:
    """The same results, of which some spread over all are kept for a picture."""
    wanted = set(np.linspace(0, total - 1, min(PICTURED, total)).astype(int).tolist())
    for place, result in enumerate(found):
        if place in wanted:
            kept.append(result)
        yield result


def picture(
    out: Path | None, rows: list[list[Tensor]], titles: tuple[str, ...], legend: list[tuple[str, pictures.Colour]]
) -> None:
    """predictions.png: a row an image, cells of the first one's shape."""
    if out is None or not rows:
        return
    height, width = rows[0][0].shape[1:]
    factor = PICTURE / max(height, width)
    out.mkdir(parents=True, exist_ok=True)
    cell = max(1, round(width * factor)), max(1, round(height * factor))
    pictures.sheet(out / "predictions.png", rows, titles, cell, legend)


def readable(part: Samples[T], title: str = "Testing") -> Iterator[tuple[int, Sample[T]]]:
    """(number, sample) in order with a progress bar; one that cannot be read is named and left out."""
    count = 0
    with bar(title, len(part), "images") as shown:
        for index in range(len(part)):
            try:
                yield index, part.read(index)
                count += 1
            except BadImage as error:
                say(f"Left out: {part.describe(index)} ({error})")
            shown.advance()
    if not count:
        raise BadData(f"None of the {len(part)} images of {part.name} can be read.")
