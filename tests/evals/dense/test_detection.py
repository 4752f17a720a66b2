"""Detection: the C4 network, what frozen means, annotations good and bad, and that it learns from rendered scenes."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from byol import checkpoint, networks, views
from byol.config import Config, Data, apply
from byol.data.dense.boxes import open_boxes, read_annotation, voc
from byol.data.parts import Boxes, Part, Sample, Sealed, Task, of_samples
from byol.data.scenes import render
from byol.errors import BadData, UsageError
from byol.evals import record
from byol.evals.dense import detection
from byol.evals.dense.average_precision import Found, average_precisions, mean_precision
from byol.evals.dense.faster_rcnn import FasterRCNN
from byol.evals.encoder import Encoder, checksum, open_encoder
from byol.evals.evaluation import evaluate
from byol.evals.fit import Recipe
from byol.evals.protocol import Session
from byol.evals.spec import Detection, Specs
from byol.run.machine import choose

BCCD = Path(__file__).resolve().parents[4] / "shared" / "data" / "bccd-voc.zip"
SMALL = Detection(
    steps=4,
    batch=2,
    longest=(32, 32),
    test_longest=32,
    anchors=(2.0, 4.0, 7.0),
    ratios=(1.0,),
    proposals=(50, 30),
    rois=16,
    roi_size=6,
)


def encoder_of(width: float = 0.05, **network: Any) -> Encoder:
    """An untrained encoder whose batch statistics are those of rendered scenes."""
    settings = {"encoder": "resnet18", "width": width, "small_images": True, **network}
    fixed = {"data.resolution": 32, "run.precision": "float32", "data.workers": 0}
    config = apply(Config(), {f"network.{name}": value for name, value in settings.items()} | fixed)
    torch.manual_seed(0)
    module = networks.encoder(config.network).train()
    images = torch.stack([render(index, size=32).image for index in range(32)]).float() / 255
    with torch.no_grad():
        for _ in range(20):
            module(views.normalize(images, config.views.mean, config.views.std))
    return Encoder("tiny", module.eval(), config, choose(config))


def chosen(samples: Part, count: int, kinds: int) -> Part:
    """Those of the first `count` scenes that show one of a few kinds, with the boxes of these alone."""
    kept = []
    for image, target in map(samples.read, range(count)):
        known = target.labels < kinds
        if known[0]:
            kept.append(Sample(image, Boxes(*(value[known] for value in target))))
    return of_samples("few kinds", len(kept), kept.__getitem__, str)


def few_kinds(kinds: int = 3) -> Task:
    task = open_boxes("scenes:1000", Data(resolution=32))
    train, test = chosen(task.train, 700, kinds), chosen(task.test.open(), 200, kinds)
    parts = (train.take(range(20, len(train))), train.take(range(20)))
    return Task("few kinds", task.classes[:kinds], "AP50", *parts, Sealed(lambda: test))


@pytest.mark.parametrize(
    ("network", "stride"),
    [
        ({"encoder": "resnet18"}, 4),
        ({"encoder": "resnet18", "small_images": False}, 16),
        ({"encoder": "resnet50", "small_images": False}, 16),
        ({"encoder": "resnet50", "small_images": False, "padding": "same"}, 16),
    ],
)
def test_conv4_and_conv5_are_the_encoders(network: dict[str, Any], stride: int) -> None:
    """Breaks if features end at another group, the stride or the anchors are wrong, or the head is not conv5's mean."""
    encoder = encoder_of(**network)
    model = detection.detector(encoder, 3, SMALL, 0).eval()
    torch.manual_seed(1)
    pixels = model.pixels([torch.rand(3, 50, 70), torch.rand(3, 64, 33)])
    height, width = 64, -(-70 // stride) * stride
    assert pixels.images.shape == (2, 3, height, width)
    assert pixels.sizes == [(50, 70), (64, 33)]
    assert not pixels.images[0, :, 50:].any()
    with torch.no_grad():
        found = model.features(pixels.images)
        body: Any = encoder.module
        x = body.maxpool(torch.relu(body.bn1(body.conv1(pixels.images))))
        x = body.layer3(body.layer2(body.layer1(x)))
        assert found.shape[2:] == (height // stride, width // stride)
        assert torch.equal(found, x)
        # All of conv4 as one region is the encoder's own representation.
        assert torch.allclose(model.heads.box_head(x), body(pixels.images), atol=1e-5)
    anchors = model.proposals.anchor_generator
    assert anchors.sizes == (tuple(stride * multiple for multiple in SMALL.anchors),)
    grid = anchors(detection_images(pixels), [found])[0]
    centres = (grid[:, :2] + grid[:, 2:]) / 2
    assert len(grid) == 3 * found.shape[2] * found.shape[3]
    assert centres.max(0).values.tolist() == [width - stride, height - stride]
    assert model.heads.box_roi_pool.scales == [1 / stride]


def detection_images(pixels: Any) -> Any:
    from torchvision.models.detection.image_list import ImageList

    return ImageList(pixels.images, pixels.sizes)


@pytest.mark.parametrize("frozen", ["nothing", "backbone", "encoder"])
def test_what_is_frozen_stays_byte_for_byte(frozen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if batch statistics or normalization weights move, or a frozen convolution, or a free one does not."""
    encoder, models = encoder_of(), list[FasterRCNN]()
    made = detection.detector
    monkeypatch.setattr(detection, "detector", lambda *given: models.append(made(*given)) or models[-1])
    before, original = {k: v.clone() for k, v in encoder.module.state_dict().items()}, encoder.checksum()
    task = open_boxes("scenes:30", Data(resolution=32))
    detection.evaluate(encoder, task, replace(SMALL, frozen=frozen, lrs=(0.01,)), Session())
    assert encoder.checksum() == original
    after = models[-1].network.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    convolutions = {name for name, value in before.items() if value.ndim == 4}
    conv5 = {name for name in convolutions if name.startswith("layer4.")}
    assert moved == {"nothing": convolutions, "backbone": conv5, "encoder": set()}[frozen]


def test_it_learns_to_detect(tmp_path: Path) -> None:
    """Breaks if boxes, labels, losses or the schedule are wrong: far above a constant and an untrained detector."""
    encoder, task = encoder_of(width=0.125), few_kinds()
    spec = replace(SMALL, steps=500, batch=4, lrs=(0.006,), drops=(0.9,), warmup_steps=20)
    result = detection.evaluate(encoder, task, spec, Session(out=tmp_path))
    test = task.test.again().open()
    truth = [test.read(index).target for index in range(len(test))]
    model = detection.detector(encoder, 3, spec, 0).eval()
    seen = detection.predictions(model, test, 32, encoder, "untrained")
    untrained = mean_precision(detection.precisions(seen, 3)).area
    train = [task.train.read(index).target for index in range(len(task.train))]
    usual = torch.stack([target.boxes[0] for target in train]).mean(0).expand(3, 4)
    always = [Found(usual, torch.arange(3), torch.ones(3))] * len(truth)
    constant = mean_precision(average_precisions(always, truth, 3)).area
    assert result.test["AP50"] > 2 * constant > 0.2
    assert result.test["AP50"] > untrained + 0.3
    with Image.open(tmp_path / "predictions.png") as picture:
        assert picture.size[0] > 2 * detection.TILE


def test_boxes_grow_with_their_image() -> None:
    """Breaks if an image and its boxes are scaled apart: a bright square stays inside its box at every size."""
    image = torch.zeros(3, 30, 50, dtype=torch.uint8)
    image[:, 6:18, 10:40] = 255
    target = Boxes(
        torch.tensor([[10.0, 6, 40, 18]]), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)
    )
    for longest in (100, 64, 25):
        scaled = detection.scaled(Sample(image, target), longest)
        assert max(scaled.image.shape[1:]) == longest
        rows, columns = (torch.where((scaled.image[0] > 127).any(axis))[0] for axis in (1, 0))
        square = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert torch.allclose(scaled.target.boxes[0], torch.tensor(square).float(), atol=0.6)


def test_the_same_seed_gives_the_same_batches_and_result() -> None:
    """Breaks if anything is drawn from elsewhere than (seed, step), torchvision's sampling included."""
    encoder, task = encoder_of(), open_boxes("scenes:30", Data(resolution=32))
    recipe = Recipe(5, 3, 0.0, 0.0, seed=4)
    batches = [detection.make_batch((20, 60), task.train, recipe, 2) for _ in range(2)]
    assert batches[0].seed == batches[1].seed
    sides = [max(sample.image.shape[1:]) for sample in batches[0].samples]
    assert sides == [max(sample.image.shape[1:]) for sample in batches[1].samples]
    assert len(set(sides)) > 1
    assert all(20 <= side <= 60 for side in sides)
    losses = []
    for noise in (1, 2):
        model = detection.detector(encoder, 10, SMALL, 0).train()
        torch.manual_seed(noise)
        losses.append(detection._loss(encoder, model, batches[0]).item())
        assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(noise)).item()
    assert losses[0] == losses[1]


@pytest.mark.parametrize("precision", ["float32", "bf16", "float64"])
def test_odd_images_in_every_precision(precision: str) -> None:
    """Breaks if a sliver, an image without objects or a number type is not handled in training or test."""
    encoder = encoder_of(small_images=False)
    config = apply(encoder.config, {"run.precision": precision})
    encoder = replace(encoder, config=config, place=choose(config))
    none = Boxes(torch.zeros(0, 4), torch.zeros(0).long(), torch.zeros(0).bool())
    one = Boxes(torch.tensor([[1.0, 4, 6, 40]]), torch.tensor([1]), torch.tensor([False]))
    shapes = [(3, 1, 200), (3, 50, 7), (3, 2, 2)]
    kept = [Sample(torch.full(s, 99, dtype=torch.uint8), t) for s, t in zip(shapes, (none, one, none), strict=True)]
    samples = of_samples("odd", 3, kept.__getitem__, str)
    model = detection.detector(encoder, 2, SMALL, 0).train().to(**encoder.place.placement(config))
    batch = detection.make_batch((20, 70), samples, Recipe(1, 3, 0.0, 0.0), 0)
    with encoder.place.autocast():
        loss = detection._loss(encoder, model, batch)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.heads.score_thresh = 0.0
    seen = list(detection.predictions(model.eval(), samples, 40, encoder, "odd"))
    for (image, _), found in seen:
        assert len(found.boxes)
        assert found.scores.dtype == torch.float32
        assert (found.boxes >= 0).all()
        assert (found.boxes <= torch.tensor([*image.shape[:0:-1]] * 2) + 1e-3).all()


ANNOTATION = "<annotation>{}</annotation>"
OBJECT = (
    "<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{0}</xmin><ymin>{1}</ymin>"
    "<xmax>{2}</xmax><ymax>{3}</ymax></bndbox>{more}</object>"
)


def thing(*corners: Any, name: str = "cup", difficult: int = 0, more: str = "") -> str:
    return OBJECT.format(*corners, name=name, difficult=difficult, more=more)


def write_tree(root: Path, annotations: list[str], lists: dict[str, list[int]] | None = None) -> Path:
    """Images img0, img1, … of 40 × 30 pixels with an annotation of these objects each."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    random = np.random.default_rng(0)
    for index, objects in enumerate(annotations):
        pixels = random.integers(0, 255, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "JPEGImages" / f"img{index}.jpg")
        (root / "Annotations" / f"img{index}.xml").write_text(ANNOTATION.format(objects))
    for name, images in (lists or {}).items():
        text = "".join(f"img{index}\n" for index in images)
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text(text)
    return root


LISTS = {"train": [0, 1, 2], "val": [3], "test": [4, 5]}
PLAIN = [thing(5, 5, 20, 20)] * 6


def test_annotations_become_boxes_between_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if VOC's first pixel is not 0, boxes are not cut to the image, or bad ones are not dropped and counted."""
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    first = "".join(
        [
            thing(1, 1, 40, 30),
            thing(11, 6, 30.5, 25, name="pen", difficult=1, more=part),
            thing(-20, 10, 10, 60),  # cut
            thing(30, 10, 20, 20),  # inverted
            thing(100, 100, 120, 120),  # outside
        ]
    )
    task = voc(
        write_tree(
            tmp_path / "tree", [first, "", *PLAIN[:2], thing(9, 9, 9, 9) + thing(1, 1, 5, 5, name="ufo"), ""], LISTS
        ),
        Data(),
    )
    assert task.classes == ("cup", "pen")
    target = task.train.read(0).target
    assert target.boxes.tolist() == [[0, 0, 40, 30], [10, 5, 30.5, 25], [0, 9, 10, 30]]
    assert target.labels.tolist() == [0, 1, 0]
    assert target.difficult.tolist() == [False, True, False]
    assert task.train.read(1).target.boxes.shape == (0, 4)
    said = capsys.readouterr().err
    assert re.search(r"cut to it: 1;.*outside: 2\.", said)
    test = task.test.open()
    assert test.read(0).target.boxes.tolist() == [[8, 8, 9, 9]]
    assert re.search(r"class \('ufo'\): 1\.", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("lists", "sizes"),
    [
        (LISTS, (3, 1, 2)),
        ({"trainval": [0, 1, 2, 3], "test": [4, 5]}, (3, 1, 2)),
        ({"train": [0, 1, 2, 3], "val": [4, 5]}, (3, 1, 2)),
        ({"train": [0, 1, 2, 3, 4]}, (3, 1, 1)),
        ({}, (4, 1, 1)),
    ],
)
def test_the_three_parts(tmp_path: Path, lists: dict[str, list[int]], sizes: tuple[int, int, int]) -> None:
    """Breaks if lists are not kept to, parts overlap, or val is not the test where there is no other."""
    task = voc(write_tree(tmp_path / "VOC2007", PLAIN, lists).parent, Data())
    parts = (task.train, task.validation, task.test.open())
    assert tuple(len(part) for part in parts) == sizes
    names = [part.describe(index) for part in parts for index in range(len(part))]
    assert len(set(names)) == len(names)
    if "test" in lists:
        assert names[-2:] == ["img4.jpg", "img5.jpg"]
    if lists.keys() == {"train", "val"}:
        assert names[-2:] == ["img4.jpg", "img5.jpg"]


BOMB = (
    '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><annotation><object><name>&y;</name></object></annotation>'
)
DEEP = "<a>" * 5000 + "</a>" * 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "document type"),
        (DEEP, "too deeply nested"),
        ("<annotation><object>", "no element found|unclosed"),
        ("", "no element found"),
        ("{}", "not well-formed"),
        ("<annotation>" + " " * 2_100_000, "larger than 2 MB"),
        (ANNOTATION.format("<object><name>cup</name></object>"), "'cup' has no bndbox"),
        (ANNOTATION.format(thing(1, 1, 5, 5, name=" ")), "has no name"),
        (ANNOTATION.format(thing(1, "five", 5, 5)), "ymin is 'five', not a number"),
        (ANNOTATION.format(thing(1, "nan", 5, 5)), "ymin is 'nan', not a number"),
        (ANNOTATION.format(thing(1, 1, 5, 5, difficult="maybe")), "difficult is 'maybe'"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_annotation_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    """Breaks if entities are expanded, limits are gone, or something else than a sentence with the file comes out."""
    path = tmp_path / "bad.xml"
    path.write_text(text)
    with pytest.raises(BadData, match=words) as caught:
        read_annotation(path)
    assert "bad.xml" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (remove("Annotations/img4.xml"), "img4.jpg has no Annotations/img4.xml"),
        (remove("JPEGImages/img0.jpg"), "names img0"),
        (lambda root: (root / "ImageSets/Main/val.txt").write_text("img0\n"), "name img0 for more than one"),
        (lambda root: (root / "ImageSets/Main/train.txt").write_text("../../secret\n" * 3), "1 training images"),
        (lambda root: (root / "Annotations/img5.xml").write_text("<annotation>"), "img5.xml"),
    ],
)
def test_a_bad_tree_is_one_sentence_before_any_training(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    """Breaks if a missing or damaged file, also of the test part, is found late or gives a traceback."""
    root = write_tree(tmp_path / "tree", PLAIN, LISTS)
    spoil(root)
    with pytest.raises(BadData, match=re.escape(words)):
        voc(root, Data())


def test_no_tree_at_all(tmp_path: Path) -> None:
    """Breaks if a wrong folder or name is not said with what is expected."""
    for name in (str(tmp_path), "nowhere", "voc2007"):
        with pytest.raises(UsageError, match="JPEGImages"):
            open_boxes(name, Data(root=str(tmp_path)))


def test_a_tree_from_the_command_to_the_result_file(tmp_path: Path) -> None:
    """Breaks if empty images, choosing on validation, seeds, result file or picture fail in the whole evaluation."""
    encoder = encoder_of()
    file = tmp_path / checkpoint.ENCODER
    checkpoint.save_encoder(file, encoder.module, encoder.config, {"step": 1})
    objects = [thing(5, 5, 20, 20), "", thing(1, 1, 40, 30, name="pen"), *PLAIN[:2], ""]
    tree = write_tree(tmp_path / "cups", objects, LISTS)
    spec = replace(SMALL, steps=2, lrs=(0.001, 0.01), longest=(24, 40), test_longest=40)
    found = evaluate(
        file,
        str(tree),
        ["detection"],
        specs=Specs(detection=spec),
        seeds=(0, 1),
        out=tmp_path / "out",
        settings={"run.precision": "float32", "data.workers": 0},
        compare=False,
    )
    stored = json.loads((tmp_path / "out" / "detection" / "result.json").read_text())
    assert record.read(tmp_path / "out" / "detection" / record.NAME) == found["detection"]
    assert stored["data"]["metric"] == "AP50"
    assert set(stored["test"]) == {"AP50", "AP50 (11 points)"}
    assert [len(run["choices"]) for run in stored["runs"]] == [2, 2]
    assert stored["runs"][0]["extra"]["AP50"]["pen"] == {"AP50": None, "AP50 (11 points)": None}
    assert (tmp_path / "out" / "detection" / "seed1" / "predictions.png").exists()
    assert checksum(open_encoder(file).module) == encoder.checksum()


def test_what_was_tried_counts_for_the_same_spec_alone(tmp_path: Path) -> None:
    """Breaks if a validation score of one detector is taken for that of another, or is computed twice."""
    encoder, task = encoder_of(), open_boxes("scenes:30", Data(resolution=32))
    spec = replace(SMALL, steps=1, lrs=(0.001, 0.01))
    for changed in (spec, replace(spec, frozen="encoder"), replace(spec, lrs=(0.001, 0.01, 0.1))):
        detection.evaluate(encoder, task.again(), changed, Session(out=tmp_path))
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2 + 2 + 1


def test_a_test_part_without_objects_is_said(tmp_path: Path) -> None:
    """Breaks if an average precision of nothing is reported as a figure."""
    tree = write_tree(tmp_path / "tree", [*PLAIN[:4], "", ""], LISTS)
    with pytest.raises(BadData, match="none of the 2 test images"):
        detection.evaluate(encoder_of(), voc(tree, Data()), replace(SMALL, steps=1), Session())


@pytest.mark.skipif(not BCCD.exists(), reason="needs bccd-voc.zip, which may not be kept here, in ../shared/data")
def test_a_real_tree(tmp_path: Path) -> None:
    """Breaks if a published tree is not understood: sizes and objects as counted in its files."""
    with zipfile.ZipFile(BCCD) as archive:
        archive.extractall(tmp_path)
    task = voc(tmp_path, Data())
    assert (len(task.train), len(task.validation)) == (205, 87)
    assert task.classes == ("Platelets", "RBC", "WBC")
    parts = (task.train, task.validation, task.test.open())
    text = "".join(path.read_text() for path in (tmp_path / "BCCD" / "Annotations").glob("*.xml"))
    there = sum(len(part.read(index).target.labels) for part in parts for index in range(len(part)))
    assert there == text.count("<object>")
