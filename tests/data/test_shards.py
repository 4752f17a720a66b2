"""Shards: the same batches as from the folder, each image once; damage costs what it hits, a kill costs one shard."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byol
from byol import data
from byol.config import Config, Data, apply, resolve
from byol.data import loader
from byol.data.folder import folder as open_folder
from byol.data.shards import index, tars, writing
from byol.data.shards.reading import open_shards
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError

pytestmark = pytest.mark.usefixtures("own_cache")

CPU = torch.device("cpu")
SMALL = 20_000  # bytes of a shard: four images or so


def settings(tiny: dict[str, object], **changes: object) -> Config:
    streamed = {"data.in_memory": "never", "data.workers": 0}
    return apply(Config(), {**tiny, **streamed, **{n.replace("__", "."): v for n, v in changes.items()}})


def crops(spec: str, config: Config, first: int = 0) -> list[loader.Crops]:
    images = loader.prepare(data.open_source(spec, config.data), config)
    return list(loader.batches(images, config, resolve(config, len(images.train)), first, CPU))


def same(one: list[loader.Crops], other: list[loader.Crops]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.labels, b.labels)  # type: ignore[arg-type]
        assert a.bad == b.bad
        for v in (0, 1):
            assert torch.equal(a.crops[v], b.crops[v])
            assert all(
                torch.equal(a.draws[v][name], b.draws[v][name]) for name in a.draws[v].keys() | b.draws[v].keys()
            )


def same_images(one: Source, other: Source) -> None:
    assert len(one) == len(other)
    for i in range(len(one)):
        assert torch.equal(one.read(i), other.read(i))
    assert one.classes == other.classes
    assert (one.labels is None) == (other.labels is None)
    if one.labels is not None:
        assert np.array_equal(one.labels, other.labels)  # type: ignore[arg-type]


def damaged(source: Source) -> dict[str, str]:
    """The images that cannot be read, and why."""
    found = {}
    for i in range(len(source)):
        try:
            source.read(i)
        except BadImage as error:
            found[source.describe(i)] = str(error)
    return found


def spots(shards: Path) -> dict[str, tuple[Path, int, int]]:
    """(shard, offset, size) of each image by its name in the folder, from the members' own .json files."""
    found = {}
    for path in sorted(shards.glob("*.tar")):
        with tarfile.open(path) as tar:
            members = {m.name: m for m in tar}
            for name, member in members.items():
                if name.endswith(".jpg"):
                    facts = json.load(tar.extractfile(members[name.replace(".jpg", ".json")]))  # type: ignore[arg-type]
                    found[facts["name"]] = (path, member.offset_data, member.size)
    return found


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_as_from_the_folder(folder: Path, shards: Path, tiny: dict[str, object], workers: int) -> None:
    """Breaks if the stored order, the names or a pixel differ: issue 7, what it must show, 3."""
    config = settings(tiny, optim__accumulate=2, data__workers=workers)
    same(crops(str(folder), settings(tiny, optim__accumulate=2)), crops(str(shards), config))
    one, other = (data.open_source(str(p), config.data) for p in (folder, shards))
    assert [one.describe(i) for i in range(24)] == [other.describe(i) for i in range(24)]
    assert loader.source_fingerprint(one) == loader.source_fingerprint(other)


def test_a_run_from_shards_is_the_run_from_the_folder(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a run can tell the two apart: the end is the same, and one goes on where the other was stopped."""
    writing.shard(folder, tmp_path / "shards", SMALL)
    options = {**tiny, "data.in_memory": "never", "data.workers": 0}
    one = byol.pretrain(str(folder), tmp_path / "one", "cifar10", {**options, "optim.epochs": 1})
    longer = {**options, "optim.epochs": 1, "run.keep": 3}
    other = byol.pretrain(str(tmp_path / "shards"), tmp_path / "other", "cifar10", longer)
    assert one.metrics == other.metrics
    again = byol.pretrain(str(tmp_path / "shards"), tmp_path / "one", "cifar10", {**options, "optim.epochs": 1})
    assert again.metrics == one.metrics


@pytest.mark.parametrize("shuffle", ["images", "shards"])
def test_every_image_once_an_epoch_over_ranks_and_workers(shards: Path, tiny: dict[str, object], shuffle: str) -> None:
    """Breaks if two ranks or workers share an image, or one is never read."""
    config = settings(tiny, data__shuffle=shuffle, data__window=2, data__workers=2, optim__batch=6)
    source = replace(data.open_source(str(shards), config.data), labels=np.arange(24))
    images = loader.prepare(source, config)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for rank in seen:
        for batch in loader.batches(images, config, resolve(config, 24), 0, CPU):
            seen[rank] += batch.labels[rank * 3 : rank * 3 + 3].tolist()  # type: ignore[index]
    for epoch in range(2):
        both = [seen[rank][epoch * 12 : epoch * 12 + 12] for rank in seen]
        assert sorted(both[0] + both[1]) == list(range(24))


@pytest.mark.parametrize("shuffle", ["images", "shards"])
def test_a_start_in_the_middle_reads_nothing_earlier(shards: Path, tiny: dict[str, object], shuffle: str) -> None:
    """Breaks if resuming reads, or even opens, what the steps before it have used."""
    config = settings(tiny, data__shuffle=shuffle, data__window=2, optim__epochs=1)
    source = data.open_source(str(shards), config.data)
    reads: list[int] = []

    def read(number: int) -> torch.Tensor:
        reads.append(number)
        return source.read(number)

    images = loader.prepare(replace(source, read=read), config)
    plan = resolve(config, 24)
    whole = list(loader.batches(images, config, plan, 0, CPU))
    all_reads, reads[:] = list(reads), []
    rest = list(loader.batches(images, config, plan, 2, CPU))
    assert reads == all_reads[16:]
    same(rest, whole[2:])


def test_the_order_by_shards_is_a_permutation_that_reads_few_at_a_time() -> None:
    """Breaks if an image is lost or doubled, or an epoch jumps between more shards than the window allows."""
    count, window = 40, 3
    blocks = loader.Blocks(np.repeat(np.arange(20), count).astype(np.int32), window)
    epochs = [loader.batch_positions(7, e, 800, 800, blocks) for e in (0, 1)]
    for order in epochs:
        assert sorted(order) == list(range(800))
        shard = blocks.number[order]
        first = {s: np.flatnonzero(shard == s)[0] for s in range(20)}
        last = {s: np.flatnonzero(shard == s)[-1] for s in range(20)}
        active = [sum(first[s] <= t <= last[s] for s in range(20)) for t in range(800)]
        assert max(active) <= window + 1
        middle = [len(set(shard[t : t + count])) for t in range(100, 600, count)]
        assert min(middle) >= window  # and it does mix them
    assert not np.array_equal(*epochs)
    halves = [loader.batch_positions(7, step, 400, 800, blocks) for step in range(4)]
    assert np.array_equal(np.concatenate(halves), np.concatenate(epochs))


def test_shuffling_by_shards_needs_shards(folder: Path, tiny: dict[str, object]) -> None:
    """Breaks if the setting is ignored for a folder without a word."""
    with pytest.raises(UsageError, match="for images in shards"):
        crops(str(folder), settings(tiny, data__shuffle="shards"))


def test_a_truncated_shard_costs_its_images(folder: Path, shards: Path, tiny: dict[str, object]) -> None:
    """Breaks if the run ends, an image behind the cut is not named, or one before it is lost."""
    where = spots(shards)
    path = sorted(shards.glob("*.tar"))[1]
    inside = sorted((offset, size, name) for name, (p, offset, size) in where.items() if p == path)
    assert len(inside) >= 3
    offset, size, _ = inside[-2]
    os.truncate(path, offset + size // 2)
    source = data.open_source(str(shards), Data())
    assert damaged(source) == {name: "its shard ends before it" for _, _, name in inside[-2:]}
    config = settings(tiny)
    found = crops(str(shards), config)
    assert {b.name for batch in found for b in batch.bad} == {name for _, _, name in inside[-2:]}
    images = loader.prepare(source, config)
    bad = loader.BadList(images.bad, 24, config, lambda _: None)
    for batch in found:
        bad.add(batch.bad)
    for other in shards.glob("*.tar"):
        os.truncate(other, 600)
    with pytest.raises(BadData, match=r"24 of 24 images cannot be read, more than data.max_bad"):
        loader.prepare(data.open_source(str(shards), config.data), settings(tiny, data__in_memory="always"))


def test_flipped_bits_are_seen(shards: Path) -> None:
    """Breaks if a read does not compare its bytes with the checksum; half of such flips decode without complaint."""
    where = spots(shards)
    chosen = sorted(where)[::5]
    for name in chosen:
        path, offset, size = where[name]
        flip(path, offset + size // 2)
    found = damaged(data.open_source(str(shards), Data()))
    assert found == dict.fromkeys(chosen, "damaged in its shard: wrong checksum")


def test_a_damaged_index_is_made_again_from_the_headers(
    folder: Path, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if the order or the names are lost with the index, or its damage goes unnoticed."""
    flip(shards / "shards.npz", 700)
    source = data.open_source(str(shards), Data())
    assert "damaged" in capsys.readouterr().err
    same_images(open_folder(folder), source)
    assert source.describe(3) == open_folder(folder).describe(3)
    for name in ("shards.npz", "shards.json"):
        (shards / name).unlink()
    same_images(open_folder(folder), data.open_source(str(shards), Data()))


def test_a_damaged_header_costs_one_image(shards: Path) -> None:
    """Breaks if one bad header ends the shard, as it does for Python's tarfile, or its image is not counted."""
    where = spots(shards)
    (shards / "shards.json").unlink()
    path, offset, _ = next(spot for spot in where.values() if spot[1] > 2000)
    inside = [name for name, spot in where.items() if spot[0] == path]
    flip(path, offset - 512 + 150)
    with tarfile.open(path) as tar:
        assert sum(m.name.endswith(".jpg") for m in tar) < len(inside) - 1
    source = data.open_source(str(shards), Data())
    assert len(source) == 24
    assert list(damaged(source).values()) == ["damaged in its shard"]


def test_webdataset_reads_our_shards(folder: Path, shards: Path) -> None:
    """Breaks if the layout is not WebDataset's: keys, bytes, classes; and the stored order mixes the classes."""
    wds = pytest.importorskip("webdataset", reason="needs webdataset, which reads our shards")
    files = [str(p) for p in sorted(shards.glob("*.tar"))]
    found = list(wds.WebDataset(files, shardshuffle=False, empty_check=False))
    assert len(found) == 24
    for sample in found:
        facts = json.loads(sample["json"])
        assert sample["jpg"] == (folder / facts["name"]).read_bytes()
        assert facts["class"] == f"class{int(sample['cls'])}" == facts["name"].split("/")[0]
    classes = [int(sample["cls"]) for sample in found]
    assert classes != sorted(classes)


def foreign(path: Path, members: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar by Python's own module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def jpeg(folder: Path) -> Callable[[int], bytes]:
    """The bytes of the i-th image of `folder`."""
    files = sorted(folder.rglob("*.jpg"))
    return lambda i: files[i].read_bytes()


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_as_pythons_tarfile_finds_them(tmp_path: Path, kind: int) -> None:
    """Breaks if a long name, a prefix or a strange size of name is misread."""
    random = np.random.default_rng(kind)
    names = [f"{'d' * int(random.integers(1, 60))}/{'n' * int(random.integers(1, 93))}{i}.jpg" for i in range(40)]
    if kind != tarfile.USTAR_FORMAT:
        names += ["ü" * 80 + ".png", "a/" * 100 + "deep.jpg", "x" * 300 + ".jpg"]
    path = foreign(tmp_path / "a.tar", [(n, bytes(int(random.integers(0, 2000)))) for n in names], kind)
    with open(path, "rb") as file:
        ours = [(os.fsdecode(m.name), m.offset, m.size) for m in tars.members(file, path.stat().st_size)]
    with tarfile.open(path) as tar:
        assert ours == [(m.name, m.offset_data, m.size) for m in tar]


def test_other_peoples_shards(tmp_path: Path, jpeg: Callable[[int], bytes], own_cache: Path) -> None:
    """Breaks if samples are not grouped by key, classes are not found, or the index is not remembered."""
    for s in range(3):
        members = []
        for i in range(4):
            members += [
                (f"{i:04d}.cls", str((s + i) % 3).encode()),
                (f"{i:04d}.seg.png", b"no"),
                (f"{i:04d}.jpg", jpeg(i)),
            ]
        foreign(tmp_path / "wds" / f"a-{s:03d}.tar", [*members, ("notes.txt", b"text")])
    source = data.open_source(str(tmp_path / "wds"), Data())
    assert len(source) == 12
    assert source.describe(5) == "a-001.tar/0001.jpg"
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]  # type: ignore[union-attr]
    assert source.classes == ("0", "1", "2")
    kept = sorted(own_cache.rglob("*.npz"))
    assert len(kept) == 3
    flip(kept[0], 300)  # a damaged index is made again
    for spec in ("a-{000..001}.tar", "a-{000,001}.tar", "a-00[01].tar"):
        part = data.open_source(str(tmp_path / "wds" / spec), Data())
        assert [part.describe(i) for i in range(8)] == [source.describe(i) for i in range(8)]
    assert len(data.open_source((tmp_path / "wds" / "a-002.tar").as_uri(), Data())) == 4
    folders = [(f"./{'cat' if i % 2 else 'dog'}/{i}.jpg", jpeg(i)) for i in range(6)]
    labelled = data.open_source(str(foreign(tmp_path / "b.tar", folders)), Data())
    assert labelled.classes == ("cat", "dog")
    assert labelled.labels.tolist() == [1, 0, 1, 0, 1, 0]  # type: ignore[union-attr]


def test_hostile_members_and_manifests(tmp_path: Path, jpeg: Callable[[int], bytes]) -> None:
    """Breaks if a name in a tar or in shards.json leads out of the folder, or a link, device or size misleads (G17)."""
    path = tmp_path / "in" / "deep" / "evil.tar"
    good = [("../../evil.jpg", jpeg(0)), ("/tmp/byol-evil.jpg", jpeg(1)), ("a\n\x1b[2J.jpg", jpeg(2))]
    lies = [("n.jpg", jpeg(3)), ("n.json", b'{"name": "\\ud800\\u202e", "place": 9%s, "class": [1]}' % (b"9" * 40))]
    foreign(path, [*good, *lies], tarfile.PAX_FORMAT)
    with tarfile.open(path, "a") as tar:
        for name, kind in (("l.jpg", tarfile.SYMTYPE), ("h.jpg", tarfile.LNKTYPE), ("d.jpg", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        huge = tarfile.TarInfo("huge.jpg")
        huge.size = 2**80
        tar.fileobj.seek(tar.offset)  # type: ignore[union-attr]
        tar.fileobj.write(huge.tobuf(tarfile.GNU_FORMAT))  # type: ignore[union-attr]
    before = sorted(p for p in tmp_path.rglob("*") if "cache" not in p.parts)
    source = data.open_source(str(path), Data())
    assert len(source) == 5
    assert [i for i in range(5) if source.describe(i).isprintable()] == list(range(5))
    assert [torch.equal(source.read(i), tensor(jpeg(i))) for i in range(4)] == [True] * 4
    assert "too large" in damaged(source)["evil.tar/huge.jpg"]
    assert sorted(p for p in tmp_path.rglob("*") if "cache" not in p.parts) == before
    assert not Path("/tmp/byol-evil.jpg").exists()
    for name in ("../../evil.tar", "/etc/passwd", "x/y.tar", ".tar"):
        told = index.Manifest("job", 1, (), (index.Shard(name, 1, "", 1),), "x")
        (tmp_path / "in" / "shards.json").write_bytes(index.manifest_bytes(told))
        with pytest.raises(BadData, match="damaged or not ours"):
            data.open_source(str(tmp_path / "in"), Data())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(BadData, match="compressed"):
        data.open_source(str(tmp_path / "c"), Data())
    (tmp_path / "c" / "a.tar").write_bytes(os.urandom(5000))
    with pytest.raises(BadData, match="No images found"):
        data.open_source(str(tmp_path / "c"), Data())


def test_any_damage_costs_only_what_it_hits(shards: Path) -> None:
    """Breaks if one of 200 random damages to a tar, without an index, raises or loses an image that it left alone."""
    random = np.random.default_rng(3)
    path = sorted(shards.glob("*.tar"))[0]
    whole, sound = path.read_bytes(), {name: spot for name, spot in spots(shards).items() if spot[0] == path}
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(int(random.integers(1, 6))):
            start = int(random.integers(0, len(content) - 600)) // 512 * 512  # most often it is a header that matters
            width = int(random.integers(1, 512))
            kinds = (bytes(width), random.bytes(width), bytes(content[-width:]))
            content[start : start + width] = kinds[int(random.integers(3))]
        content = content[: int(random.integers(600, len(content)))] if random.random() < 0.3 else content
        found = list(tars.samples(io.BytesIO(content), len(content), frozenset({"jpg"}), checksums=True))
        assert all(0 <= s.offset <= len(content) for s in found)
        for name, (_, offset, size) in sound.items():
            untouched = content[offset - 512 : offset + size] == whole[offset - 512 : offset + size]
            there = any(s.offset == offset and s.size == size and s.crc >= 0 for s in found)
            assert there or not untouched, name


def tensor(content: bytes) -> torch.Tensor:
    from byol.data.decode import decode

    return decode(content)


def test_no_shard_is_held_in_memory(tmp_path: Path, jpeg: Callable[[int], bytes]) -> None:
    """Breaks if indexing or reading takes in more of a shard than an image."""
    path = foreign(tmp_path / "big.tar", [("0.jpg", jpeg(0))])
    with open(path, "r+b") as file:
        with tarfile.open(path) as tar:
            end = tar.getmembers()[-1]
        at = end.offset_data + (end.size + 511) // 512 * 512
        file.truncate(at)
        file.seek(at)
        ballast = tarfile.TarInfo("ballast.bin")
        ballast.size = 3_000_000_000
        file.write(ballast.tobuf(tarfile.GNU_FORMAT))
        file.seek(ballast.size, 1)  # a multiple of a block, and a hole in the file
        for piece in tars.packed("1.jpg", jpeg(1)):
            file.write(piece)
    tracemalloc.start()
    source = open_shards(str(path), Data())
    assert torch.equal(source.read(1), tensor(jpeg(1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert len(source) == 2
