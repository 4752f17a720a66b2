"""The doctor finds what was planted, its list is what pretraining leaves out, and views are what training sees."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from byol import data, neighbours, views
from byol.config import Config, Data, apply
from byol.errors import BadData, UsageError
from byol.explore import doctor, sheets
from byol.explore.examine import Look, examine, fingerprint, is_grey
from byol.run import painting
from byol.run.directory import Request, open_run
from byol.run.record import read


def picture(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """A smooth colourful picture."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def bomb(path: Path) -> None:
    """A PNG of 400 megapixels by its header, in some hundred bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty sound pictures and one of every trouble."""
    root = tmp_path_factory.mktemp("zoo") / "images"
    root.mkdir()
    for number in range(20):
        picture(number).save(root / f"sound{number:02d}.jpg", quality=95)
    (root / "twin.jpg").write_bytes((root / "sound00.jpg").read_bytes())
    picture(1).resize((60, 50)).save(root / "resized.jpg", quality=60)
    picture(2).point(lambda v: min(255, v + 12)).save(root / "brighter.png")
    picture(30).convert("L").save(root / "grey.jpg")
    picture(31).convert("L").convert("RGB").save(root / "grey-in-colour.jpg", quality=70)
    picture(32).convert("CMYK").save(root / "cmyk.jpg")
    Image.fromarray((np.random.default_rng(3).random((40, 40)) * 65535).astype(np.uint16)).save(root / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(33).save(root / "turned.jpg", exif=exif)
    picture(34).save(root / "moving.gif", save_all=True, append_images=[picture(35)])
    picture(36, (8, 40)).save(root / "tiny.png")
    whole = (root / "sound03.jpg").read_bytes()
    (root / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "empty.jpg").write_bytes(b"")
    (root / "text.jpg").write_text("hello")
    bomb(root / "bomb.png")
    return root


def test_every_planted_trouble_is_found(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a kind is missed, a sound image is blamed, or the summary leaves a finding out."""
    found = doctor.doctor(doctor.Request(str(zoo), tmp_path / "out", "cifar10-cpu", speed=False))
    assert (found.images, found.readable) == (34, 30)
    assert found.unreadable == {
        "bomb.png": "400 megapixels, over the limit of 64",
        "cut.jpg": "truncated",
        "empty.jpg": "empty file",
        "text.jpg": "not an image",
    }
    assert found.formats == {"JPEG": 26, "PNG": 3, "GIF": 1}
    assert found.tiny == ["tiny.png"]
    assert found.duplicates == [["sound00.jpg", "twin.jpg"]]
    assert sorted(map(sorted, found.near_duplicates)) == [
        ["brighter.png", "sound02.jpg"],
        ["resized.jpg", "sound01.jpg"],
    ]
    assert found.kinds["grey"] == ["deep.png", "grey-in-colour.jpg", "grey.jpg"]
    assert (found.kinds["CMYK"], found.kinds["deep"]) == (["cmyk.jpg"], ["deep.png"])
    assert (found.kinds["rotated"], found.kinds["animated"]) == (["turned.jpg"], ["moving.gif"])
    assert found.short_side == {"smallest": 8, "median": 80, "largest": 80}
    assert read(doctor.Findings, tmp_path / "out" / "doctor.json") == found
    printed = capsys.readouterr().out
    for text in (
        "34 images",
        "4: ",
        "1 truncated",
        "1 too large",
        "under 16 px",
        "CMYK",
        "turned by EXIF",
        "--data.exclude",
    ):
        assert text in printed


def test_pretraining_takes_the_list(zoo: Path, tmp_path: Path, tiny: dict[str, object]) -> None:
    """Breaks if what the list names is trained on, or what it does not name is left out."""
    doctor.doctor(doctor.Request(str(zoo), tmp_path, "cifar10-cpu", speed=False))
    listed = tmp_path / "bad-files.txt"
    names = {line.split("\t")[0] for line in listed.read_text().splitlines()}
    assert names == {"bomb.png", "cut.jpg", "empty.jpg", "text.jpg", "tiny.png", "twin.jpg"}
    request = Request.make(zoo, tmp_path / "run", "cifar10-cpu", {**tiny, "data.exclude": str(listed)}, None)
    with open_run(request, overwrite=False) as setup:
        images = setup.images
        assert (len(images.train) + len(images.held_out), setup.bad.seen) == (28, {})
        assert not names & {images.source.describe(i) for i in range(len(images.source))}


def test_excluded_images_by_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if labels or files slip against each other, or a wrong list passes in silence."""
    (tmp_path / "list.txt").write_text("class0/000.jpg\tsame as another\nclass1/003.jpg\nno/such.jpg\n")
    every = data.open_source(str(folder), Data())
    some = data.open_source(str(folder), Data(exclude=str(tmp_path / "list.txt")))
    kept = [i for i in range(24) if every.describe(i) not in ("class0/000.jpg", "class1/003.jpg")]
    assert [some.describe(i) for i in range(len(some))] == [every.describe(i) for i in kept]
    assert some.labels is not None
    assert every.labels is not None
    assert some.labels.tolist() == every.labels[kept].tolist()
    assert torch.equal(some.read(3), every.read(kept[3]))
    assert "1 of the 3 names" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"missing\.txt"):
        data.open_source(str(folder), Data(exclude="missing.txt"))
    (tmp_path / "list.txt").write_text("".join(f"{every.describe(i)}\n" for i in range(24)))
    with pytest.raises(BadData, match="lists all 24"):
        data.open_source(str(folder), Data(exclude=str(tmp_path / "list.txt")))


def test_fingerprints_tell_twins_from_strangers() -> None:
    """Breaks if compressing, resizing or brightening changes many bits, or two pictures share most of theirs."""

    def bits(image: Image.Image) -> np.ndarray:
        return fingerprint(torch.from_numpy(np.array(image)).permute(2, 0, 1))[0]

    changes = [lambda p: p.resize((50, 40)), lambda p: p.resize((300, 250)), lambda p: p.point(lambda v: v * 0.8)]
    for seed in range(10):
        for change in changes:
            assert np.sum(bits(picture(seed)) != bits(change(picture(seed)))) <= doctor.NEAR_BITS
    others = [np.sum(bits(picture(a)) != bits(picture(b))) for a in range(20) for b in range(a)]
    assert min(others) > doctor.NEAR_BITS


def test_near_duplicates_by_all_pairs() -> None:
    """Breaks if blocks lose a pair: random bits with planted twins against a loop over all pairs."""
    random = np.random.default_rng(0)
    bits = random.random((1300, 128)) < 0.5
    for one, two in ((0, 1299), (511, 512), (3, 4), (4, 900)):
        bits[two] = bits[one]
        bits[two, random.choice(128, 10, replace=False)] ^= True
    colours = np.zeros((8, 8, 3), np.uint8)
    good = [Look(i, "", digest=bytes([i % 256, i // 256]), bits=b, colours=colours) for i, b in enumerate(bits)]
    packed = [int("".join("1" if bit else "0" for bit in row), 2) for row in bits]
    wanted = {(a, b) for b in range(1300) for a in range(b) if (packed[a] ^ packed[b]).bit_count() <= doctor.NEAR_BITS}
    lowest = np.arange(1300)
    for a, b in sorted(wanted):
        lowest[lowest == lowest[b]] = lowest[a]
    assert doctor.near_groups(good, []) == neighbours.groups(lowest)
    assert [3, 4, 900] in doctor.near_groups(good, [])
    other = [look._replace(colours=np.full((8, 8, 3), 40 * (look.number % 2), np.uint8)) for look in good]
    assert [3, 4, 900] not in doctor.near_groups(other, [])


def test_grey_images_are_seen_by_their_pixels() -> None:
    """Breaks if JPEG's noise makes a grey image colourful, or a small coloured thing goes unseen."""
    grey = torch.randint(0, 255, (1, 64, 64), dtype=torch.uint8).expand(3, -1, -1).clone()
    assert is_grey(grey)
    grey[0, 10:20, 10:20] = 255
    grey[1, 10:20, 10:20] = 0
    assert not is_grey(grey)


def test_warnings_about_views() -> None:
    """Breaks if crops too small to show anything, or hue on grey images, pass without a word."""
    small = [Look(i, "", height=48, width=48) for i in range(200)]
    config = apply(Config(), {"data.resolution": 32, "optim.batch": 64})
    share = doctor.small_crops(small, config)
    # a crop's short side is under 16 px when its area is under about 16²/48² = 0.11 of U(0.08, 1), more when oblong
    assert 0.03 < share < 0.12
    tight = apply(config, {"views.t.area_min": 0.2, "views.t_prime.area_min": 0.2})
    assert doctor.small_crops(small, tight) < share
    assert doctor.small_crops([look._replace(height=500, width=500) for look in small], config) == 0
    grey = [Look(i, "", height=200, width=200, marks=("grey",)) for i in range(100)]
    assert any("grey" in text for text in doctor.warnings(grey, config))
    colours = {f"views.{v}.{f}": 0 for v in ("t", "t_prime") for f in ("hue", "saturation", "grayscale")}
    assert not any("grey" in text for text in doctor.warnings(grey, apply(config, colours)))
    assert any("taps" in text for text in doctor.warnings(grey, config))
    assert any("fewer" in text for text in doctor.warnings(grey[:10], config))


def speed(request: doctor.Request) -> dict[str, Any]:
    return doctor.doctor(request).speed or {}


def test_speed_names_the_bottleneck(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if loading that is slowed down is not called the bottleneck, or the batch does not follow memory."""
    monkeypatch.setattr("byol.explore.throughput.SECONDS", 0.3)
    overrides = {
        "data.workers": 0,
        "data.in_memory": "never",
        "run.threads": 1,
        "network.width": 0.05,
        "optim.batch": 8,
    }
    request = doctor.Request(str(folder), tmp_path, "cifar10-cpu", overrides)
    found = speed(request)
    rates = (found["loader"], found["training"], found["augmenting"], found["step"])
    assert min(rates) > 0
    assert found["training"] < found["step"]
    assert found["bottleneck"] == ("loading" if found["loader"] < found["training"] else "training")
    assert found["batch_that_fits"] >= 8
    monkeypatch.setattr("byol.run.machine.memory", lambda place: 0.05)
    less = speed(request)
    assert less["batch_that_fits"] < found["batch_that_fits"]
    monkeypatch.setattr("byol.explore.throughput.loading_rate", lambda *_: 0.01)
    assert speed(request)["bottleneck"] == "loading"


def test_what_is_left_out_can_be_chosen(zoo: Path, tmp_path: Path) -> None:
    """Breaks if a kind that was not asked for is listed, or an unknown one is accepted."""
    request = doctor.Request(str(zoo), tmp_path, "cifar10-cpu", leave_out=("near-duplicates",), speed=False)
    assert len(doctor.doctor(request).left_out) == 2
    with pytest.raises(UsageError, match="near-duplicates"):
        doctor.left_out(doctor.doctor(request), ("dupes",))


def test_images_without_files_are_examined_too() -> None:
    """Breaks if sources that are no folders cannot be looked at."""
    source = data.open_source("scenes:3", Data(resolution=32))
    look = examine(source, 0, 64)
    assert (look.reason, look.format, look.height) == ("", "", 32)
    assert look.digest != examine(source, 1, 64).digest


def test_the_sheet_shows_the_views_of_training(folder: Path, tmp_path: Path) -> None:
    """Breaks if the sheet draws other views than the first steps of training do, or loses a column."""
    values = {"run.seed": 3}
    sheets.sheet(str(folder), tmp_path / "views.png", "cifar10-cpu", values, images=4, pairs=2)
    with Image.open(tmp_path / "views.png") as image:
        assert image.size == (5 * 66 + 2, 4 * 66 + 2 + 14)
        shown = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    config = apply(Config(), {"data.resolution": 32, **values})
    pixels = torch.randint(0, 255, (2, 3, 40, 40), dtype=torch.uint8)
    rows = painting.view_rows(list(pixels), config, 1)
    for view, draw in enumerate(views.draw(3, 0, 2, config.views)):
        trained = views.finish_(views.crop(pixels, draw, config.views, 32), draw, config.views)
        for shown_view, trained_view in zip(rows, trained, strict=True):
            normalized = views.normalize(shown_view[1 + view], config.views.mean, config.views.std)
            torch.testing.assert_close(normalized, trained_view, atol=5e-5, rtol=0)
    assert shown.float().std() > 10
    with pytest.raises(UsageError, match="png"):
        sheets.sheet(str(folder), tmp_path / "views.jpg", "cifar10-cpu", {})
