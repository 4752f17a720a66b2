"""From the name of a data set to its images: a folder, shards, a named set, the embedded scenes, or a benchmark."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from byol.config import Data
from byol.data.benchmarks import BENCHMARKS, open_benchmark
from byol.data.folder import folder, split_names, split_roots
from byol.data.huggingface import open_huggingface, parts
from byol.data.index import read_manifest
from byol.data.named import torchvision_source
from byol.data.places import is_pattern, is_remote, local, names
from byol.data.scenes import scenes
from byol.data.shards import holds_shards, names_shards, open_shards
from byol.data.source import Source, at
from byol.data.task import Part, Sealed, Task, as_source, held_out_fraction, joined, whole
from byol.errors import BadData, UsageError, nearest
from byol.progress import say

SCENES = 5000
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1


def open_source(spec: str, config: Data, split: str = "train") -> Source:
    """The images that a name stands for, without those that data.exclude lists."""
    source = _open(spec, config, split)
    return without(source, Path(config.exclude)) if config.exclude else source


def read_list(file: Path) -> list[str]:
    """The names in a list of images: a name a line, up to a tab; as skipped.txt and the doctor's list."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"Cannot read the list {file}: {reason}.") from None
    return [line.partition("\t")[0] for line in lines if line.strip()]


def without(source: Source, listed: Path) -> Source:
    """The source without the images of a list."""
    names = set(read_list(listed))
    kept = np.array([i for i in range(len(source)) if source.describe(i) not in names], dtype=np.int64)
    gone = len(source) - len(kept)
    if gone < len(names):
        say(f"{len(names) - gone} of the {len(names)} names in {listed} are not among the images of {source.name}.")
    if not len(kept):
        raise BadData(f"{listed} lists all {len(source)} images of {source.name}.")
    return replace(
        source,
        count=len(kept),
        read=partial(at, source.read, kept),
        describe=partial(at, source.describe, kept),
        labels=None if source.labels is None else source.labels[kept],
        stamp=partial(at, source.stamp, kept) if source.stamp else None,
        path=partial(at, source.path, kept) if source.path else None,
        blocks=None if source.blocks is None else source.blocks[kept],
    )


def _open(spec: str, config: Data, split: str) -> Source:
    """`scenes[:COUNT]`, `torchvision:NAME[:SPLIT]`, `hf:NAME-or-PATH[:SPLIT]`, a benchmark, or images in a folder or in
    tar shards: a folder of them, a pattern or a URL.

    Of a benchmark of the paper, pretraining sees all training images, those held out for validation among them.
    """
    if spec == "scenes" or spec.startswith("scenes:"):
        count = spec.removeprefix("scenes").removeprefix(":") or str(SCENES if split == "train" else SCENES // 5)
        if not count.isdecimal() or not int(count):
            raise UsageError(f"'{spec}' should be 'scenes' or 'scenes:COUNT', such as scenes:{SCENES}.")
        size = min(max(config.resolution, 32), 96)
        return scenes(int(count), size=size, split="train" if split == "train" else "test")
    if spec.startswith("torchvision:"):
        if split != "train" and spec.count(":") == 1:
            spec = f"{spec}:{split}"
        return torchvision_source(spec, Path(config.root))
    if spec in BENCHMARKS and not Path(spec).is_dir() and split == "train":
        task = open_benchmark(spec, Path(config.root), config.max_megapixels)
        return as_source(joined(task.train, task.validation), task.classes)
    if spec.startswith("hf:"):
        return open_huggingface(spec, config, split)
    spec = local(spec)
    roots = _roots(spec)
    if not roots and split != "train":
        raise UsageError(f"{spec} has no {split} part: that would be a sub-folder beside one named train.")
    return _open_files(roots.get(split) or roots.get("val") or spec, config)


def _roots(spec: str) -> dict[str, str]:
    """The parts of a folder, here or at a URL."""
    if is_remote(spec) and not is_pattern(spec) and not spec.endswith(".tar"):
        if read_manifest(spec):  # first, because not every server tells what else there is
            return {}
        return {split: f"{spec.rstrip('/')}/{name}" for split, name in split_names(names(spec)[1]).items()}
    return {split: str(root) for split, root in split_roots(Path(spec)).items()} if Path(spec).is_dir() else {}


def _open_files(spec: str, config: Data) -> Source:
    if holds_shards(spec) if Path(spec).is_dir() else names_shards(spec):
        return open_shards(spec, config)
    return folder(Path(spec), config.max_megapixels)


def open_task(spec: str, config: Data) -> Task:
    """A labelled data set in three parts: a benchmark of the paper by name, or whatever `open_source` opens.

    What has no test part gives up a fifth of its images for it, always the same; validation is a tenth of the rest.
    """
    if spec in BENCHMARKS:
        return open_benchmark(spec, Path(config.root), config.max_megapixels)
    spec = local(spec)
    if not Path(spec).is_dir() and not spec.startswith(("scenes", "torchvision:", "hf:")) and not names_shards(spec):
        raise UsageError(f"There is no folder and no benchmark '{spec}'. {nearest(spec, BENCHMARKS)}")
    if spec.startswith("scenes"):
        return _with_test(spec, open_source(spec, config), None, partial(_scenes_test, spec, config))
    if spec.startswith("torchvision:"):
        return _with_test(spec, open_source(spec, config), None, partial(open_source, spec, config, "test"))
    found = parts(spec) if spec.startswith("hf:") else set(_roots(spec))
    train = open_source(spec, config)
    if not found & {"val", "test"}:
        return _split(train)
    given = open_source(spec, config, "val") if {"val", "test"} <= found else None
    return _with_test(spec, train, given, partial(open_source, spec, config, "test"))


def _scenes_test(spec: str, config: Data) -> Source:
    """A fifth as many as for training."""
    count = int(spec.partition(":")[2] or SCENES) // 5
    return open_source(f"scenes:{max(count, 1)}", config, "test")


def _labelled(source: Source, classes: tuple[str, ...] | None = None) -> Part:
    """All of a source; its classes must be those of the training images, by name."""
    if source.labels is None:
        raise BadData(f"{source.name} has no labels: an evaluation needs a folder for each class.")
    part = whole(source)
    if classes is None or classes == source.classes:
        return part
    unknown = set(source.classes) - set(classes)
    if unknown:
        raise BadData(f"{source.name} has classes that the training images do not have, such as {min(unknown)}.")
    number = [classes.index(name) for name in source.classes]

    return Part(source, part.indices, np.array(number)[part.targets])


def _split(source: Source) -> Task:
    rest, test = held_out_fraction(_labelled(source), TEST_SHARE)
    train, validation = held_out_fraction(rest, VALIDATION_SHARE)
    return Task(source.name, source.classes, "top1", train, validation, Sealed(lambda: test))


def _with_test(name: str, train: Source, validation: Source | None, test: partial[Source]) -> Task:
    part = _labelled(train)
    if validation is None:
        part, held = held_out_fraction(part, VALIDATION_SHARE)
    else:
        held = _labelled(validation, train.classes)
    sealed = Sealed(lambda: _labelled(test(), train.classes))
    return Task(name, train.classes, "top1", part, held, sealed)
