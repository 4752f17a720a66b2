"""Every parser of outside bytes, with small sound files to begin from: a file is read, or refused by an error of ours.

tests/chaos/test_fuzz.py changes the sound files at random; `python -m tests.fuzz NAME` lets coverage guide the changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, features
from safetensors.torch import save as save_tensors

from byol import checkpoint
from byol.config import Config, Data, Network, apply, flatten, resolve
from byol.config_file import read_yaml
from byol.data import arrow_files, decode
from byol.data.dense import boxes, depths, masks
from byol.data.formats import FORMATS as FORMATS_READ
from byol.data.formats.format import STORED
from byol.data.parts import Part, listed
from byol.data.shards import index, tars
from byol.data.source import BadImage, Source, read_list
from byol.errors import ByolError
from byol.evals import features as cached
from byol.explore import search
from byol.networks import shapes
from byol.report import collect, page, samples
from byol.run import files
from byol.tables import cells
from byol.weights import card, imports, reader
from tests.data.formats import files as format_files

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
ROOM = Path(tempfile.mkdtemp(prefix="byol-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


class Target(NamedTuple):
    """`parse` may raise only the errors of ours; each of `seeds` it takes as it is."""

    parse: Callable[[bytes], Any]
    seeds: Callable[[], list[bytes]]


def refuses(target: Target, data: bytes) -> bool:
    """Whether the bytes are refused, by an error of ours; any other error is what is looked for."""
    try:
        target.parse(data)
    except (ByolError, BadImage):
        return True
    return False


def written(name: str, data: bytes) -> Path:
    """The bytes as a file, which takes the place of the last one."""
    path = ROOM / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def clear() -> None:
    shutil.rmtree(ROOM, ignore_errors=True)


def image(data: bytes) -> None:
    for look in (lambda: decode.decode(data, 1.0), lambda: decode.facts(io.BytesIO(data), 1.0)):
        reason = "none"
        try:
            look()
        except BadImage as error:
            reason = str(error)
        assert 0 < len(reason) < 130, reason
    decode.image_size(data)
    decode.decode_values(data, 1.0)


def images() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 4), dtype=np.uint8)
    found = []
    for name in FORMATS:
        if name == "AVIF" and not features.check("avif"):
            continue
        for mode in ("RGB", "L") if name in ("JPEG", "GIF", "PPM") else ("RGB", "L", "RGBA"):
            content = io.BytesIO()
            exif = Image.Exif()
            exif[0x0112] = 6
            options: dict[str, Any] = {} if name in ("GIF", "BMP", "PPM") else {"exif": exif}
            if name == "TIFF" and mode == "L":
                options["compression"] = "tiff_lzw"
            Image.fromarray(pixels).convert(mode).save(content, name, **options)
            found.append(content.getvalue())
    for kind in ("I;16", "1", "P"):
        content = io.BytesIO()
        Image.fromarray(pixels[..., 0]).convert(kind).save(content, "PNG")
        found.append(content.getvalue())
    return found


def tar(data: bytes) -> None:
    found = list(tars.samples(io.BytesIO(data), len(data), frozenset({"jpg", "png"}), checksums=True))
    assert all(0 <= sample.offset <= len(data) and sample.name.isprintable() for sample in found)
    index.table_of(str(written("x.tar", data)), len(data))


def tarballs() -> list[bytes]:
    found = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=kind) as archive:
            facts = json.dumps({"name": "ä/1.jpg", "class": "ä", "place": 3}).encode()
            long = "d" * 60 + "/" + "n" * 80 + ("n" * 90 if kind != tarfile.USTAR_FORMAT else "") + ".jpg"
            for name, body in (("a/1.jpg", b"x" * 20), ("a/1.cls", b"7"), ("a/1.json", facts), (long, b"y")):
                member = tarfile.TarInfo(name)
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))
            link = tarfile.TarInfo("l.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "../../etc/passwd"
            archive.addfile(link)
        found.append(content.getvalue()[: 14 * 512])
    return found


def shard_index(data: bytes) -> None:
    found = index.load_index(data, 2, 3, ("a", "b"))
    if found is not None:
        assert len(found.names.ends) == len(found.size) == 3
        assert all(isinstance(found.names[i], bytes) for i in range(3))


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def shard_indexes() -> list[bytes]:
    ends = np.array([1, 2, 4], np.int64)
    names = {"names": np.frombuffer(b"abcd", np.uint8), "names_ends": ends}
    columns = {name: np.arange(3) % 2 for name in ("shard", "offset", "size", "crc", "labels")}
    return [npz(**columns, **names), npz(**columns | {"labels": np.empty(0, np.int64)}, **names)]


def manifest(data: bytes) -> None:
    written("set/shards.json", data)
    index.read_manifest(str(ROOM / "set"))


def manifests() -> list[bytes]:
    shards = (index.Shard("a-0.tar", 512, "0" * 64, 2), index.Shard("a-1.tar", 1024, "1" * 64, 1))
    return [index.manifest_bytes(index.Manifest("job", 3, ("ä", "b"), shards, "2" * 64))]


def stored_features(data: bytes) -> None:
    values, names = search._stored(written("x.npz", data))
    assert len(values) == len(names) > 0


def feature_files() -> list[bytes]:
    values, names = np.ones((3, 2), np.float32), np.array(["a", "ä", "c/d.jpg"])
    packed = io.BytesIO()
    np.savez_compressed(packed, features=values, names=names)
    return [npz(features=values, names=names, labels=np.arange(3), classes=np.array(["x"])), packed.getvalue()]


def feature_cache(data: bytes) -> None:
    path = written("x.npy", data)
    found = cached._mapped(path, (3, 2))
    assert found is None or (found.shape == (3, 2) and float(found.sum()) is not None)
    cached._left_out(written("x.json", data), 3)


def feature_caches() -> list[bytes]:
    content = io.BytesIO()
    np.save(content, np.ones((3, 2), np.float32))
    return [content.getvalue(), b'{"left_out": [0, 2]}']


def weights(data: bytes) -> None:
    reader.read(written("x.pth", data))


def weight_files() -> list[bytes]:
    tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16), "n": [1, None]}
    found = []
    for new in (True, False):
        content = io.BytesIO()
        torch.save(tensors, content, _use_new_zipfile_serialization=new)
        found.append(content.getvalue())
    tree = {"x": np.arange(4.0).reshape(2, 2), "y": (1, "é", b"z", {3}, 2**70, 1.5), "z": np.float32(2)}
    return [*found, *(pickle.dumps(tree, protocol) for protocol in range(6))]


def imported(data: bytes) -> None:
    imports.find(written("x.bin", data))


def network_files() -> list[bytes]:
    state = {"conv1.weight": torch.zeros(4, 3, 7, 7), "bn1.weight": torch.ones(4)}
    content = io.BytesIO()
    torch.save({"state_dict": {f"backbone.{name}": value for name, value in state.items()}}, content)
    deepmind = {"online_params": {"a": {"w": np.ones((7, 7, 3, 4))}}, "online_state": {"b": {"average": np.ones(2)}}}
    return [save_tensors(state), content.getvalue(), pickle.dumps({"experiment_state": deepmind})]


def encoder(data: bytes) -> None:
    path = written("encoder.safetensors", data)
    header = checkpoint.encoder_header(path)
    config = apply(Config(), checkpoint.encoder_settings(header))
    checkpoint._check_shapes(path, config.network)


def encoders() -> list[bytes]:
    network = Network(encoder="resnet18", width=0.01)
    tensors = {name: torch.zeros(shape) for name, shape in shapes(network).items()}
    views, fields = flatten(Config().views), ("encoder", "width", "small_images", "padding")
    told = {"format": 1, "network": {name: getattr(network, name) for name in fields}, "views": views, "resolution": 32}
    return [save_tensors(tensors, {"format": "pt", "byol": json.dumps(told)})]


def state(data: bytes) -> None:
    digest = hashlib.sha256(data).hexdigest()[:16]  # as someone who wants to be believed would name it
    path = ROOM / "checkpoints" / f"step-000000001.{digest}.safetensors"
    shutil.rmtree(path.parent, ignore_errors=True)
    checkpoint.read(written(f"checkpoints/{path.name}", data))


def states() -> list[bytes]:
    tensors = {"method.a": torch.zeros(2, 3), "optimizer.a.momentum": torch.ones(2, 3), "n": torch.tensor(4)}
    return [save_tensors(tensors, {"step": "1", "byol": '{"format": 1}'})]


def config_file(data: bytes) -> None:
    apply(Config(), read_yaml(written("x.yaml", data)), "x.yaml")


def config_files() -> list[bytes]:
    return [
        b"optim:\n  lr: 1e-3\n  batch: 64\nviews.t: {blur: 0.5}\nviews: {mean: [0.5, 0.5, 0.5]}\nrun.seed: 0x1F\n",
        b"network: {encoder: 'resnet18', head_bias: yes}\n# words\ndata: {exclude: \"\\u00e4\"}\n",
    ]


def record(data: bytes) -> None:
    """One file in the place of every JSON file that is read back: each may refuse it, none may stumble."""
    run = ROOM / "tables" / "runs" / "one"
    for name in ("run.json", "metrics.jsonl", "neighbours.json", "demo.json", "evaluations/a/knn/result.json"):
        written(f"tables/runs/one/{name}", data)
    written("tables/cells/a.json", data)
    attempts: list[Callable[[], Any]] = [
        lambda: files.read_metrics(run / "metrics.jsonl"),
        lambda: collect.evaluations(run, None, []),
        lambda: collect.table_rows(run, None),
        lambda: collect.demo(run, None),
        lambda: samples.drawn_neighbours(run, ONE),
        lambda: card.text(run, Config(), {}, [], ""),
        lambda: page.render(model(collect.described(collect.read(run)))),
        lambda: cells.stored(Stored(ROOM / "tables" / "cells" / "a.json")),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        refuses(Target(lambda _, attempt=attempt: attempt(), list), data)  # type: ignore[misc]
    files.read_json(run / "run.json")


class Stored(NamedTuple):
    path: Path


def model(described: dict[str, Any]) -> dict[str, Any]:
    return {"title": "x", "runs": [described], "galleries": []}


def _unreadable(_: int) -> torch.Tensor:
    raise BadImage("none")


ONE = Source("one", 1, _unreadable, lambda _: "a")


def record_files() -> list[bytes]:
    config = json.loads(json.dumps(flatten(Config())))
    run = {
        "format": 2,
        "request": {"data": "scenes", "preset": "auto", "overrides": {}},
        "created": "",
        "commit": "",
        "reasons": [{"field": "optim.tau", "value": 0.99, "why": "a"}],
        "config": {name: config[name] for name in list(config)[:6]},
        "data": {"name": "x", "images": 3, "bad": 0, "classes": 0, "in_memory": True, "fingerprint": "0"},
        "versions": {"torch": "2"},
        "machine": {"device_name": "cpu", "precision": "float32", "threads": 1},
        "status": "finished",
        "verdict": {"word": "learning", "sentence": "It is."},
        "sessions": [{"ended": "", "seconds": 1.5, "status": "finished"}],
        "plan": asdict(resolve(Config(), 10_000)),
    }
    test = {"top1": {"mean": 0.5, "half_range": 0.1, "seeds": 2}}
    told = {"seed": 0, "choices": [], "chosen": {"k": 3}, "test": {"top1": 0.5}, "seconds": 1, "notes": ["a"]}
    result = {
        "protocol": "knn",
        "encoder": {"name": "x", "checksum": "0", "network": {}, "resolution": 32},
        "data": {"name": "x", "classes": 2, "metric": "top1", "images": {"train": 1}, "checksums": {}},
        "spec": {},
        "test": test,
        "runs": [told],
        **{"created": "", "commit": "", "machine": {}, "versions": {}},
    }
    cell = {"run": "one", "status": "finished", "label": "a", "seed": 1}
    cell |= {"key": "a", "preset": "auto", "overrides": {}, "data": {"x": "0"}}
    cell |= {"scores": [{"protocol": "knn", "data": "x", "spec": {}, "test": {"top1": 0.5}}]}
    looks = {"names": ["a", "b"], "looks": [{"step": 1, "nearest": [[1]], "cosines": [[0.5]]}]}
    lines = b'{"step": 1, "loss": 0.5, "spread": 1.0}\n{"step": 2, "loss": NaN}\n'
    demo = {"results": {"random": {"linear": 0.1}}}
    return [*(json.dumps(each).encode() for each in (run, result, cell, looks, demo)), lines]


def annotation(data: bytes) -> None:
    boxes.read_annotation(written("x.xml", data))


def annotations() -> list[bytes]:
    box = b"<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax><ymax>4e1</ymax></bndbox>"
    thing = b"<object><name>c\xc3\xa4t</name><difficult>1</difficult>" + box + b"<part><name>x</name></part></object>"
    return [b"<annotation><size><width>5</width></size>" + thing * 2 + b"</annotation>"]


def lists(data: bytes) -> None:
    path = written("x.txt", data)
    for attempt in (lambda: read_list(path), lambda: masks._listed(path), lambda: masks.read_colours(path)):
        refuses(Target(lambda _, attempt=attempt: attempt(), list), data)  # type: ignore[misc]
    listed(Part(ONE, np.arange(1), np.arange(1)), path)


def list_files() -> list[bytes]:
    return [b"a\treason\nb/c.jpg\n", b"0 128 64 Sky\n9 9 9 Void\n1 2 3 Tree\n", "ä.jpg\n\n".encode()]


def split(data: bytes) -> None:
    depths._nyu_split(written("splits.mat", data), "train", 10)


def splits() -> list[bytes]:
    from scipy.io import savemat

    found = []
    for packed in (True, False):
        content = io.BytesIO()
        savemat(content, {"trainNdxs": np.array([[1], [3]]), "testNdxs": np.array([[2]])}, do_compression=packed)
        found.append(content.getvalue())
    return found


def table(data: bytes) -> None:
    """Parquet or Arrow, whichever it says it is."""
    path = str(written("x.parquet" if data[:4] == b"PAR1" else "x.arrow", data))
    arrow_files._table.cache_clear()
    shutil.rmtree(ROOM / "cache", ignore_errors=True)
    source = arrow_files.open_files([path], Data(cache=str(ROOM / "cache")), "hf:x")
    for row in range(min(len(source), 3)):
        with contextlib.suppress(BadImage):
            source.read(row)


def tables() -> list[bytes]:
    import pyarrow
    from pyarrow import ipc, parquet

    rows = [{"bytes": b"\xff\xd8image", "path": "a"}, {"bytes": None, "path": "b"}]
    told = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["x", "y"]}}
    found = []
    made = pyarrow.table({"image": rows, "label": pyarrow.array([0, 1])})
    made = made.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": told}}).encode()})
    for compression in ("none", "snappy"):
        content = io.BytesIO()
        parquet.write_table(made, content, compression=compression, write_page_checksum=True)
        found.append(content.getvalue())
    for opened in (ipc.new_stream, ipc.new_file):
        content = io.BytesIO()
        with opened(content, made.schema) as writer:
            writer.write_table(made)
        found.append(content.getvalue())
    return found


def stored_image(name: str) -> Target:
    """The reader of a format by the ending of its files' names."""

    def parse(data: bytes) -> None:
        refused: BadImage | None = None
        last = 0
        try:
            last = FORMATS_READ[name].describe(io.BytesIO(data), 1.0).images - 1
        except BadImage as error:
            refused = error
        for number in {0, last}:
            try:
                found = FORMATS_READ[name].read(io.BytesIO(data), number, 1.0)
                assert found.ndim == 3
                assert found.dtype.name in STORED
                assert np.isfinite(found).all()
            except BadImage as error:
                refused = error
        if refused:
            assert 0 < len(str(refused)) < 130, refused
            assert str(refused).isprintable(), refused
            raise refused

    return Target(parse, lambda: format_files.seeds(name))


TARGETS = {
    "image": Target(image, images),
    "tar": Target(tar, tarballs),
    "index": Target(shard_index, shard_indexes),
    "manifest": Target(manifest, manifests),
    "features": Target(stored_features, feature_files),
    "cache": Target(feature_cache, feature_caches),
    "weights": Target(weights, weight_files),
    "import": Target(imported, network_files),
    "encoder": Target(encoder, encoders),
    "checkpoint": Target(state, states),
    "config": Target(config_file, config_files),
    "record": Target(record, record_files),
    "annotation": Target(annotation, annotations),
    "list": Target(lists, list_files),
    "split": Target(split, splits),
    "table": Target(table, tables),
    **{name: stored_image(name) for name in ("npy", "npz", "tif", "dcm", "nii", "nii.gz", "h5")},
}
