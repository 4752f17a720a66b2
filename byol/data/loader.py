"""From numbered images to the crops of each step: which images, in which order, by which processes; bad ones left out.

The images of a step and their crops follow from (seed, step) alone, so that any number of workers, and a run that
starts in the middle, see the same batches.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from byol import views
from byol.config import Config, Plan
from byol.crops import scale_of, sent, shrink
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError
from byol.parallel import processes
from byol.run.progress import bar, name_left_out

T = TypeVar("T")

MEMORY_SHARE = 0.25  # of the machine's memory that decoded images may fill
MOST_HELD_OUT = 1000
BAD_ALLOWED = 10  # whatever their share, so that two bad files do not stop a folder of fifty
SUBSTITUTES = 50  # images tried in place of a bad one
PIECE = 64  # small images that a worker reads at a time
SAMPLE = 32  # images, spread over the data set, that are looked at where looking at all would take too long
SMALL = 128 * 128  # pixels of an image up to which worker processes read faster than threads


class Bad(NamedTuple):
    """An image left out, and why."""

    name: str
    reason: str


class Crops(NamedTuple):
    """The images of one forward pass: for each view crops (B, C, S, S) in [0, 1] and the choices to finish them by."""

    crops: tuple[Tensor, ...]
    draws: tuple[views.Draw, ...]
    labels: Tensor | None
    bad: list[Bad]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which shard each training image is in, and how many shards are mixed at a time."""

    number: np.ndarray  # int32 (len(train),)
    window: int


@dataclass(frozen=True)
class Images:
    """The images of a run: those to train on, those held out, and all of them decoded when they fit."""

    source: Source
    train: np.ndarray  # indices into the source
    held_out: np.ndarray
    pixels: Tensor | None  # (count, C, H, W), in the type in which they are stored
    bad: list[Bad]
    fingerprint: str
    blocks: Blocks | None = None  # None: an epoch is any permutation
    held_bytes: int = 0  # of decoded images in memory; their `pixels` are one tensor where all sizes agree

    def read(self, indices: np.ndarray) -> list[Tensor]:
        """Decoded images (C, H, W), bad ones left out."""
        return [image for _, image in readable(self.source, indices)]


def readable(source: Source, indices: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
    """(index, image (C, H, W)) for each of these images that can be read."""
    for index in indices:
        try:
            image = source.read(int(index))
        except BadImage:
            continue
        yield int(index), image


def prepare(source: Source, config: Config) -> Images:
    """Decode all images if they fit in memory, leave bad ones out, and hold some out for monitoring."""
    indices = np.arange(len(source))
    pixels: Tensor | None = None
    bad: list[Bad] = []
    held = 0
    fingerprint = source_fingerprint(source)
    if config.data.shrink:
        source = replace(source, read=functools.partial(_shrunk, source.read, config.data.shrink))
    some = [] if config.data.in_memory == "never" else sample(source)
    pixels_of = sum(image[0].numel() for image in some) / max(len(some), 1)
    if fits(sum(image.nbytes for image in some) / max(len(some), 1) * len(source), config):
        # Processes for small images, whose reading is mostly Python, which threads run in turn; threads for large ones.
        # Processes that are not forked take seconds to start, and run a script without a `__main__` guard again.
        forked = multiprocessing.get_start_method() == "fork"
        source, kept, pixels, bad = _decode(source, worker_count(config) if forked and pixels_of <= SMALL else 0)
        held = pixels.nbytes if pixels is not None else sum(source.read(i).nbytes for i in range(len(kept)))
        indices = np.arange(len(kept))
        check_bad(len(bad), len(kept) + len(bad), config, bad)
    count = min(int(len(indices) * config.data.holdout), MOST_HELD_OUT)
    shuffled = np.random.default_rng([config.run.seed, 1]).permutation(indices)
    train, held_out = np.sort(shuffled[count:]), np.sort(shuffled[:count])
    return Images(source, train, held_out, pixels, bad, fingerprint, _blocks(source, train, config), held)


def _shrunk(read: Callable[[int], Tensor], side: int, index: int) -> Tensor:
    return shrink(read(index), side)


def _blocks(source: Source, train: np.ndarray, config: Config) -> Blocks | None:
    if config.data.shuffle == "images":
        return None
    if source.blocks is None:
        raise UsageError(f"data.shuffle shards is for images in shards, which {source.name} is not.")
    return Blocks(source.blocks[train], config.data.window)


def check_bad(bad: int, total: int, config: Config, examples: list[Bad]) -> None:
    """Raise `BadData`, with one bad image named, when there are more of them than the config allows."""
    most = config.data.max_bad
    if 0 < most <= 1:
        most = max(BAD_ALLOWED, most * total)
    if bad and (bad == total or bad > most):
        first = f"{examples[0].name}: {examples[0].reason}"
        remedy = " `byol doctor` lists them; --data.max_bad 1 goes on without them." if bad < total else ""
        raise BadData(
            f"{bad} of {total} images cannot be read, more than data.max_bad allows; the first is {first}.{remedy}"
        )


def source_fingerprint(source: Source) -> str:
    """A digest of all names and labels, to notice other images on resume; not of pixels, so that it is quick."""
    digest = hashlib.sha256()
    for index in range(len(source)):
        digest.update(source.describe(index).encode("utf-8", "surrogateescape") + b"\0")
    if source.labels is not None:
        digest.update(source.labels.tobytes())
    return digest.hexdigest()[:16]


def fits(decoded: float, config: Config) -> bool:
    """Whether decoded images of this many bytes are held in memory."""
    if config.data.in_memory != "auto":
        return config.data.in_memory == "always"
    share = MEMORY_SHARE / processes.local_world()  # each process of a machine holds them all
    return decoded <= share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def sample(source: Source) -> list[Tensor]:
    """Some images (C, H, W) spread over the source; bad ones are left out."""
    return [image for _, image in readable(source, spread(source))]


def names_of(source: Source) -> list[str]:
    """Of the images that `sample` reads."""
    return [source.describe(index) for index in spread(source)]


def sample_sizes(source: Source) -> list[tuple[int, int]]:
    """(height, width) of some images spread over the source."""
    return [(image.shape[1], image.shape[2]) for image in sample(source)]


def spread(source: Source, count: int = SAMPLE) -> list[int]:
    """The numbers of some images over the whole of a source."""
    return sorted({int(index) for index in np.linspace(0, len(source) - 1, count)})


def try_images(source: Source, config: Config) -> None:
    """Reads some images before an old run goes: those that are read while training may all be bad."""
    attempt = Pieces(source).attempt
    tried = [(index, attempt(index)) for index in spread(source)]
    bad = [Bad(source.describe(index), str(image)) for index, image in tried if isinstance(image, BadImage)]
    check_bad(len(bad), len(tried), config, bad)


def sample_digest(source: Source) -> str:
    """A digest of some images' pixels: names and sizes alone do not tell two folders of numbered images apart."""
    digest = hashlib.sha256()
    for index, image in readable(source, spread(source)):
        digest.update(f"{index} {tuple(image.shape)}".encode() + image.numpy().tobytes())
    return digest.hexdigest()[:16]


def _decode(source: Source, workers: int) -> tuple[Source, list[int], Tensor | None, list[Bad]]:
    """All images in memory, as a source that reads from there; also as one tensor when their sizes agree."""
    images: list[Tensor] = []
    kept: list[int] = []
    bad: list[Bad] = []
    pieces = Pieces(source)
    results: Iterator[np.ndarray | BadImage]
    with bar("Reading", len(source), "images") as shown:
        if 0 < workers < len(pieces):
            from byol.data.workers import loaded

            results = itertools.chain.from_iterable(loaded(pieces, range(len(pieces)), workers))
        else:
            results = in_threads(pieces.attempt, range(len(source)))
        for index, result in enumerate(results):
            if isinstance(result, BadImage):
                bad.append(Bad(source.describe(index), str(result)))
            else:
                images.append(torch.from_numpy(result))
                kept.append(index)
            shown.advance()
    labels = None if source.labels is None else source.labels[kept]
    names = [source.describe(i) for i in kept]
    blocks = None if source.blocks is None else source.blocks[kept]
    held = Source(source.name, len(kept), images.__getitem__, names.__getitem__, labels, source.classes, blocks=blocks)
    held = replace(held, excluded=source.excluded)
    alike = {(image.shape, image.dtype) for image in images}
    if len(alike) != 1:
        return held, kept, None, bad
    pixels = torch.stack(images)
    images.clear()
    return replace(held, read=pixels.__getitem__), kept, pixels, bad


class Pieces(Dataset[list["np.ndarray | BadImage"]]):
    """Item k is the k-th piece of a source: PIECE images (C, H, W), with the error in place of a bad one."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return math.ceil(len(self.source) / PIECE)

    def __getitem__(self, k: int) -> list[np.ndarray | BadImage]:
        return [self.attempt(index) for index in range(k * PIECE, min((k + 1) * PIECE, len(self.source)))]

    def attempt(self, index: int) -> np.ndarray | BadImage:
        try:
            return self.source.read(index).numpy()
        except BadImage as error:
            return error


def in_threads(function: Callable[[int], T], items: Sequence[int]) -> Iterator[T]:
    """The function's result for each item, in order, by a thread a core; after an error or Ctrl-C no more are begun."""
    threads = os.cpu_count() or 1
    waiting = deque[Future[T]]()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 4 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def generator(*key: int | str) -> torch.Generator:
    """A random generator that depends on the key alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@functools.lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, count: int, blocks: Blocks | None = None) -> np.ndarray:
    random = generator("order", seed, epoch)
    if blocks is None:
        return torch.randperm(count, generator=random).numpy()
    # The shards stand in a random order, and an image is moved back by a random part of `window` shards. So any stretch
    # of the epoch reads about `window` shards, and a shard that has been left is not needed again.
    rank = torch.randperm(int(blocks.number.max()) + 1, generator=random).numpy()[blocks.number]
    return np.argsort(rank + blocks.window * torch.rand(count, generator=random, dtype=torch.float64).numpy())


def batch_positions(seed: int, step: int, batch: int, count: int, blocks: Blocks | None = None) -> np.ndarray:
    """Which of `count` images the step sees: epoch after epoch, each a new permutation, with no remainder dropped."""
    places = np.arange(step * batch, (step + 1) * batch)
    epochs = places // count
    return np.concatenate(
        [_epoch_order(seed, int(e), count, blocks)[places[epochs == e] % count] for e in np.unique(epochs)]
    )


class Stream(Dataset[Crops]):
    """Item k is this process's slice of the k-th forward pass, read and cropped image by image; depends on k alone."""

    def __init__(self, images: Images, config: Config, plan: Plan, count: int) -> None:
        self.images, self.config, self.plan, self.count = images, config, plan, count
        self.rank, self.world = processes.rank(), processes.world()  # asked here: loader processes are in no group

    def __getitem__(self, k: int) -> Crops:
        indices, draws = self.draw(k)
        crops: list[list[Tensor]] = [[] for _ in draws]
        size, scale = self.config.data.resolution, scale_of(self.config.data)
        bad: list[Bad] = []
        used = []
        for place, index in enumerate(indices):
            image, used_index = self._read(int(index), bad)
            used.append(used_index)
            for view, draw in zip(crops, draws, strict=True):
                own = views.slice_draw(draw, place, place + 1)
                view.append(views.crop([image], own, self.config.views, size, scale))
        return Crops(tuple(map(torch.cat, crops)), draws, _labels(self.images, np.array(used)), bad)

    def draw(self, k: int) -> tuple[np.ndarray, tuple[views.Draw, ...]]:
        """Indices and choices of this process in the k-th pass, cut from those drawn for the global batch."""
        config, plan, train = self.config, self.plan, self.images.train
        step, part = divmod(k, plan.accumulate)
        share = plan.micro_batch // self.world
        start = part * plan.micro_batch + self.rank * share
        positions = batch_positions(config.run.seed, step, plan.batch, len(train), self.images.blocks)
        draws = views.draw(config.run.seed, step, plan.batch, config.views)[: self.count]
        return train[positions[start : start + share]], tuple(
            views.slice_draw(draw, start, start + share) for draw in draws
        )

    def _read(self, index: int, bad: list[Bad]) -> tuple[Tensor, int]:
        """The image and its index, or those of the next good image in place of a bad one, the same on every visit."""
        source, train = self.images.source, self.images.train
        place = int(np.searchsorted(train, index))
        for offset in range(min(SUBSTITUTES, len(train))):
            candidate = int(train[(place + offset) % len(train)])
            try:
                return source.read(candidate), candidate
            except BadImage as error:
                bad.append(Bad(source.describe(candidate), str(error)))
        # Whether that is too many bad images is the main process's to decide.
        return torch.full((self.config.network.channels, 1, 1), 128, dtype=torch.uint8), index


def _labels(images: Images, indices: np.ndarray) -> Tensor | None:
    return None if images.source.labels is None else torch.as_tensor(images.source.labels[indices])


def batches(
    images: Images, config: Config, plan: Plan, first_step: int, device: torch.device, count: int = 2
) -> Generator[Crops, None, None]:
    """This process's slice of every pass from `first_step` to the end, on the device; `count` views of each image."""
    passes = _batches(images, config, plan, first_step, device, count)
    if device.type != "cuda":
        yield from passes
        return
    from byol.data.transfer import beside

    yield from beside(passes, device)


def _batches(
    images: Images, config: Config, plan: Plan, first_step: int, device: torch.device, count: int
) -> Generator[Crops, None, None]:
    stream = Stream(images, config, plan, count)
    passes = range(first_step * plan.accumulate, plan.steps * plan.accumulate)
    if images.pixels is not None:
        for k in passes:
            indices, draws = stream.draw(k)
            batch = sent(images.pixels[torch.as_tensor(indices)], device)
            size, scale = config.data.resolution, scale_of(config.data)
            crops = tuple(views.crop(batch, draw, config.views, size, scale) for draw in draws)
            yield Crops(crops, draws, _labels(images, indices), [])
        return
    from byol.data.workers import loaded

    yield from loaded(stream, passes, worker_count(config), config.data.prefetch)


def worker_count(config: Config) -> int:
    """Loader processes of this process; -1 in the config means one a core, divided among the machine's processes."""
    return config.data.workers if config.data.workers >= 0 else processes.cores()


class BadList:
    """The bad images met so far, each once; `report` is given all of them whenever there is a new one."""

    def __init__(self, known: list[Bad], total: int, config: Config, report: Callable[[list[Bad]], None]) -> None:
        self.seen: dict[str, Bad] = {}
        self.total, self.config, self.report = total, config, report
        self.add(known)

    def add(self, bad: list[Bad]) -> None:
        new = [b for b in bad if b.name not in self.seen]
        if not new:
            return
        name_left_out([f"{b.name} ({b.reason})" for b in new], len(self.seen), "skipped.txt has all")
        self.seen |= {b.name: b for b in new}
        self.report(list(self.seen.values()))
        check_bad(len(self.seen), self.total, self.config, list(self.seen.values()))
