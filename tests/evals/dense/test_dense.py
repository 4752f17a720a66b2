"""What the dense tasks stand on: pairs of files, parts, the encoder as a backbone, joint geometry, batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from byol import networks, schedules
from byol.config import Config, Data, apply
from byol.data import parts
from byol.data.dense.depths import WORDS as DEPTH
from byol.data.dense.masks import WORDS as MASK
from byol.data.dense.pairs import find_pairs
from byol.data.dense.rendered import rendered
from byol.data.parts import Part, Sample, Sealed, of_samples
from byol.data.scenes import render
from byol.data.source import BadImage
from byol.errors import BadData, UsageError
from byol.evals.dense import geometry
from byol.evals.dense.backbone import backbone, channels, dilate, feature_maps, strides
from byol.evals.dense.training import Work, hold, samples_of, stream
from byol.evals.evaluation import open_data, run_protocol
from byol.evals.fit import Recipe
from byol.evals.protocol import Session
from byol.evals.spec import CLASSIFICATION, DENSE, PROTOCOLS, Specs, chosen_protocols
from tests.evals.dense.shared import encoder_of, write_image

TINY = apply(
    Specs(),
    {
        **{"segmentation.steps": 2, "segmentation.batch": 4, "segmentation.lrs": (0.01, 0.1)},
        **{"segmentation.channels": 8, "segmentation.scales": (0.5, 1.0), "segmentation.test_crop": 24},
        **{"depth.steps": 2, "depth.batch": 4, "depth.lrs": (0.1, 1.0), "depth.filters": (8, 8), "depth.shrink": 1.0},
        **{"detection.steps": 2, "detection.batch": 2, "detection.lrs": (0.001, 0.01), "detection.longest": (32, 48)},
        **{"detection.rois": 8, "detection.proposals": (20, 10), "detection.test_longest": 32},
    },
)


def numbered(count: int, bad: tuple[int, ...] = ()) -> Part:
    """Image and target i are 4 x 6 pixels of value i."""

    def read(index: int) -> Sample[torch.Tensor]:
        if index in bad:
            raise BadImage("truncated")
        image = torch.full((3, 4, 6), index, dtype=torch.uint8)
        return Sample(image, image[0])

    return of_samples("numbers", count, read, "image {}".format)


def values(part: Part) -> list[int]:
    return [int(part.read(i).target[0, 0]) for i in range(len(part))]


def test_parts_are_disjoint_and_complete() -> None:
    """Breaks if a sample is in two parts or in none, or parts of parts are numbered wrongly."""
    rest, held = parts.held_out(numbered(50), 12)
    assert len(held) == 12
    assert sorted([*values(rest), *values(held)]) == list(range(50))
    assert values(parts.joined(rest, held)) == list(range(50))
    other = numbered(4)
    assert values(parts.joined(held, other)) == [*values(held), *range(4)]
    assert values(rest.take([3, 1]).take([1])) == [values(rest)[1]]
    assert rest.describe(5) == f"image {values(rest)[5]}"
    assert rest.fingerprint() != held.fingerprint()
    assert rest.fingerprint() == parts.held_out(numbered(50), 12)[0].fingerprint()
    assert [len(part) for part in parts.held_out_fraction(numbered(2), 0.1)] == [1, 1]


@pytest.mark.parametrize("kind", ["masks", "boxes", "depth"])
def test_scenes_have_all_three(kind: Any) -> None:
    """Breaks if a scene comes with another one's target, or test scenes are training scenes."""
    task = rendered(kind, "scenes:20", Data(resolution=32))
    test = task.test.open()
    assert (len(task.train), len(task.validation), len(test)) == (18, 2, 4)
    image, target = test.read(3)
    scene = render(3, size=32, split="test")
    assert image.equal(scene.image)
    if kind == "boxes":
        assert target.boxes.equal(scene.boxes)
        assert target.labels.equal(scene.kinds)
        assert not target.difficult.any()
    else:
        assert target.equal(scene.semantic if kind == "masks" else scene.depth)
    with pytest.raises(UsageError, match="scenes:COUNT"):
        rendered(kind, "scenes:many", Data())


@pytest.mark.parametrize(
    ("words", "image", "target", "part"),
    [
        (MASK, "train/a_1.jpg", "trainannot/a_1.png", "train"),
        (MASK, "images/val/b/a.jpg", "masks/val/b/a.png", "val"),
        (MASK, "Test/Images/a.jpg", "Test/Labels/a.png", "test"),
        (MASK, "a.jpg", "a_mask.png", ""),
        (MASK, "JPEGImages/a.jpg", "SegmentationClass/a.png", ""),
        (DEPTH, "training/frame-1.color.jpg", "training/frame-1.depth.png", "train"),
        (DEPTH, "office/rgb_01.jpg", "office/sync_depth_01.png", ""),
        (DEPTH, "rgb/01.jpg", "depth/01.png", ""),
    ],
)
def test_pairs_are_found(words: Any, image: str, target: str, part: str, tmp_path: Path) -> None:
    """Breaks if a layout in use is no longer understood, or a map is taken for an image."""
    for path in (image, target, image.replace("1", "2"), "notes.txt"):
        if path == "notes.txt":
            (tmp_path / path).write_text("no image")
        else:
            write_image(tmp_path / path)
    assert find_pairs(tmp_path, words, Data()) == {part: [(image, target)]}


def test_words_inside_names_do_not_count() -> None:
    """Breaks if `depth` in the middle of another word, or `gt` in a name, makes an image a map."""
    assert DEPTH.key("train/indepthful.jpg") == ("train/indepthful", False)
    assert MASK.key("train/lengths_unmasked.jpg") == ("train/lengths_unmasked", False)


def test_what_is_no_set_of_pairs(tmp_path: Path) -> None:
    """Breaks if an empty folder, a map without image, or two images for one map give anything but a sentence."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match=r"No pairs of image and mask .* 0 images and 0 masks"):
        find_pairs(tmp_path / "empty", MASK, Data())
    with pytest.raises(UsageError, match="There is no folder"):
        find_pairs(tmp_path / "nowhere", MASK, Data())
    write_image(tmp_path / "set" / "images" / "a.jpg")
    write_image(tmp_path / "set" / "masks" / "a.png")
    write_image(tmp_path / "set" / "masks" / "b.png")
    with pytest.raises(BadData, match=r"The mask .*masks/b.png has no image \(1 such\)"):
        find_pairs(tmp_path / "set", MASK, Data())
    write_image(tmp_path / "set" / "images" / "a.png")
    with pytest.raises(BadData, match=r"a.jpg and images/a.png .* both be the image of a"):
        find_pairs(tmp_path / "set", MASK, Data())


def test_bad_samples_are_left_out_up_to_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if one damaged file stops an evaluation, or a hundred do not; or if streaming gives up at the first."""
    held = hold(numbered(40, bad=(3, 7)), Config())
    assert values(held) == [i for i in range(40) if i not in (3, 7)]
    assert "image 7 (truncated)" in capsys.readouterr().err
    with pytest.raises(BadData, match="40 of 40 images cannot be read"):
        hold(numbered(40, bad=tuple(range(40))), Config())
    seen = samples_of(numbered(4, bad=(2,)), Recipe(1, 4, 0.1, 0.0), 0)
    assert sorted(int(sample.target[0, 0]) for sample in seen) == [0, 1, 3, 3]
    with pytest.raises(BadData, match="in a row"):
        samples_of(numbered(4, bad=(0, 1, 2, 3)), Recipe(1, 4, 0.1, 0.0), 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_workers(workers: int) -> None:
    """Breaks if the order of images depends on who reads them, or an epoch misses one, or an error is wrapped."""
    config = apply(Config(), {"data.workers": workers})
    recipe = Recipe(40, 3, 0.1, 0.0, seed=5)

    def batch(part: Part, recipe: Recipe, step: int) -> torch.Tensor:
        return torch.stack([sample.target[0, 0] for sample in samples_of(part, recipe, step)])

    work: Work[torch.Tensor] = Work(None, batch, None, None, None)  # type: ignore[arg-type]
    found = torch.cat(list(stream(work, numbered(60), recipe, config))).tolist()
    assert sorted(found[:60]) == sorted(found[60:]) == list(range(60))
    assert found[:60] != found[60:]
    torch.manual_seed(0)
    again = torch.cat(list(stream(work, numbered(60), recipe, apply(config, {"data.workers": 0})))).tolist()
    assert found == again
    with pytest.raises(BadData, match=r"^4 images of numbers in a row"):
        list(stream(work, numbered(4, bad=(0, 1, 2, 3)), recipe, config))


def test_rate_falls_in_pieces() -> None:
    """Breaks if a drop comes a step late or is not a tenth: 30,000 steps fall at 21,000 and 27,000."""
    rate = lambda step: schedules.in_pieces(step, base=0.02, drops=(0.7, 0.9), total_steps=30_000)
    assert [rate(s) for s in (0, 20_999, 21_000, 26_999, 27_000)] == pytest.approx([2e-2, 2e-2, 2e-3, 2e-3, 2e-4])


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("depth", [18, 50])
def test_feature_maps_and_strides(depth: int, small: bool) -> None:
    """Breaks if a map is not the network's own, or its stride is another: C4 is a sixteenth, conv5 a thirty-second."""
    network = backbone(encoder_of(depth, 0.0625, small)).eval()
    expected = [1, 1, 2, 4, 8] if small else [2, 4, 8, 16, 32]
    assert strides(network) == expected
    for height, width in ((32, 64), (33, 47)):
        images = torch.rand(1, 3, height, width)
        with torch.no_grad():
            maps = feature_maps(network, images)
            assert torch.equal(maps[-1], network.features(images))
        sides = [(-(-height // stride), -(-width // stride)) for stride in expected]
        assert [tuple(m.shape[2:]) for m in maps] == sides
        assert [m.shape[1] for m in maps] == channels(network)
        assert len(feature_maps(network, images, last=4)) == 4


@pytest.mark.parametrize("padding", ["symmetric", "same"])
@pytest.mark.parametrize(("depth", "small"), [(18, False), (50, False), (50, True)])
def test_dilation_of_every_layer(depth: int, small: bool, padding: str) -> None:
    """Breaks if conv5 keeps a stride, misses a dilation, or any layer before it changes; the weights stay."""
    plain = backbone(encoder_of(depth, 0.0625, small, padding))
    network = backbone(encoder_of(depth, 0.0625, small, padding))
    dilate(network)
    assert strides(network)[-1] == strides(network)[-2] == (4 if small else 16)
    before = dict(plain.named_modules())
    for name, module in network.named_modules():
        if not isinstance(module, torch.nn.Conv2d):
            continue
        inside = name.startswith("layer4")
        wide = inside and module.kernel_size == (3, 3)
        assert module.stride == ((1, 1) if inside else before[name].stride), name
        assert module.dilation == ((2, 2) if wide else (1, 1)), name
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), network.state_dict().values(), strict=True)
    )
    shape = feature_maps(network.eval(), torch.rand(1, 3, 70, 100))[-1].shape[2:]
    assert tuple(shape) == ((18, 25) if small else (5, 7))


def test_dilated_encoder_is_torchvisions() -> None:
    """Breaks if the dilated maps differ from those of torchvision's ResNet with the same convolutions dilated."""
    blocks = [1, 1, 1, 2]
    network = networks.ResNet(networks.Bottleneck, blocks, (256, 512, 1024, 2048), 64).eval()
    kinds = torchvision.models.resnet
    other = kinds.ResNet(kinds.Bottleneck, blocks, replace_stride_with_dilation=[False, False, True]).eval()
    other.fc = torch.nn.Identity()
    other.load_state_dict(network.state_dict())
    first = other.layer4[0].conv2  # torchvision leaves the first one of the group as it was
    first.dilation, first.padding = (2, 2), (2, 2)
    dilate(network)
    images = torch.rand(1, 3, 65, 81)
    with torch.no_grad():
        x = other.maxpool(other.relu(other.bn1(other.conv1(images))))
        expected = other.layer4(other.layer3(other.layer2(other.layer1(x))))
        torch.testing.assert_close(feature_maps(network, images)[-1], expected, rtol=1e-4, atol=1e-5)


def test_only_our_resnets_are_backbones() -> None:
    """Breaks if a timm model ends in a traceback."""
    encoder = encoder_of()
    other = replace(encoder, module=torch.nn.Flatten(), config=apply(encoder.config, {"network.encoder": "timm:vit"}))
    with pytest.raises(UsageError, match="a ResNet of ours, not timm:vit"):
        backbone(other)


def test_image_and_map_are_cut_alike() -> None:
    """Breaks if the map is scaled, cut, placed or flipped otherwise than the image: here both hold the same numbers."""
    blocks = torch.arange(1, 13, dtype=torch.uint8).view(3, 4).mul_(20)
    target = blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)  # (48, 64)
    image = target.expand(3, -1, -1).contiguous()
    fill = geometry.Fill([7 / 255] * 3, 7)
    drawn = geometry.draw(3, 0, 40, (0.5, 2.0))
    assert 0.5 <= drawn.scale.min() < 0.7
    assert 1.8 < drawn.scale.max() <= 2.0
    assert 5 < drawn.flip.sum() < 35
    padded = 0
    for place in range(40):
        cut, mask = geometry.apply(image, target, drawn, place, 40, fill)
        assert cut.shape == (3, 40, 40)
        agree = ((cut[0].int() - mask.int()).abs() <= 2).float().mean()
        assert agree > 0.7  # between two blocks the image is blended, the map is not
        assert set(mask.unique().tolist()) <= {*target.unique().tolist(), 7}
        assert torch.equal(cut[0] == 7, mask == 7)
        padded += bool((mask == 7).any())
    assert 0 < padded < 40
    alone = geometry.draw(3, 0, 2, (0.5, 2.0))
    assert all(torch.equal(a, b[:2]) for a, b in zip(alone, drawn, strict=True))


def test_windows_and_central_crops() -> None:
    """Breaks if a window leaves out the last place, or a map that is narrow one way only is not padded there alone."""
    pixels = torch.arange(5 * 3).view(1, 5, 3).float()
    assert geometry.window(pixels, 0.999, 0.0, 4, [-1.0])[0].tolist() == [
        [*row, -1.0] for row in pixels[0, 1:].tolist()
    ]
    assert geometry.window(pixels, 0.0, 0.999, 4, [-1.0])[0, :, 0].tolist() == [-1.0] * 4
    assert geometry.central(pixels, 3, 9)[0].tolist() == pixels[0, 1:4].tolist()


def test_shrunk_crop_and_its_part_of_the_map() -> None:
    """Breaks if the map's part is not the image's: NYU's 640 x 480 by half and cut to 304 x 228 shows 608 x 456."""
    rows, columns = torch.meshgrid(torch.arange(480.0), torch.arange(640.0), indexing="ij")
    image = (columns / 4).byte().expand(3, -1, -1)
    cut, part = geometry.shrunk(image, columns, 0.5, 228, 304)
    assert cut.shape == (3, 228, 304)
    assert part.shape == (456, 608)
    assert part[0, 0] == 16
    assert part[-1, -1] == 623
    shown = cut[0, 100].float() * 4
    assert (shown - part[200].view(-1, 2).mean(1)).abs().max() < 6
    whole, small = geometry.shrunk(image, rows, 0.25, 513, 513)
    assert whole.shape == (3, 120, 160)
    assert small.shape == (480, 640)


def test_all_means_classification() -> None:
    """Breaks if `all` begins to ask class folders for masks, or a dense protocol has no data or no function."""
    assert chosen_protocols(["all"]) == CLASSIFICATION
    assert chosen_protocols(["all", "depth"]) == [*CLASSIFICATION, "depth"]
    assert sorted(DENSE) == ["depth", "detection", "segmentation"]
    assert set(PROTOCOLS) == {*CLASSIFICATION, *DENSE}


@pytest.mark.parametrize("name", DENSE)
def test_nothing_is_chosen_or_trained_by_the_test_part(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if two test parts give different choices, a step follows the opening, or the encoder is changed."""
    encoder, spec = encoder_of(width=0.05), getattr(TINY, PROTOCOLS[name])
    task = open_data(name, "scenes:12", encoder.config.data, spec)
    before, results, step = encoder.checksum(), [], torch.optim.SGD.step
    test = task.test.again().open()
    for number in range(2):
        sealed: Any = Sealed(lambda n=number: test.take([n]))

        def guarded(*arguments: Any, opened: Any = sealed, **options: Any) -> Any:
            assert not opened.opened, "a step after the test part was opened"
            return step(*arguments, **options)

        monkeypatch.setattr(torch.optim.SGD, "step", guarded)
        session = Session(out=tmp_path / str(number))
        results.append(run_protocol(name, encoder, replace(task, test=sealed), spec, session))
        assert sealed.opened
    assert len(results[0].trials) == 2
    assert results[0].trials == results[1].trials
    assert results[0].chosen == results[1].chosen
    # A detector after two steps finds nothing, but even so says which classes the test part has.
    assert (results[0].test, results[0].extra) != (results[1].test, results[1].extra)
    assert all(np.isfinite(value) for value in results[0].test.values())
    assert encoder.checksum() == before
    assert (tmp_path / "0" / "predictions.png").stat().st_size > 500
