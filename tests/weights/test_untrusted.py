"""Files that mean harm: nothing in them runs, leads elsewhere or grows; each is refused at once, in a sentence."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_tensors

from byol import checkpoint, data
from byol.config import Config, Data, apply
from byol.data.arrays import read_npz
from byol.data.dense import boxes
from byol.errors import BadData, ByolError, DiskError, UsageError
from byol.evals import features
from byol.explore import search
from byol.report import collect
from byol.run import files
from byol.run.directory import Request
from byol.run.record import read_run
from byol.weights import imports, reader
from tests.conftest import write_images
from tests.weights.test_reader import harms

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "byol").rglob("*.py"))


def test_the_linter_finds_nothing_that_runs_files() -> None:
    """Breaks if pickle, marshal, an unsafe YAML loader, eval, exec or a shell appears in the package (G16)."""
    rules = "S102,S301,S302,S306,S307,S313,S314,S317,S318,S319,S506,S602,S604,S605,S612"
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--select", rules, "byol"]
    result = subprocess.run([*command, "--output-format", "concise"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1, result.stderr  # as there is one finding
    found = [line for line in result.stdout.splitlines() if ".py:" in line]
    # The one loader of YAML is a SafeLoader that refuses more than that does.
    assert [line.split(":")[0] for line in found] == ["byol/config_file.py"], found
    assert "S506" in found[0]
    from byol.config_file import _StrictLoader, yaml

    assert issubclass(_StrictLoader, yaml.SafeLoader)


CALLS = {"torch.load": "weights_only", "np.load": "allow_pickle"}


def test_loaders_are_called_safely_and_nobody_listens() -> None:
    """Breaks if torch.load or np.load may unpickle, or a module opens a port itself (G16, G22)."""
    modules = {"http.server", "socketserver", "xmlrpc", "asyncio", "flask", "uvicorn", "wsgiref"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in CALLS, f"{path.name}: {name}"
                assert not name.endswith((".bind", ".listen", ".serve_forever", ".accept")), f"{path.name}: {name}"
                assert name != "socket.socket", path.name
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {a.name for a in node.names} | {getattr(node, "module", None) or ""}
                assert not names & modules, path.name


def loaders(place: Path) -> dict[str, Callable[[Path], object]]:
    """Everything that reads a file which may come from someone else."""
    (place / "checkpoints").mkdir()

    def cached(path: Path) -> object:
        found = features._mapped(path, (2, 2))
        assert found is None
        raise DiskError("computed again")

    def shards(path: Path) -> object:
        folder = place / "shards"
        folder.mkdir(exist_ok=True)
        (folder / "a.tar").write_bytes(path.read_bytes())
        return data.open_source(str(folder), Data(cache=str(place / "cache")))

    def manifest(path: Path) -> object:
        folder = place / "manifest"
        folder.mkdir(exist_ok=True)
        (folder / "shards.json").write_bytes(path.read_bytes())
        return data.open_source(str(folder), Data(cache=str(place / "cache")))

    def run_json(path: Path) -> object:
        (place / "run.json").write_bytes(path.read_bytes())
        return collect.read(place)

    def table(ending: str) -> Callable[[Path], object]:
        def read(path: Path) -> object:
            (place / f"x.{ending}").write_bytes(path.read_bytes())
            return data.open_source(f"hf:{place / f'x.{ending}'}", Data(cache=str(place / "cache")))

        return read

    def state(path: Path) -> object:
        import hashlib

        content = path.read_bytes()
        name = f"step-000000001.{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
        (place / "checkpoints" / name).write_bytes(content)
        return checkpoint.read(place / "checkpoints" / name)

    return {
        "checkpoint": state,
        "encoder": checkpoint.load_encoder,
        "import": lambda path: imports.import_encoder(path, place / "out.safetensors"),
        "features": lambda path: search._stored(path),
        "cache": cached,
        "shards": shards,
        "manifest": manifest,
        "parquet": table("parquet"),
        "arrow": table("arrow"),
        "record": files.read_json,
        "run": run_json,
        "config": lambda path: apply(Config(), records_yaml(path)),
        "annotation": boxes.read_annotation,
    }


def records_yaml(path: Path) -> dict[str, Any]:
    from byol.config_file import read_yaml

    return read_yaml(path)


def disguised(program: bytes) -> dict[str, bytes]:
    """A pickle as it is, and where loaders would find one: in PyTorch's archive, in .npy and .npz, in a header."""
    torch_zip, npz, tar = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(torch_zip, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3")
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    npy += b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n" + program
    with zipfile.ZipFile(npz, "w") as archive:
        for name in ("features", "names", "shard"):
            archive.writestr(f"{name}.npy", npy)
    with tarfile.open(fileobj=tar, mode="w") as archive_:
        member = tarfile.TarInfo("a.pickle")
        member.size = len(program)
        archive_.addfile(member, io.BytesIO(program))
    return {"bare": program, "torch": torch_zip.getvalue(), "npy": npy, "npz": npz.getvalue(), "tar": tar.getvalue()}


@pytest.mark.parametrize("which", range(11))
def test_no_loader_runs_a_pickle(which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if one of 11 payloads in five disguises runs in any loader, or is not refused (G16: 13 loaders)."""
    flag = tmp_path / "harm"
    program = pickle.dumps(harms(flag)[which], 2)
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    place = tmp_path / "place"
    place.mkdir()
    every = loaders(place)
    for disguise, content in disguised(program).items():
        path = tmp_path / f"{disguise}.bin"
        path.write_bytes(content)
        for name, load in every.items():
            with pytest.raises(ByolError):
                load(path)
            assert not flag.exists(), (disguise, name)
    assert not (place / "out.safetensors").exists()


MEASURED = """
import json, os, resource, sys, time
from pathlib import Path
from byol import checkpoint
from byol.errors import ByolError
from byol.weights import imports, reader
load = {"encoder": checkpoint.load_encoder, "import": imports.find, "weights": reader.read}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for path, kind in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    base, began, said = peak(), time.process_time(), ""
    try:
        load[kind](Path(path))
    except ByolError as error:
        said = str(error)
    print(json.dumps([path, said, time.process_time() - began, peak() - base]))
    sys.stdout.flush()
    os._exit(0)
"""


def header(told: dict[str, Any], length: int | None = None, body: bytes = b"") -> bytes:
    text = json.dumps(told).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def claims(width: float) -> bytes:
    """An encoder file of a few bytes whose header asks for a network of any size."""
    from byol.config import flatten

    network = {"encoder": "resnet200", "width": width, "small_images": False, "padding": "symmetric"}
    told = {"format": 1, "network": network, "views": flatten(Config().views), "resolution": 32}
    return save_tensors({"conv1.weight": torch.zeros(1)}, {"byol": json.dumps(told)})


def crafted() -> dict[str, tuple[str, bytes]]:
    """Name → (loader, file)."""
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}
    # A list of 100,000 numbers, named 20,000 times as a new list: 16 GB of them from 240 KB.
    long = b"\x80\x02](" + b"K\x01" * 100_000 + b"eq\x000" + b"](" + b"cbuiltins\nlist\nh\x00\x85R" * 20_000 + b"e."
    deep = b"\x80\x02K\x01\x85" + b"2\x86" * 60 + b"q\x010}h\x01K\x01s."  # a key whose hash takes 2^60 steps
    return {
        "header of 2^62": ("encoder", struct.pack("<Q", 2**62) + b"{}"),
        "header beyond the end": ("encoder", header({"a": one}, 10_000)),
        "overlapping": ("import", header({"a": one, "b": {**one, "data_offsets": [4, 12]}}, body=bytes(12))),
        "offsets beyond the end": ("import", header({"a": {**one, "shape": [2**40], "data_offsets": [0, 2**42]}})),
        "negative": ("import", header({"a": {**one, "shape": [-2]}}, body=bytes(8))),
        "100,000 tensors": ("encoder", header(many)),
        "100,000 tensors to import": ("import", header(many)),
        "no object": ("import", struct.pack("<Q", 3) + b"{]}"),
        "a wide claim": ("encoder", claims(1000.0)),
        "a wider claim": ("encoder", claims(1e300)),
        "a list many times": ("weights", long),
        "a key without end": ("weights", deep),
        "a long text claimed": ("weights", b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x."),
        "brackets": ("weights", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
    }


def test_crafted_weights_are_refused_at_once(tmp_path: Path) -> None:
    """Breaks if a crafted file takes a second or 200 MB before it is refused (G16); each in a process of its own."""
    asked = []
    for number, (kind, content) in enumerate(crafted().values()):
        (tmp_path / f"x{number}.bin").write_bytes(content)
        asked.append((str(tmp_path / f"x{number}.bin"), kind))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURED, json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line[0] for line in found] == [path for path, _ in asked], result.stderr
    for name, (path, said, seconds, megabytes) in zip(crafted(), found, strict=True):
        assert path in said, name
        assert "\n" not in said, name
        assert seconds < 1, name
        assert megabytes < 200, name


def overlapping(count: int, payload: int) -> bytes:
    """PyTorch's archive whose storages lie in each other, as in a zip bomb: each is all that comes after its header."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00%dX\x03\x00\x00\x00cpuJ%btQ"
    content, members = bytes(payload), list[tuple[bytes, int, int, int]]()
    for number in reversed(range(count)):
        name = b"archive/data/%d" % number
        members.append((name, zlib.crc32(content), len(content), 0))
        sizes = struct.pack("<III", zlib.crc32(content), len(content), len(content))
        content = b"PK\x03\x04" + bytes([20]) + bytes(9) + sizes + struct.pack("<HH", len(name), 0) + name + content
    sizes_by_name = {name: size for name, _, size, _ in members}
    program = b"\x80\x02(" + b"".join(
        storage % (n, struct.pack("<I", sizes_by_name[b"archive/data/%d" % n] // 4)) for n in range(count)
    )
    tree = b"archive/data.pkl", zlib.crc32(program + b"t."), len(program) + 2
    head = b"PK\x03\x04" + bytes([20]) + bytes(9) + struct.pack("<IIIHH", tree[1], tree[2], tree[2], 16, 0)
    offsets = {b"archive/data/%d" % n: n * (30 + len(b"archive/data/0")) for n in range(count)}
    listed = [(name, crc, size, offsets[name]) for name, crc, size, _ in members] + [(*tree, len(content))]
    body = content + head + tree[0] + program + b"t."
    directory = b"".join(
        b"PK\x01\x02"
        + bytes([20, 0, 20])
        + bytes(9)
        + struct.pack("<III", crc, size, size)
        + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, offset)
        + name
        for name, crc, size, offset in listed
    )
    end = struct.pack("<HHHHIIH", 0, 0, len(listed), len(listed), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


def test_overlapping_members_are_no_bomb(tmp_path: Path) -> None:
    """Breaks if an archive may hand out the same bytes as many storages; one alone is read."""
    (tmp_path / "x.pth").write_bytes(overlapping(1, 40_000))
    assert reader.read(tmp_path / "x.pth")[0].shape == (10_000,)
    (tmp_path / "x.pth").write_bytes(overlapping(9, 40_000))
    with pytest.raises(BadData, match="larger than itself"):
        reader.read(tmp_path / "x.pth")


def test_arrays_that_would_grow_are_refused(tmp_path: Path) -> None:
    """Breaks if a .npz file may unpack to far more than it is, hold objects, or claim a shape without the bytes."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, features=np.zeros((5000, 2500), np.float32), names=np.array(["a"]))
    assert path.stat().st_size < 300_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="does not hold features"):
        search._stored(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
    claim = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    claim += b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n" + bytes(4)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", claim)
    with pytest.raises(ValueError, match="another length"):
        read_npz(path, path.stat().st_size)
    np.savez(path, features=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="objects"):
        read_npz(path, path.stat().st_size)


def snapshot(root: Path) -> set[tuple[str, int]]:
    return {(str(path), path.lstat().st_ino) for path in root.rglob("*")}


def hostile_members(tar: tarfile.TarFile) -> None:
    for name, kind, link in (
        ("l.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        ("h.jpg", tarfile.LNKTYPE, "../../../etc/passwd"),
        ("c.jpg", tarfile.CHRTYPE, ""),
        ("b.jpg", tarfile.BLKTYPE, ""),
        ("f.jpg", tarfile.FIFOTYPE, ""),
        ("d.jpg", tarfile.DIRTYPE, ""),
    ):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        tar.addfile(member)


def test_archives_lead_nowhere(tmp_path: Path) -> None:
    """Breaks if a name, link or device in a tar or zip is followed or unpacked, or a bomb of 10 GB grows (G17)."""
    outside, inside = tmp_path / "outside", tmp_path / "outside" / "a" / "in"
    inside.mkdir(parents=True)
    image = next(write_images(tmp_path / "images", 1).rglob("*.jpg")).read_bytes()
    with tarfile.open(inside / "x.tar", "w") as tar:
        for name in ("../../../up.jpg", "/tmp/byol-absolute.jpg", "./../.././x.jpg", "..\\..\\x.jpg", "ok.jpg"):
            member = tarfile.TarInfo(name)
            member.size = len(image)
            tar.addfile(member, io.BytesIO(image))
        hostile_members(tar)
        hole = tarfile.TarInfo("bomb.jpg")  # claims 10 GB that are not there
        hole.size = 10 << 30
        tar.fileobj.write(hole.tobuf(tarfile.GNU_FORMAT))  # type: ignore[union-attr]
        tar.offset = tar.fileobj.tell()  # type: ignore[union-attr]
    before = snapshot(outside)
    began = time.process_time()
    source = data.open_source(str(inside / "x.tar"), Data(cache=str(tmp_path / "cache")))
    names = [source.describe(i) for i in range(len(source))]
    assert not {"l.jpg", "h.jpg", "c.jpg", "b.jpg", "f.jpg", "d.jpg"} & {name.rpartition("/")[2] for name in names}
    for i, name in enumerate(names):
        if "bomb" not in name:
            assert source.read(i).shape[0] == 3
    with pytest.raises(Exception, match=r"too large|ends before"):
        source.read(names.index(next(n for n in names if "bomb" in n)))
    with zipfile.ZipFile(inside / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../up.jpg", image)
        archive.writestr("archive/data.pkl", bytes(30_000_000))
    for read in (lambda p: data.open_source(str(p), Data()), reader.read, search._stored, imports.find):
        with pytest.raises(ByolError):
            read(inside / "x.zip")
    (inside / "x.zip").unlink()
    assert snapshot(outside) == before
    assert not Path("/tmp/byol-absolute.jpg").exists()
    assert time.process_time() - began < 2


@pytest.mark.parametrize("name", ["a\0b", "n" * 300, "deep/" + "n" * 256 + "/run", "ä" * 128])
def test_names_that_no_file_system_takes(name: str, tmp_path: Path) -> None:
    """Breaks if such a run name is anything but a mistake in the command, or is found out late (G17)."""
    with pytest.raises(UsageError, match=r"zero byte|longer than 255 bytes"):
        Request.make("scenes", tmp_path / name, "cifar10-cpu", {}, None)
    with pytest.raises(UsageError, match=r"zero byte|longer than 255 bytes"), files.only_writer(tmp_path / name):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "spec", ["..", "../..", "/", ".", "a/../..", "x" * 400, "\u202e\n\0", "s3://bucket/../x", "C:\\x\\..", ".hidden"]
)
def test_names_made_from_data_stay_inside(spec: str) -> None:
    """Breaks if the name of a data set can place a run, or an evaluation, outside its folder (G17)."""
    from byol.evals.evaluation import _place

    run = Request.make(spec, None, "cifar10-cpu", {}, None).out
    assert run.parent == Path("runs")
    place = _place("runs/one/encoder.safetensors", spec, "somewhere")
    assert place.parent == Path("runs/one/evaluations")
    for name in (run.name, place.name):
        assert name not in ("", ".", "..")
        assert len(name.encode()) <= 255
        assert name.isprintable()


def test_json_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a record of brackets, of another kind, or of any size is anything but one sentence."""
    path = tmp_path / "run.json"
    for content in (b"[" * 100_000, b'{"a":' * 50_000, b"[1]", b"null", b"\xff\xfe", b"9" * 5000, b"NaN", b""):
        path.write_bytes(content)
        with pytest.raises(DiskError, match=r"run\.json"):
            read_run(tmp_path)
    with open(path, "wb") as file:
        file.truncate(5 << 30)
    monkeypatch.setattr(files, "MOST_BYTES", 1_000_000)
    began = time.process_time()
    with pytest.raises(DiskError, match="larger than"):
        files.read_json(path)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("name", ["LSUN", "lsunclass"])
def test_a_data_set_that_unpickles_is_not_offered(name: str, tmp_path: Path) -> None:
    """Breaks if torchvision's LSUN, which unpickles a cache from the data's folder unchecked, is used."""
    with pytest.raises(UsageError, match="unpickles"):
        data.open_source(f"torchvision:{name}", Data(root=str(tmp_path)))


def test_torchvision_checks_what_it_unpickles(tmp_path: Path) -> None:
    """Breaks if a CIFAR file with other content than the published one is unpickled by torchvision."""
    flag = tmp_path / "harm"
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        (folder / name).write_bytes(pickle.dumps(harms(flag)[0], 2))
    from torchvision import datasets

    with pytest.raises(RuntimeError, match="corrupted"):
        datasets.CIFAR10(tmp_path, download=False)
    assert not flag.exists()
