"""Every parser of outside bytes takes its sound files, and meets damage with an error of ours and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from byol.data.formats import FORMATS
from tests.chaos.scale import often
from tests.fuzz import targets

FOUND = sorted((Path(__file__).parents[1] / "fuzz" / "found").iterdir())
INTERESTING = [0, 1, 0x7F, 0x80, 0xFF, ord("/"), ord("."), ord("["), ord("{"), ord('"'), ord("9")]
# What is said of a sound file that is not for the parser that the others are for.
REFUSED = {"record": 1, "list": 3}
MENDED = ("tar", "index", "cache")  # damage here costs what it hits, and is worked around


@pytest.fixture(scope="module", autouse=True)
def _room() -> Iterator[None]:
    yield
    targets.clear()


def changed(seed: bytes, random: np.random.Generator, others: list[bytes]) -> bytes:
    """A file with some bytes turned, cut, doubled or taken from another."""
    data = bytearray(seed)
    for _ in range(int(random.integers(1, 5))):
        if not data:
            break
        place = int(random.integers(len(data)))
        width = int(random.integers(1, min(64, len(data)) + 1))
        kind = int(random.integers(7))
        if kind == 0:
            data[place] ^= 1 << int(random.integers(8))
        elif kind == 1:
            data[place] = INTERESTING[int(random.integers(len(INTERESTING)))]
        elif kind == 2:
            del data[place : place + width]
        elif kind == 3:
            data[place:place] = data[place : place + width] * int(random.integers(1, 4))
        elif kind == 4:
            data[place : place + width] = random.bytes(width)
        elif kind == 5:
            other = others[int(random.integers(len(others)))]
            data[place : place + width] = other[place : place + width]
        else:
            del data[place:]
    return bytes(data)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", targets.TARGETS)
def test_damage_is_met_with_an_error_of_ours(name: str) -> None:
    """Breaks if a changed file raises anything but our errors, however it was changed (G16: 10,000 tries in chaos)."""
    target = targets.TARGETS[name]
    seeds = target.seeds()
    assert sum(targets.refuses(target, seed) for seed in seeds) == REFUSED.get(name, 0)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    tries = often(300 if name in FORMATS else 100, 10_000)
    refused = [targets.refuses(target, changed(seeds[i % len(seeds)], random, seeds)) for i in range(tries)]
    assert any(refused) != (name in MENDED)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_fuzzing_once_found(path: Path) -> None:
    """Breaks if a file that a fuzzer once broke a parser with does so again."""
    targets.refuses(targets.TARGETS[path.name.split("-")[0]], path.read_bytes())
