"""Files that were made to do harm cost seconds and megabytes at most, run nothing, and are refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.formats import hostile

ROOT = Path(__file__).resolve().parents[3]
MEASURED = """
import json, os, re, sys, time
from byol.data.formats import FORMATS, format_of
from byol.data.source import BadImage
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
found = {}
for name in sorted(os.listdir(sys.argv[1])):
    format = format_of(name)
    before, began, told = peak(), time.process_time(), ""
    last = 0
    def described(file):
        global last
        last = format.describe(file, 64.0).images - 1
    for look in (described, lambda file: format.read(file, 0, 64.0), lambda file: format.read(file, last, 64.0)):
        with open(os.path.join(sys.argv[1], name), "rb") as file:
            try:
                look(file)
            except BadImage as error:
                told = told or str(error)
    found[name] = [told, peak() - before, time.process_time() - began]
print(json.dumps(found))
"""
MOST = 100  # MB of one file, of which 30 are those of a library that the first file of its format loads


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Of each file: what was said, megabytes and seconds, in a process of its own."""
    folder = tmp_path_factory.mktemp("hostile") / "files"
    folder.mkdir()
    hostile.build(folder)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEASURED, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)
    assert result.returncode == 0, result.stderr[-3000:]
    assert not (folder.parent / hostile.PLANTED).exists()
    assert result.stderr == ""
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_each_is_refused_in_a_sentence(measured: dict[str, list[float]]) -> None:
    """Breaks if a file that claims what it does not hold is read, or what is said of it is no sentence of ours."""
    assert len(measured) > 80
    for name, (told, _, _) in measured.items():
        text = str(told)
        assert text, name
        assert len(text) < 130, name
        assert text.isprintable(), name


def test_seconds_and_megabytes(measured: dict[str, list[float]]) -> None:
    """Breaks if memory is taken for what a header claims, or a bomb is unpacked."""
    for name, (_, megabytes, seconds) in measured.items():
        assert megabytes < MOST, name
        assert seconds < 5, name
    assert sum(megabytes for _, megabytes, _ in measured.values()) < 2 * MOST


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pages.tif", "more than 50,000 pages"),
        ("loop.tif", "lead back to each other"),
        ("gigapixels.tif", "megapixels, over the limit of 64"),
        ("frames.dcm", "claims 2,147,483,647 frames"),
        ("rows.dcm", "megapixels, over the limit of 64"),
        ("volume.nii", "a NIfTI file of shape"),
        ("volume.nii.gz", "1074 megapixels, over the limit of 64"),
        ("terabytes.npy", "megapixels, over the limit of 64"),
        ("objects.npy", "Python objects"),
        ("objects.npz", "Python objects"),
        ("bomb.npz", "it would unpack to 12.3 GB"),
        ("huge.h5", "megapixels, over the limit of 64"),
        ("many.h5", "of which it holds next to nothing"),
        ("virtual.h5", "is not in the file"),
        ("external.h5", "is not in the file"),
        ("link.h5", "links to other files"),
        ("lzf.h5", "save it with gzip"),
        ("deflated.dcm", "deflated as a whole"),
    ],
)
def test_what_is_said(measured: dict[str, list[float]], name: str, words: str) -> None:
    """Breaks if a refusal blames something else than what is wrong."""
    assert words in str(measured[name][0])
