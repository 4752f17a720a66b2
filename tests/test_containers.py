"""The Dockerfiles: parsed, and held against what a careful reviewer asks of one; built only where it is asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = ["Dockerfile", "Dockerfile.cuda"]
KNOWN = {"ARG", "FROM", "RUN", "COPY", "USER", "ENV", "WORKDIR", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


class Line(NamedTuple):
    word: str
    rest: str


def parsed(text: str) -> list[Line]:
    """Instructions in order, those over several lines as one, without comments."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = [line.strip() for line in re.sub(r"\\\n", " ", kept).splitlines() if line.strip()]
    return [Line(*line.split(None, 1)) for line in found]


def faults(lines: list[Line]) -> list[str]:
    """What is wrong, in words."""
    found = [f"{line.word} is no instruction" for line in lines if line.word not in KNOWN]
    at = {word: [place for place, line in enumerate(lines) if line.word == word] for word in KNOWN}
    rest = {word: [lines[place].rest for place in places] for word, places in at.items()}
    if [line.word for line in lines if line.word != "ARG"][:1] != ["FROM"]:
        found.append("it does not begin with FROM")
    for image in rest["FROM"]:
        if not re.search(r":(?!latest)[\w.${}-]+$", image):
            found.append(f"{image} has no version")
    user = rest["USER"][-1:] or ["root"]
    if user[0].split(":")[0] in ("root", "0"):
        found.append("it runs as root")
    elif at["RUN"] and max(at["RUN"]) > max(at["USER"]):
        found.append("a RUN comes after USER, and could not install")
    for word, wanted in (("VOLUME", ["/data", "/runs"]), ("ENTRYPOINT", ["byol"])):
        if [json.loads(value) for value in rest[word] if value.startswith("[")] != [wanted]:
            found.append(f"{word} is not {wanted}")
    for command in rest["RUN"]:
        if "pip install" in command and "--no-cache-dir" not in command:
            found.append("pip keeps its cache in the image")
        if "apt-get install" in command and not all(
            part in command
            for part in ("--no-install-recommends", "--yes", "rm -rf /var/lib/apt/lists", "apt-get update")
        ):
            found.append("apt-get leaves something behind, or asks")
        if re.search(r"\bsudo\b|curl[^|]*\| *(ba)?sh|chmod (-R )?777", command):
            found.append(f"careless: {command}")
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_careful_reviewer_finds_nothing(name: str) -> None:
    """Breaks if a container runs as root, has no fixed base, loses its volumes or entry point, or keeps caches."""
    assert faults(parsed((ROOT / name).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("USER byol", "USER root", "root"),
        ("FROM python:3.12-slim", "FROM python", "no version"),
        ("FROM python:3.12-slim", "FROM python:latest", "no version"),
        ('ENTRYPOINT ["byol"]', 'ENTRYPOINT ["bash"]', "ENTRYPOINT"),
        ('VOLUME ["/data", "/runs"]', "", "VOLUME"),
        ("--no-cache-dir ", "", "cache"),
        ("WORKDIR", "WORKDRI", "no instruction"),
    ],
)
def test_the_reviewer_sees_faults(old: str, new: str, fault: str) -> None:
    """Breaks if a check above passes whatever the file says."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert old in text
    assert any(fault in found for found in faults(parsed(text.replace(old, new))))


@pytest.mark.parametrize("name", FILES)
def test_what_is_copied_and_installed_is_there(name: str) -> None:
    """Breaks if a file that is copied was renamed or is ignored, or an extra is gone."""
    lines = parsed((ROOT / name).read_text(encoding="utf-8"))
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [source for line in lines if line.word == "COPY" for source in line.rest.split()[:-1]]
    assert set(copied) == set(allowed) == {"byol", "pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        extra for line in lines for group in re.findall(r"/src\[([\w,]+)\]", line.rest) for extra in group.split(",")
    ]
    assert asked
    assert set(asked) <= set(project["optional-dependencies"])
    python = next((re.search(r"python:(\d+)\.(\d+)", line.rest) for line in lines if "python:" in line.rest), None)
    assert python is None or f"{python[1]}.{python[2]}" >= project["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("name", FILES)
def test_the_image_builds(name: str) -> None:
    """Breaks if the image cannot be built, or its command does not start."""
    builder = shutil.which("docker") or shutil.which("podman")
    if not (builder and os.environ.get("BYOL_CONTAINERS")):
        pytest.skip("needs docker or podman, and BYOL_CONTAINERS=1, as it fetches gigabytes")
    tag = f"byol-test:{name.lower().replace('.', '-')}"
    subprocess.run([builder, "build", "-t", tag, "-f", name, "."], cwd=ROOT, check=True, timeout=3600)
    said = subprocess.run([builder, "run", "--rm", tag, "--version"], check=True, capture_output=True, text=True)
    assert said.stdout.startswith("byol ")
