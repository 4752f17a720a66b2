"""The command line as a new user meets it: quick answers, one sentence for a mistake, fixed exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from byol.config import declared
from tests.cli.conftest import computing
from tests.conftest import TINY

QUICK = [f"--{name}={value}" for name, value in TINY.items() if value is not True] + ["--network.small_images"]


def byol(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "byol", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


def refused(result: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    """One sentence on standard error, no traceback, this exit code."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("byol: "), result.stderr
    assert result.stderr.strip().count("\n") <= 2
    for text in texts:
        assert text in result.stderr


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["pretrain", "--preset", "papr-1000"], ["paper-1000"]),
        (["pretrain", "--optim.lt", "3"], ["--optim.lr"]),
        (["pretrain", "--optim.lr=many"], ["optim.lr", "many"]),
        (["pretrain", "--optim.lr=-1"], ["optim.lr", "at least 0"]),
        (["pretrain", "--optim.batch=0"], ["optim.batch", "at least 1"]),
        (["pretrain", "--optim.optimizer=lasr"], ["lars"]),
        (["pretrain", "--optim.batch=10", "--optim.accumulate=3"], ["multiple"]),
        (["pretrain", "--config", "missing.yaml"], ["missing.yaml", "No such file"]),
        (["pretrain", "/no/such/folder"], ["There is no folder /no/such/folder"]),
        (["pretrain", "scenes:many"], ["scenes:COUNT"]),
        (["pretrain", "scenes", "--network.encoder=resnet51"], ["resnet50"]),
        (["pretrain", "scenes", "--objective.name=info-nse"], ["info-nce"]),
        (["pretrain", "--network.predictor=optimal-liner"], ["optimal-linear"]),
        (["pertrain"], ["pretrain"]),
        (["config", "--preset", "imagenete"], ["imagenette"]),
        (["embed", "/no/such/run", "scenes"], ["no encoder at /no/such/run"]),
        (["evaluate", "/no/such/run", "--on", "scenes"], ["no encoder at /no/such/run"]),
        (["evaluate", "run", "--on", "scenes", "--protocol", "linaer"], ["linear"]),
        (["evaluate", "run", "--on", "scenes", "--budget", "soon"], ["20m"]),
        (["evaluate", "run", "--on", "scenes", "--linear.epoch", "3"], ["--linear.epochs"]),
        (["evaluate", "run", "--on", "scenes", "--linear.lrs", "0.1", "-1"], ["linear.lrs", "at least 0"]),
        (["evaluate", "run"], ["on"]),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else None,
)
def test_mistakes_in_the_command(arguments: list[str], texts: list[str], tmp_path: Path) -> None:
    """Breaks if a mistake is a traceback, exits with anything but 2, or offers no help (G4, G23)."""
    refused(byol(*arguments, cwd=tmp_path), 2, *texts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optim: {lt: 1}", ["wrong.yaml", "optim.lt", "optim.lr"]),
        ("optim: {lr: 1\n", ["wrong.yaml:2", "not valid YAML"]),
        ("optim: {lr: 1}\noptim: {lr: 2}", ["wrong.yaml:2", "duplicate key 'optim'"]),
        ("optim: {epochs: many}", ["wrong.yaml", "optim.epochs", "many"]),
        ("- 1", ["wrong.yaml", "mapping"]),
    ],
)
def test_mistakes_in_the_config_file(text: str, expected: list[str], tmp_path: Path) -> None:
    """Breaks if the file or the field is not named."""
    (tmp_path / "wrong.yaml").write_text(text)
    refused(byol("pretrain", "--config", "wrong.yaml", cwd=tmp_path), 2, *expected)


def test_help_and_mistakes_do_not_load_torch() -> None:
    """Breaks if an import at the top of a module pulls torch in: half a second is what help may take."""
    code = "import sys\nfrom byol.cli import main\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    for arguments in (
        ["--help"],
        ["pretrain", "--help"],
        ["pretrain", "--preset", "x"],
        ["pretrain", "--optim.lt=1"],
        ["evaluate", "run", "--on", "scenes", "--protocol", "linaer"],
        ["evaluate", "run", "--on", "scenes"],
    ):
        result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert result.stdout.strip().endswith("False"), arguments


def test_help_is_quick(moment: float) -> None:
    """Breaks if start-up computes for long; the best of five, as other work may share the machine."""
    assert min(computing("-m", "byol", "--help") for _ in range(5)) < moment


def test_every_field_is_a_flag_with_help() -> None:
    """Breaks if a config field cannot be set from the command line."""
    text = byol("pretrain", "--help-all", env={**os.environ, "COLUMNS": "200"}).stdout
    for name, _, _ in declared():
        assert f"--{name.replace('_', '-')}" in text, name


def test_flags_win_over_the_file_and_the_file_over_the_preset(folder: Path, tmp_path: Path) -> None:
    """Breaks if the order of precedence changes."""
    (tmp_path / "mine.yaml").write_text("optim: {lr: 0.5, weight_decay: 1e-4}\nrun.seed: 7\n")
    others = [flag for flag in QUICK if not flag.startswith("--optim.lr=")]
    command = ["pretrain", str(folder), "--preset", "cifar10-cpu", "--config", "mine.yaml", "--out", "run", *others]
    result = byol(*command, "--optim.lr", "0.25", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    import json

    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["optim.lr"], config["optim.weight_decay"], config["run.seed"]) == (0.25, 1e-4, 7)
    assert config["optim.tau"] == 0.97
    assert "Plan for run" in result.stderr
    for word in ("images", "steps", "peak learning rate", "tau", "float32", "GB", "time"):
        assert word in result.stderr


def test_config_prints_what_config_reads(tmp_path: Path) -> None:
    """Breaks if the printed YAML is not accepted back."""
    text = byol("config", "--preset", "paper-300").stdout
    assert yaml.safe_load(text)["optim"]["lr"] == 0.3
    (tmp_path / "paper.yaml").write_text(text)
    refused(byol("pretrain", "/no/folder", "--config", str(tmp_path / "paper.yaml")), 2, "no folder")


def test_folders_without_images(tmp_path: Path) -> None:
    """Breaks if an empty folder or one of text files is not called bad data (65)."""
    (tmp_path / "empty").mkdir()
    refused(byol("pretrain", "empty", cwd=tmp_path), 65, "empty")
    (tmp_path / "text").mkdir()
    for i in range(3):
        (tmp_path / "text" / f"{i}.txt").write_text("hello")
    refused(byol("pretrain", "text", cwd=tmp_path), 65, "3 other files")


def test_a_full_disk(folder: Path, tmp_path: Path) -> None:
    """Breaks if a disk too small is a traceback or an unnamed failure (74)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs root, to mount a small disk")
    try:
        out = disk / "run"
        result = byol("pretrain", str(folder), "--preset", "cifar10-cpu", "--out", str(out), *QUICK)
        refused_last(result, 74, "MB")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_output_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    """Breaks if a file in the way or a limit on file size is a traceback."""
    (tmp_path / "file").write_text("in the way")
    result = byol("pretrain", str(folder), "--preset", "cifar10-cpu", "--out", str(tmp_path / "file"), *QUICK)
    refused_last(result, 73, "not a run of byol")
    limit = "import resource,signal,sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\nfrom byol.cli import main\nmain()"
    command = [sys.executable, "-c", limit, "pretrain", str(folder), "--preset", "cifar10-cpu"]
    command += ["--out", str(tmp_path / "run"), "--data.workers=0", *QUICK]  # workers hand images over in files
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    refused_last(result, 74, "MB needed")
    assert not list((tmp_path / "run").glob("**/*.tmp"))


def refused_last(result: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    """As `refused`, after other lines such as the plan."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("byol: ")]
    assert len(lines) == 1, result.stderr
    refused(subprocess.CompletedProcess([], result.returncode, "", lines[0]), code, *texts)
    assert "Traceback" not in result.stderr


def test_embed_writes_features_names_and_labels(folder: Path, tmp_path: Path) -> None:
    """Breaks if the file of features does not line up with the images."""
    made = byol("pretrain", str(folder), "--preset", "cifar10-cpu", "--out", str(tmp_path / "run"), *QUICK)
    assert made.returncode == 0, made.stderr
    result = byol("embed", str(tmp_path / "run"), str(folder), "-o", str(tmp_path / "features.npz"))
    assert result.returncode == 0, result.stderr
    stored = np.load(tmp_path / "features.npz")
    assert len(stored["features"]) == len(stored["names"]) == len(stored["labels"]) == 24
    assert all(name.startswith(f"class{label}/") for name, label in zip(stored["names"], stored["labels"], strict=True))


def test_evaluate_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    """Breaks if the verb prints no table, forgets result.json, or is a traceback on images that cannot be scored."""
    run, cache = str(tmp_path / "run"), str(tmp_path / "cache")
    assert byol("pretrain", str(folder), "--preset", "cifar10-cpu", "--out", run, *QUICK).returncode == 0
    asked = ["--protocol", "knn", "transfer-linear", "--knn.k", "3", "--cache", cache, "--precision", "float32"]
    result = byol("evaluate", run, "--on", str(folder), *asked)
    assert result.returncode == 0, result.stderr
    assert "transfer-linear" in result.stdout
    assert (tmp_path / "run" / "evaluations" / "images" / "knn" / "result.json").exists()
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(folder.rglob("*.jpg")):
        (flat / f"{number}.jpg").write_bytes(path.read_bytes())
    refused(byol("evaluate", run, "--on", str(flat), *asked), 65, "no labels")
    refused(byol("evaluate", run, "--on", "flower102", *asked), 2, "flowers102")
    refused(byol("evaluate", run, "--on", "flowers102", *asked, cwd=tmp_path), 2, "flowers-102", "expected")
