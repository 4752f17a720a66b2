"""The environment of the other libraries: made on demand beside the product's, whose torch it shares and never changes.

Every package of the product is a constraint, so that a peer that wants another torch is refused, not served.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from byol.run.files import read_json, write_json
from byol.run.progress import say

FOLDER = Path(tempfile.gettempdir()) / "byol-peers"
MINUTES = 5  # for one peer
# What pip is asked for, one call a line. lightly is installed without its requirements, of which pretraining needs two:
# those of its command line exist only as source.
PEERS: dict[str, list[list[str]]] = {
    "lightly": [["--no-deps", "lightly==1.6.0"], ["pytorch-lightning", "lightly-utils"]],
    "byol-pytorch": [["byol-pytorch==0.9.1"]],
    "solo-learn": [["solo-learn==1.0.2"]],
    "kornia": [["kornia==0.9.0"]],
    "albumentations": [["albumentations==2.0.8"]],
}
MODULES = {
    "lightly": "lightly.transforms.byol_transform, lightly.models.modules.heads, lightly.loss, lightly.models.utils",
    "byol-pytorch": "byol_pytorch",
    "solo-learn": "solo.methods",
    "kornia": "kornia",
    "albumentations": "albumentations",
}


class Peers(NamedTuple):
    """Their Python, the version of each that works, and why another one does not."""

    python: Path
    versions: dict[str, str]
    missing: dict[str, str]


def environment(names: list[str], folder: Path = FOLDER) -> Peers:
    """The peers of these names, installed where they were not before."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"Making the peers' environment in {folder}.")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        _share(folder)
    found: dict[str, dict[str, str]] = {}
    kept = folder / "peers.json"
    if kept.exists():
        found = read_json(kept)
    for name in names:
        if name not in found:
            found[name] = _install(name, python, folder)
            write_json(kept, found)
        if "reason" in found[name]:
            say(f"{name} is not among the contestants: {found[name]['reason']}")
    chosen = {name: found[name] for name in names}
    versions = {name: each["version"] for name, each in chosen.items() if "version" in each}
    return Peers(python, versions, {name: each["reason"] for name, each in chosen.items() if "reason" in each})


def _share(folder: Path) -> None:
    """Lets the environment see the product's packages, and holds them at their versions."""
    own = subprocess.run(
        [folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    theirs = dict.fromkeys(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))
    (Path(own) / "product.pth").write_text("".join(f"{path}\n" for path in theirs), encoding="utf-8")
    pins = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"] != "byol"}
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()) if "+" not in version)
    (folder / "constraints.txt").write_text(lines, encoding="utf-8")


def _install(name: str, python: Path, folder: Path) -> dict[str, str]:
    say(f"Installing {name}.")
    held = ["--constraint", str(folder / "constraints.txt"), "--only-binary", ":all:", "--quiet"]
    for arguments in PEERS[name]:
        failed = _run([str(python), "-m", "pip", "install", *held, *arguments])
        if failed:
            return {"reason": f"pip install {arguments[-1]}: {failed}"}
    failed = _run([str(python), "-c", f"import {MODULES[name]}"])
    if failed:
        return {"reason": f"it does not import: {failed}"}
    asked = f"from importlib.metadata import version; print(version('{name}'))"
    return {"version": subprocess.check_output([python, "-c", asked], text=True).strip()}


def _run(command: list[str]) -> str:
    """What went wrong, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        return f"not done after {MINUTES} minutes"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
    errors = [line for line in lines if "ERROR" in line or "Error" in line]
    return (errors or lines or ["no reason given"])[0][:200]


def asked(peers: Peers) -> dict[str, Any]:
    """For a result file."""
    return {"versions": peers.versions, "missing": peers.missing}
