"""From numbered images to the crops of each step: which images, in which order, read how, and what if one is bad.

The images of a step and their crops follow from (seed, step) alone, so any number of workers, and a start in the
middle, give the same batches.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from byol import distributed, views
from byol.config import Config, Plan
from byol.crops import crop_resize
from byol.data.source import BadImage, Source
from byol.errors import KILLED, BadData, ByolError, DiskError, UsageError
from byol.progress import bar, name_left_out

T = TypeVar("T")

MEMORY_SHARE = 0.25
MOST_HELD_OUT = 1000
BAD_ALLOWED = 10  # so that two bad files do not stop a folder of fifty
SUBSTITUTES = 50
PIECE = 64  # small images that a worker reads at a time
SMALL = 128 * 128  # pixels
PR_SET_PDEATHSIG = 1  # of Linux's prctl

# How long torch waits for each worker to finish its batch before it ends it: five seconds are too long for a Ctrl-C.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2


class Bad(NamedTuple):
    """An image left out, and why."""

    name: str
    reason: str


class Crops(NamedTuple):
    """One forward pass worth of images: a crop in [0, 1] (B, 3, S, S) for each view, and the draws for the rest."""

    crops: tuple[Tensor, ...]
    draws: tuple[views.ViewDraw, ...]
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
    pixels: Tensor | None  # uint8 (count, 3, H, W)
    bad: list[Bad]
    fingerprint: str
    blocks: Blocks | None = None  # None: an epoch is any permutation

    def read(self, indices: np.ndarray) -> list[Tensor]:
        """Decoded images uint8 (3, H, W), bad ones left out."""
        if self.pixels is not None:
            return list(self.pixels[torch.as_tensor(indices)])
        images = []
        for index in indices:
            try:
                images.append(self.source.read(int(index)))
            except BadImage:
                continue
        return images


def prepare(source: Source, config: Config) -> Images:
    """Decodes what fits in memory, leaves bad images out, and sets some aside for monitoring."""
    indices = np.arange(len(source))
    pixels: Tensor | None = None
    bad: list[Bad] = []
    fingerprint = source_fingerprint(source)
    sizes = [] if config.data.in_memory == "never" else sample_sizes(source)
    mean = sum(h * w for h, w in sizes) / max(len(sizes), 1)
    if fits(3 * mean * len(source), config):
        # Small images are read mostly by Python, of which threads share one; large ones mostly by C, in threads. Where
        # processes are not forked they take seconds to begin, and a script without a `__main__` would begin anew.
        forked = multiprocessing.get_start_method() == "fork"
        source, kept, pixels, bad = _decode(source, worker_count(config) if forked and mean <= SMALL else 0)
        indices = np.arange(len(kept))
        check_bad(len(bad), len(kept) + len(bad), config, bad)
    count = min(int(len(indices) * config.data.holdout), MOST_HELD_OUT)
    shuffled = np.random.default_rng([config.run.seed, 1]).permutation(indices)
    train, held_out = np.sort(shuffled[count:]), np.sort(shuffled[:count])
    return Images(source, train, held_out, pixels, bad, fingerprint, _blocks(source, train, config))


def _blocks(source: Source, train: np.ndarray, config: Config) -> Blocks | None:
    if config.data.shuffle == "images":
        return None
    if source.blocks is None:
        raise UsageError(f"data.shuffle shards is for images in shards, which {source.name} is not.")
    return Blocks(source.blocks[train], config.data.window)


def check_bad(bad: int, total: int, config: Config, examples: list[Bad]) -> None:
    """More bad images than the config allows end the run, with one of them named."""
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
    """Tells whether the same images are there on resume; names and labels, not pixels, so that it is quick."""
    digest = hashlib.sha256()
    for index in range(len(source)):
        digest.update(source.describe(index).encode("utf-8", "surrogateescape") + b"\0")
    if source.labels is not None:
        digest.update(source.labels.tobytes())
    return digest.hexdigest()[:16]


def fits(decoded: float, config: Config) -> bool:
    """Whether so many bytes of decoded images are held in memory."""
    if config.data.in_memory != "auto":
        return config.data.in_memory == "always"
    share = MEMORY_SHARE / distributed.local_world()  # each process of a machine holds them all
    return decoded <= share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def sample_sizes(source: Source, count: int = 32) -> list[tuple[int, int]]:
    """(height, width) of up to `count` images spread over the source; bad ones are left out."""
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, count).astype(int)):
        try:
            sizes.append(tuple(source.read(int(index)).shape[1:]))
        except BadImage:
            continue
    return sizes  # type: ignore[return-value]


def _decode(source: Source, workers: int) -> tuple[Source, list[int], Tensor | None, list[Bad]]:
    """All images in memory: one tensor when their sizes agree, else a source that reads from a list."""
    images: list[Tensor] = []
    kept: list[int] = []
    bad: list[Bad] = []
    pieces = Pieces(source)
    found: Iterator[np.ndarray | BadImage]
    with bar("Reading", len(source), "images") as shown:
        if 0 < workers < len(pieces):
            found = itertools.chain.from_iterable(loaded(pieces, range(len(pieces)), workers))
        else:
            found = in_threads(pieces.attempt, range(len(source)))
        for index, result in enumerate(found):
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
    if not images or any(image.shape != images[0].shape for image in images):
        return held, kept, None, bad
    pixels = torch.stack(images)
    images.clear()
    return replace(held, read=pixels.__getitem__), kept, pixels, bad


class Pieces(Dataset[list["np.ndarray | BadImage"]]):
    """Item k is the k-th few images of a source, uint8 (3, H, W), or what is wrong with them."""

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
    """What the function gives for each, in order, by a thread a core; after an error or Ctrl-C no more are begun."""
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
    # The shards in a random order, an image at a random place among the `window` shards from its own on: in any stretch
    # of the epoch only about so many shards are read, and none is come back to.
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
    """Item k is this process's slice of the k-th forward pass, read and cropped one by one; a pure function of k."""

    def __init__(self, images: Images, config: Config, plan: Plan, count: int) -> None:
        self.images, self.config, self.plan, self.count = images, config, plan, count
        self.rank, self.world = distributed.rank(), distributed.world()  # loader processes cannot ask

    def __getitem__(self, k: int) -> Crops:
        indices, draws = self.draw(k)
        crops: list[list[Tensor]] = [[] for _ in draws]
        bad: list[Bad] = []
        used = []
        for place, index in enumerate(indices):
            image, used_index = self._read(int(index), bad)
            used.append(used_index)
            for view, draw in zip(crops, draws, strict=True):
                view.append(views.crop_one(image, draw, place, self.config.views, self.config.data.resolution))
        return Crops(tuple(map(torch.stack, crops)), draws, _labels(self.images, np.array(used)), bad)

    def draw(self, k: int) -> tuple[np.ndarray, tuple[views.ViewDraw, ...]]:
        """Indices and choices of the k-th pass: drawn for the global batch, so the processes together see just that."""
        config, plan, train = self.config, self.plan, self.images.train
        step, part = divmod(k, plan.accumulate)
        share = plan.micro_batch // self.world
        start = part * plan.micro_batch + self.rank * share
        positions = batch_positions(config.run.seed, step, plan.batch, len(train), self.images.blocks)
        positions = positions[start : start + share]
        draws = views.draw(config.run.seed, step, plan.batch, config.views)[: self.count]
        return train[positions], tuple(views.slice_draw(draw, start, start + share) for draw in draws)

    def _read(self, index: int, bad: list[Bad]) -> tuple[Tensor, int]:
        """The image, or the next good one in its place: the same choice on every visit."""
        source, train = self.images.source, self.images.train
        place = int(np.searchsorted(train, index))
        for offset in range(min(SUBSTITUTES, len(train))):
            candidate = int(train[(place + offset) % len(train)])
            try:
                return source.read(candidate), candidate
            except BadImage as error:
                bad.append(Bad(source.describe(candidate), str(error)))
        return torch.full((3, 1, 1), 128, dtype=torch.uint8), index  # the main process decides whether this is too many


def _labels(images: Images, indices: np.ndarray) -> Tensor | None:
    return None if images.source.labels is None else torch.as_tensor(images.source.labels[indices])


def batches(
    images: Images, config: Config, plan: Plan, first_step: int, device: torch.device, count: int = 2
) -> Generator[Crops, None, None]:
    """This process's slice of every pass from `first_step` to the end; `count` 1 leaves out the second view."""
    stream = Stream(images, config, plan, count)
    passes = range(first_step * plan.accumulate, plan.steps * plan.accumulate)
    if images.pixels is not None:
        pixels = images.pixels
        for k in passes:
            indices, draws = stream.draw(k)
            batch = pixels[torch.as_tensor(indices)].to(device)
            crops = tuple(
                crop_resize(
                    batch,
                    views.boxes(draw, batch.shape[2], batch.shape[3], config.views),
                    config.data.resolution,
                    config.views.antialias,
                )
                for draw in draws
            )
            yield Crops(crops, draws, _labels(images, indices), [])
        return
    yield from loaded(stream, passes, worker_count(config), config.data.prefetch)


def worker_count(config: Config) -> int:
    """-1 means one a core, shared by the processes of this machine."""
    cores = len(os.sched_getaffinity(0))
    return config.data.workers if config.data.workers >= 0 else max(1, cores // distributed.local_world())


def loaded(dataset: Dataset[T], order: Sequence[int], workers: int, prefetch: int = 2) -> Generator[T, None, None]:
    """The items in this order, made by so many worker processes; a worker's error is one sentence."""
    options: dict[str, Any] = {"worker_init_fn": _begin_worker, "prefetch_factor": prefetch} if workers else {}
    items = iter(
        DataLoader(dataset, batch_size=None, sampler=order, num_workers=workers, collate_fn=_handed_over, **options)
    )
    try:
        yield from items
    except ByolError as error:  # torch puts the worker's traceback before the sentence
        kind = type(error)
        raise kind(str(error).strip().splitlines()[-1].removeprefix(f"{kind.__module__}.{kind.__name__}: ")) from None
    except (ConnectionError, EOFError):  # it died while it handed something over
        raise RuntimeError(f"{KILLED} was killed") from None
    finally:
        if workers:  # here and now: what is left to the end of the process ends in a traceback of torch's
            items._shutdown_workers()  # type: ignore[attr-defined]
            for worker in items._workers:  # type: ignore[attr-defined]
                worker.kill()  # one that hangs, and does not hear torch's SIGTERM


def _begin_worker(_: int) -> None:
    """Ctrl-C reaches the whole process group, and a cluster's SIGTERM and SIGUSR2 every process of a job.

    Only the main process answers them: it needs its workers for the step that it finishes, and then ends them.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = lambda *_: None  # of the thread that hands images over, to whom the end of the run is an error
    if sys.platform == "linux":  # a worker shares the lock on the run directory, so it must not outlive a killed run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _handed_over(item: T) -> T:
    """The item with its tensors in shared memory. Torch would move them in a thread of the worker, whose error nobody
    sees while the main process waits for ever."""
    if get_worker_info() is None:
        return item
    try:
        for tensor in _tensors(item):
            tensor.share_memory_()
    except (RuntimeError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DiskError(
            f"A loader process cannot hand its images over in shared memory ({reason[:200]}). Free /dev/shm or raise "
            "its limits, or use --data.workers 0, which needs none."
        ) from None
    return item


def _tensors(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, Mapping):
        yield from _tensors(tuple(item.values()))
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _tensors(part)


class BadList:
    """Every bad image once, as a line of skipped.txt and a count."""

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
