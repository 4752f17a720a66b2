"""The embedded scenes: reproducible anywhere, annotated consistently, and not solvable by colour."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from byol.data.scenes import FAR, KINDS, SPLITS, Scene, Split, render, scenes
from byol.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SIZES = (32, 48, 96)
DIGEST = """
import hashlib, sys
from byol.data.scenes import scenes
for size in map(int, sys.argv[1:]):
    source = scenes(20, size=size, seed=5)
    print(hashlib.sha256(b"".join(source.read(i).numpy().tobytes() for i in range(20))).hexdigest())
"""


@pytest.fixture(scope="module")
def many() -> list[Scene]:
    return [render(i, seed=3) for i in range(400)]


@pytest.fixture(scope="module", params=SIZES)
def sized(request: pytest.FixtureRequest) -> list[Scene]:
    return [render(i, size=request.param, seed=1) for i in range(80)]


def test_reading_order_changes_nothing() -> None:
    # Broken by a generator shared between images.
    source = scenes(30, seed=2)
    forward = [source.read(i) for i in range(30)]
    for i in reversed(range(30)):
        assert torch.equal(source.read(i), forward[i])
        assert torch.equal(render(i, seed=2).image, forward[i])


def test_another_process_reads_the_same() -> None:
    # Broken by hash(), by global random state, or by anything drawn at import.
    here = []
    for size in SIZES:
        source = scenes(20, size=size, seed=5)
        here.append(hashlib.sha256(b"".join(source.read(i).numpy().tobytes() for i in range(20))).hexdigest())
    env = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DIGEST, *map(str, SIZES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == here


def test_the_source_travels_to_spawned_workers() -> None:
    # Broken by a lambda or a closure in the source.
    source = scenes(12, size=40, seed=9, split="test")
    assert torch.equal(pickle.loads(pickle.dumps(source)).read(7), source.read(7))  # noqa: S301


def test_seeds_splits_and_indices_share_no_image() -> None:
    # Broken by seed + index arithmetic (seed 0 index 1 = seed 1 index 0) and by a split that is a label only.
    images = [
        render(i, seed=seed, split=split).image.numpy().tobytes()
        for seed in range(4)
        for split in SPLITS
        for i in range(40)
    ]
    assert len(set(images)) == len(images)


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_balanced_irregular_and_those_of_the_images(split: Split) -> None:
    source = scenes(1000, seed=4, split=split)
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.shape == (1000,)
    assert np.bincount(source.labels).tolist() == [100] * 10
    # No order to exploit: the label of i + 1 given that of i, or given i modulo ten, is close to chance.
    assert np.mean(source.labels[1:] == (source.labels[:-1] + 1) % 10) < 0.2
    assert np.mean(source.labels == np.arange(1000) % 10) < 0.2
    assert [render(i, seed=4, split=split).label for i in range(50)] == source.labels[:50].tolist()


def test_labels_do_not_depend_on_the_count() -> None:
    long, short = scenes(57, seed=1).labels, scenes(13, seed=1).labels
    assert long is not None
    assert short is not None
    assert long[:13].tolist() == short.tolist()


def test_the_source_names_itself() -> None:
    source = scenes(200)
    assert (source.name, len(source), source.classes) == ("scenes", 200, KINDS)
    assert source.describe(123) == "scenes/000123"
    assert len(set(KINDS)) == 10


def test_shapes_types_and_colours(sized: list[Scene]) -> None:
    size = sized[0].image.shape[-1]
    for scene in sized:
        k = len(scene.kinds)
        assert 1 <= k <= 3
        assert (scene.image.dtype, scene.image.shape) == (torch.uint8, (3, size, size))
        assert (scene.boxes.dtype, scene.boxes.shape) == (torch.float32, (k, 4))
        assert (scene.masks.dtype, scene.masks.shape) == (torch.bool, (k, size, size))
        assert (scene.semantic.dtype, scene.semantic.shape) == (torch.uint8, (size, size))
        assert (scene.depth.dtype, scene.depth.shape) == (torch.float32, (size, size))
        assert scene.kinds.dtype == torch.int64
        assert scene.image.float().std() > 5


def test_boxes_are_tight_around_the_masks(sized: list[Scene]) -> None:
    # Broken by an inclusive right edge, by swapped axes, or by boxes of the unoccluded object.
    for scene in sized:
        for box, mask in zip(scene.boxes.int().tolist(), scene.masks, strict=True):
            x0, y0, x1, y1 = box
            assert mask.sum() == mask[y0:y1, x0:x1].sum() > 0
            assert mask[y0].any()
            assert mask[y1 - 1].any()
            assert mask[:, x0].any()
            assert mask[:, x1 - 1].any()


def test_masks_are_disjoint_and_spell_the_semantic_map(sized: list[Scene]) -> None:
    for scene in sized:
        assert scene.masks.sum(0).max() <= 1
        expected = torch.zeros_like(scene.semantic)
        for kind, mask in zip(scene.kinds.tolist(), scene.masks, strict=True):
            expected[mask] = 1 + kind
        assert torch.equal(expected, scene.semantic)


def test_the_label_is_the_kind_of_the_largest_object(many: list[Scene]) -> None:
    # Broken by an extra object that outgrows or hides the main one.
    for scene in many:
        areas = scene.masks.sum((1, 2))
        assert int(scene.kinds[areas.argmax()]) == scene.label == int(scene.kinds[0])
        assert scene.label not in scene.kinds[1:].tolist()
    assert {len(scene.kinds) for scene in many} == {1, 2, 3}


def test_the_main_object_has_the_size_it_should(many: list[Scene]) -> None:
    sides = torch.stack([(scene.boxes[0, 2:] - scene.boxes[0, :2]).max() for scene in many]) / 32
    assert sides.min() > 0.25  # a squashed star of 45 %, partly hidden
    assert sides.max() > 0.85
    assert 0.5 < sides.median() < 0.8


def test_objects_are_nearer_than_the_background_behind_them(sized: list[Scene]) -> None:
    """The background is a plane: fit it to the pixels seen beyond FAR and extend it behind the objects."""
    size = sized[0].depth.shape[0]
    y, x = np.mgrid[:size, :size]
    design = np.stack([x, y, np.ones_like(x)], -1).astype(np.float64)
    for scene in sized:
        depth, objects = scene.depth.numpy().astype(np.float64), (scene.semantic > 0).numpy()
        assert np.isfinite(depth).all()
        assert depth.min() > 0.5
        beyond = depth > FAR
        assert not (beyond & objects).any()
        plane, *_ = np.linalg.lstsq(design[beyond], depth[beyond], rcond=None)
        assert np.abs(design[beyond] @ plane - depth[beyond]).max() < 1e-3
        assert (depth[objects] < (design @ plane)[objects]).all()


def test_nearer_objects_are_larger_and_brighter_on_average(many: list[Scene]) -> None:
    # Broken by a distance drawn without regard to the radius, or by light that does not fall with depth.
    near, area = zip(*((float(s.depth[mask].mean()), float(mask.sum())) for s in many for mask in s.masks), strict=True)
    assert np.corrcoef(near, area)[0, 1] < -0.3
    objects = np.mean([float(s.image[:, s.semantic > 0].float().mean()) for s in many])
    background = np.mean([float(s.image[:, s.depth > FAR].float().mean()) for s in many])
    assert objects > background * 1.1


def test_what_stands_in_front_is_common_but_hides_at_most_a_quarter(
    many: list[Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Broken by an occluder of fixed width, which would cover most of a thin crescent.
    module = importlib.import_module("byol.data.scenes")  # as an attribute of the package the name is the function
    monkeypatch.setattr(module, "_keep", lambda layers, label: layers[:1])
    alone = [render(i, seed=3) for i in range(len(many))]
    hidden = np.array([1 - float(s.masks[0].sum() / a.masks[0].sum()) for s, a in zip(many, alone, strict=True)])
    assert hidden.max() <= 0.25
    assert 0.3 < np.mean(hidden > 0) < 0.8
    plain = [bool(((scene.depth < FAR) & (scene.semantic == 0)).any()) for scene in many]
    assert 0.25 < np.mean(plain) < 0.6


@pytest.mark.parametrize("where", ["image", "object"])
def test_mean_colour_says_nothing_about_the_class(where: str) -> None:
    # Broken by a palette or a background that depends on the kind. Chance is 0.1, its deviation here 0.011.
    def mean(scene: Scene) -> np.ndarray:
        pixels = scene.image[:, scene.masks[0]] if where == "object" else scene.image.flatten(1)
        return pixels.float().mean(1).numpy()

    train, test = ([render(i, seed=6, split=split) for i in range(800)] for split in SPLITS)
    known, truth = (np.array([scene.label for scene in part]) for part in (train, test))
    colours = np.stack([mean(scene) for scene in train])
    centroids = np.stack([colours[known == kind].mean(0) for kind in range(10)])
    guess = [((mean(scene) - centroids) ** 2).sum(1).argmin() for scene in test]
    assert np.mean(guess == truth) < 0.15


def test_another_size_shows_the_same_scene() -> None:
    # Broken by drawing anything per pixel before the grain.
    same = 0
    for i in range(40):
        small, large = render(i, size=32).image.float(), render(i, size=96).image.float()
        same += int((torch.nn.functional.avg_pool2d(large, 3) - small).abs().mean() < 8)
    assert same >= 36


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"size": 8}, "at least 16"), ({"seed": -1}, "negative"), ({"split": "tset"}, "Did you mean test")],
)
def test_mistakes_are_explained(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        scenes(10, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        render(0, **arguments)  # type: ignore[arg-type]
