"""Shards at a URL: the same batches, fetched in pieces, and a network that fails."""

from __future__ import annotations

import http.server
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from byol import data
from byol.config import Data, resolve
from byol.data import address, loader, places
from byol.data.folder import folder as open_folder
from byol.errors import BadData, DiskError, UsageError
from tests.data.test_shards import CPU, SMALL, crops, same, same_images, settings

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def bucket(shards: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shards in fsspec's memory, as at any other URL."""
    monkeypatch.setattr(address, "SCHEMES", (*address.SCHEMES, "memory"))
    import fsspec

    files = fsspec.filesystem("memory")
    files.store.clear()
    files.put(str(shards) + "/", "memory://bucket/shards/", recursive=True)
    return "memory://bucket/shards"


def test_shards_at_a_url(folder: Path, bucket: str, tiny: dict[str, object], tmp_path: Path) -> None:
    """Breaks if a remote shard gives other batches, single reads make copies, or copies outgrow their limit."""
    plain = settings(tiny)
    same(crops(str(folder), plain), crops(bucket, plain))
    same_images(open_folder(folder), data.open_source(f"{bucket}/shard-*.tar", plain.data))
    copies = tmp_path / "cache" / "byol" / "shards" / "copies"
    assert not list(copies.glob("*.tar"))
    limit = 4 * SMALL / 1e9
    config = settings(tiny, data__shuffle="shards", data__window=2, data__cache_gb=limit)
    found = crops(bucket, config)
    kept = list(copies.glob("*.tar"))
    assert 2 <= len(kept) <= 4
    assert sum(p.stat().st_size for p in kept) <= 4 * SMALL
    assert not any(batch.bad for batch in found)
    same(found, crops(bucket, replace(config, data=replace(config.data, workers=2))))
    with pytest.raises(UsageError, match=r"data.window 16 mixes .* GB"):
        crops(bucket, settings(tiny, data__shuffle="shards", data__cache_gb=limit))
    for path in copies.glob("*.tar"):  # a damaged copy is not believed; the workers above may have replaced `kept`
        path.write_bytes(bytes(path.stat().st_size))
    same(found, crops(bucket, config))


class Pieces(http.server.BaseHTTPRequestHandler):
    """Serves files, also in pieces, as object stores do."""

    protocol_version = "HTTP/1.1"
    root = Path()

    def do_GET(self) -> None:
        path = self.root / self.path.rpartition("/")[2]
        content = path.read_bytes() if path.is_file() else b""
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, len(content))) if asked else (0, len(content))
        self.send_response(404 if not path.is_file() else 206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[start:end] if self.command == "GET" else b"")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.timeout(120)
def test_shards_over_http(folder: Path, shards: Path, tiny: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if pieces over HTTP are not those of the files, or workers that end disturb their parent's connections."""
    pytest.importorskip("aiohttp", reason="needs aiohttp, by which fsspec reads over HTTP")
    monkeypatch.setattr(Pieces, "root", shards)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pieces) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/data"
        config = settings(tiny, data__workers=2)
        alone = crops(url, settings(tiny))
        same(alone, crops(str(folder), config))
        same(alone, crops(url, config))
        same(alone, crops(url, settings(tiny)))
        server.shutdown()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_network_that_fails_ends_the_run_with_a_sentence(
    bucket: str, tiny: dict[str, object], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Breaks if an outage passes for bad images, which would change the batches, or a worker's error is a traceback."""
    from fsspec.implementations.memory import MemoryFileSystem

    config = settings(tiny, data__workers=workers)
    images = loader.prepare(data.open_source(bucket, config.data), config)
    tries: list[int] = []

    def fail(*_: object, **__: object) -> bytes:
        tries.append(1)
        raise ConnectionError("the network is down")

    monkeypatch.setattr(places, "PATIENCE", (0.0, 0.0))
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    with pytest.raises(DiskError) as caught:
        list(loader.batches(images, config, resolve(config, 24), 0, CPU))
    assert str(caught.value).startswith("Cannot read memory://")
    assert "the network is down" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(tries) == (0 if workers else 3)


def test_unknown_kinds_of_url_and_missing_shards(tmp_path: Path, shards: Path) -> None:
    """Breaks if a missing package, shard or pattern is a traceback."""
    with pytest.raises(UsageError, match="nosuch"):
        data.open_source("nosuch://bucket/a.tar", Data())
    with pytest.raises(UsageError, match="no tar files"):
        data.open_source(str(tmp_path / "none-*.tar"), Data())
    with pytest.raises(UsageError, match="no tar files"):
        data.open_source(str(tmp_path / "none.tar"), Data())
    with pytest.raises(BadData, match=r"none-000\.tar"):
        data.open_source(str(tmp_path / "none-{000..003}.tar"), Data())
    next(shards.glob("*.tar")).unlink()
    with pytest.raises(BadData, match="Cannot read the shard"):
        data.open_source(str(shards), Data())
