"""What the dense tasks share: samples in memory or streamed, their training, their pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from byol import views
from byol.config import Config, Data
from byol.crops import sent
from byol.data.dense.images import is_plain
from byol.data.loader import SUBSTITUTES, Bad, batch_positions, check_bad, fits, in_threads, worker_count
from byol.data.parts import Part, Sample, Task, joined, of_samples
from byol.data.source import BadImage
from byol.data.workers import loaded
from byol.errors import BadData
from byol.evals.budget import Setting
from byol.evals.dense.geometry import unit
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe, fit
from byol.evals.protocol import Chosen, Session, Study, choose, dependencies, final
from byol.run import pictures
from byol.run.painting import chosen_bands, painted, some_pixels
from byol.run.progress import bar, say

T = TypeVar("T")
B = TypeVar("B")

PICTURED, PICTURE = 8, 192  # images on a sheet, and the longer side of each


@dataclass(frozen=True)
class Work(Generic[B]):
    """One dense task, as training sees it."""

    model: Callable[[int], nn.Module]  # seed → a new one, around a copy of the encoder
    batch: Callable[[Part, Recipe, int], B]  # of a step, on the CPU: a pure function, called in loader workers
    loss: Callable[[nn.Module, B], Tensor]  # of a batch, called under autocast, the model in training mode
    score: Callable[[nn.Module, Part], float]  # in evaluation mode; higher is better
    spec: Any  # what else a score depends on: the protocol's, without the settings


def train(
    work: Work[B], task: Task, recipe: Recipe, settings: Sequence[Setting], encoder: Encoder, session: Session
) -> tuple[nn.Module, Chosen]:
    """The final model, trained on train and validation together, and how its setting was chosen.

    A setting names fields of the recipe.
    """
    part, held = hold(task.train, encoder.config), hold(task.validation, encoder.config)

    def loss(model: nn.Module, batch: B, step: int) -> Tensor:
        with encoder.place.autocast():
            return work.loss(model, batch)

    def trained(images: Part, setting: Setting, steps: int, title: str) -> nn.Module:
        model, own = work.model(session.seed), replace(recipe, steps=steps, seed=session.seed, **setting)
        fit(model, stream(work, images, own, encoder.config), loss, own, encoder, title)
        return model.eval()

    key = [*dependencies(encoder, task, work.spec, session.seed), recipe.batch]
    study = Study(settings, lambda setting: recipe.steps, trained, work.score, part, held, key)
    chosen = choose(study, session)
    return final(study, chosen, joined(part, held)), chosen


def normalized(images: Tensor, encoder: Encoder) -> Tensor:
    """Images (B, C, H, W) in [0, 1] as the encoder saw them in pretraining, where it computes."""
    config, place = encoder.config, encoder.place
    return place.images(views.normalize(sent(images, place.device), config.views.mean, config.views.std), config)


class _Stream(torch.utils.data.Dataset[B]):
    """Item k is the batch of step k."""

    def __init__(self, work: Work[B], part: Part, recipe: Recipe) -> None:
        self.work, self.part, self.recipe = work, part, recipe

    def __getitem__(self, step: int) -> B:
        return self.work.batch(self.part, self.recipe, step)


def stream(work: Work[B], part: Part, recipe: Recipe, config: Config) -> Generator[B, None, None]:
    """The batch of every step, in order, made by loader workers where there are steps enough to start them."""
    workers = min(worker_count(config), recipe.steps // 20)
    yield from loaded(_Stream(work, part, recipe), range(recipe.steps), workers, config.data.prefetch)


def samples_of(part: Part, recipe: Recipe, step: int) -> list[Sample[Any]]:
    """The samples of a step: epoch after epoch, each a new permutation; a bad one is replaced by the next good one."""
    return [_good(part, int(index)) for index in batch_positions(recipe.seed, step, recipe.batch, len(part))]


def _good(part: Part, index: int) -> Sample[Any]:
    bad = list[str]()
    for offset in range(min(SUBSTITUTES, len(part))):
        position = (index + offset) % len(part)
        try:
            return part.read(position)
        except BadImage as error:
            bad.append(f"{part.describe(position)}: {error}")
    raise BadData(f"{len(bad)} images of {part.name} in a row cannot be read; the first is {bad[0]}.")


def hold(part: Part, config: Config) -> Part:
    """The samples decoded in memory if they fit; what cannot be read is named and left out."""
    if not _fits(part, config):
        return part
    samples, kept, bad = list[Sample[Any]](), list[int](), list[Bad]()
    for index, result in enumerate(_read_all(part)):
        if isinstance(result, BadImage):
            bad.append(Bad(part.describe(index), str(result)))
            say(f"Left out: {bad[-1].name} ({bad[-1].reason})")
        else:
            samples.append(result)
            kept.append(index)
    check_bad(len(bad), len(part), config, bad)
    names = [part.describe(index) for index in kept]
    return of_samples(part.name, len(kept), samples.__getitem__, names.__getitem__)


def _read_all(part: Part) -> Iterator[Sample[Any] | BadImage]:
    def attempt(index: int) -> Sample[Any] | BadImage:
        try:
            return part.read(index)
        except BadImage as error:
            return error

    with bar("Reading", len(part), "images") as shown:
        for result in in_threads(attempt, range(len(part))):
            yield result
            shown.advance()


def _fits(part: Part, config: Config) -> bool:
    pixels = [height * width for height, width in sizes(part)]
    # 3 bytes a pixel of 8-bit colours, or 4 a channel; and 4 of a depth map, the largest kind of target.
    image = 3 if is_plain(config.data) else 4 * config.data.channels
    return fits((image + 4) * len(part) * float(np.mean(pixels or [0])), config)


def sizes(part: Part, count: int = 16) -> list[tuple[int, int]]:
    """(height, width) of up to `count` images spread over the part; bad ones are left out."""
    measured = []
    for index in np.unique(np.linspace(0, len(part) - 1, count).astype(int)):
        with contextlib.suppress(BadImage):
            height, width = part.read(int(index)).image.shape[1:]
            measured.append((height, width))
    return measured


def watched(results: Iterator[T], total: int, kept: list[T]) -> Iterator[T]:
    """The same results, of which some spread over all are kept for a picture."""
    wanted = set(np.linspace(0, total - 1, min(PICTURED, total)).astype(int).tolist())
    for place, result in enumerate(results):
        if place in wanted:
            kept.append(result)
        yield result


def visible(images: Sequence[Tensor], data: Data) -> tuple[list[Tensor], str]:
    """Images in 8 bits or in [0, 1] as uint8 (3, H, W), and in words what the colours are where they are not given."""
    if not images or all(image.dtype == torch.uint8 and len(image) == 3 for image in images):
        return list(images), ""
    units = [unit(image) for image in images]
    paint = painted(torch.cat(list(map(some_pixels, units)), 1), None, chosen_bands(data.bands, len(units[0])))
    return [paint.unit(image) for image in units], paint.words


def picture(
    out: Path | None,
    rows: list[list[Tensor]],
    titles: tuple[str, ...],
    legend: list[tuple[str, pictures.Colour]],
    footnote: str = "",
) -> None:
    """predictions.png: a row an image, cells of the first one's shape."""
    if out is None or not rows:
        return
    height, width = rows[0][0].shape[1:]
    factor = PICTURE / max(height, width)
    out.mkdir(parents=True, exist_ok=True)
    cell = max(1, round(width * factor)), max(1, round(height * factor))
    pictures.sheet(out / "predictions.png", rows, titles, cell, legend, footnote=footnote)


def readable(part: Part, title: str = "Testing") -> Iterator[tuple[int, Sample[Any]]]:
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
