"""Sixty and more mistakes in a command or a config file: one sentence that says where, exit code 2, at once (G23)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

FLAGS: list[tuple[str, str]] = [
    # what is typed after `byol`, and what the answer must hold, separated by |
    ("pertrain", "pretrain"),
    ("evalute", "evaluate"),
    ("reprot", "report"),
    ("pretrain --preset papr-1000", "papr-1000|paper-1000"),
    ("pretrain --preset cifar10cpu", "cifar10-cpu"),
    ("pretrain --preset=", "preset"),
    ("pretrain --optim.lt 3", "--optim.lt|--optim.lr"),
    ("pretrain --optim.bacth=3", "--optim.batch"),
    ("pretrain --views.t.bluur=1", "--views.t.blur"),
    ("pretrain --netwrok.width=1", "--network.width"),
    ("pretrain --confg x.yaml", "--config"),
    ("pretrain --optim.lr=many", "optim.lr|many"),
    ("pretrain --optim.lr=", "optim.lr"),
    ("pretrain --optim.batch=2.5", "optim.batch|2.5"),
    ("pretrain --optim.batch=0", "optim.batch|at least 1"),
    ("pretrain --optim.batch=-8", "optim.batch|at least 1"),
    ("pretrain --optim.lr=-1", "optim.lr|at least 0"),
    ("pretrain --optim.lr=nan", "optim.lr|at least 0"),
    ("pretrain --optim.lr=inf", "optim.lr|at least 0"),
    ("pretrain --budget soon", "run.budget|20m|soon"),
    ("pretrain --preset cifar10 --budget 15m", "run.budget|auto|optim.epochs"),
    ("pretrain --optim.tau=1.5", "optim.tau|at most 1"),
    ("pretrain --data.holdout=0.9", "data.holdout|at most 0.5"),
    ("pretrain --data.resolution=4", "data.resolution|at least 8"),
    ("pretrain --data.max_bad=-1", "data.max_bad|at least 0"),
    ("pretrain --data.workers=-5", "data.workers|at least -1"),
    ("pretrain --run.seed=-1", "run.seed|at least 0"),
    ("pretrain --run.seed=99999999999999999999", "run.seed"),
    ("pretrain --optim.optimizer=lasr", "lars"),
    ("pretrain --run.device=gpu", "cuda"),
    ("pretrain --views.crop=torchvison", "torchvision"),
    ("pretrain --optim.probe=perhaps", "optim.probe|perhaps"),
    ("pretrain --views.mean 0.5 0.5", "views.mean"),
    ("pretrain --views.std 1 0 1", "views.std|at least"),
    ("pretrain --optim.batch=10 --optim.accumulate=3", "optim.batch (10)|optim.accumulate (3)"),
    ("pretrain --views.t.area_min=0.9 --views.t.area_max=0.5", "views.t.area_min|views.t.area_max"),
    ("pretrain --objective.name=info-nce --objective.normalization=batch", "objective.normalization|info-nce"),
    ("pretrain --config missing.yaml", "missing.yaml|No such file"),
    ("pretrain --config .", "Is a directory"),
    ("pretrain", "Name the images|byol pretrain ./images"),
    ("pretrain /no/such/folder", "There is no folder /no/such/folder"),
    ("evaluate run --on scenes --protocol linaer", "linaer|linear"),
    ("evaluate run --on scenes --budget soon", "--budget|20m"),
    ("evaluate run --on scenes --linear.epoch 3", "--linear.epochs"),
    ("evaluate run --on scenes --seeds 0", "--seeds|at least 1"),
    ("evaluate run --on scenes --resolution 2", "data.resolution|at least 8"),
    ("evaluate run", "--on"),
    ("evaluate /no/such/run --on scenes", "no encoder at /no/such/run"),
    ("config paper-1000 --images many", "--images|many"),
    ("config imagenete", "imagenete|imagenette"),
    ("explain optim.tua", "optim.tua|optim.tau"),
    ("completion bsh", "bash"),
    ("table target-decy", "target-decy|target-decay"),
    ("report --image 3", "--images"),
]
FILES: list[tuple[str, str]] = [
    ("optim: {lt: 1}", "wrong.yaml|optim.lt|optim.lr"),
    ("optim.bacth: 3", "wrong.yaml|optim.bacth|optim.batch"),
    ("optim: {lr: 1\n", "wrong.yaml:2|not valid YAML"),
    ("optim:\n\tlr: 1", "wrong.yaml:2|not valid YAML"),
    ("optim: {lr: 1}\noptim: {lr: 2}", "wrong.yaml:2|duplicate key 'optim'"),
    ("optim: {lr: 1, lr: 2}", "wrong.yaml:1|duplicate key 'lr'"),
    ("optim: {lr: 1}\noptim.lr: 2", "wrong.yaml|duplicate key 'optim.lr'"),
    ("a: &a [x]\nb: *a", "wrong.yaml:2|aliases"),
    ("\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))]), "aliases"),
    ("optim: {epochs: many}", "wrong.yaml|optim.epochs|many"),
    ("optim: {batch: 0}", "wrong.yaml|optim.batch|at least 1"),
    ("optim: {batch: 1.5}", "wrong.yaml|optim.batch|1.5"),
    ("views: {mean: [1, 2]}", "views.mean has 2 numbers|views.std 3"),
    ("network: {head_bias: 3}", "wrong.yaml|network.head_bias|true or false"),
    ("optim: {optimizer: lasr}", "wrong.yaml|optim.optimizer|lars"),
    ("- 1", "wrong.yaml|mapping"),
    ("1: 2", "wrong.yaml|1 is not text"),
    ("a: !!python/object/apply:os.system [touch harm]", "wrong.yaml:1|python/object"),
    ("a: 2020-13-45", "wrong.yaml|not valid YAML"),
    ("a: " + "[" * 500, "wrong.yaml:1|too deeply nested"),
    ("a: 1\n---\nb: 2", "wrong.yaml:2|not valid YAML"),
    ("optim: null", "wrong.yaml|optim"),
]
DRIVER = """
import json, os, sys, time
from byol.cli import main
imported = time.process_time()
for arguments in json.load(sys.stdin):
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 2)
        began, code = time.process_time(), 0
        sys.argv = ["byol", *arguments]
        try:
            main()
        except SystemExit as ending:
            code = ending.code
        sys.stderr.flush()
        print(json.dumps([code, imported + time.process_time() - began, "torch" in sys.modules]))
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    said = open(read).read()
    os.waitpid(child, 0)
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, Any, str]]:
    """(command, expected, [exit code, CPU seconds with start-up, torch was loaded], standard error)"""
    place = tmp_path_factory.mktemp("mistakes")
    asked = [command.split() for command, _ in FLAGS]
    for number, (text, _) in enumerate(FILES):
        (place / str(number)).mkdir()
        (place / str(number) / "wrong.yaml").write_text(text)
        asked.append(["pretrain", "--config", str(place / str(number) / "wrong.yaml")])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-c", DRIVER]
    result = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, env=environment, cwd=place, timeout=280
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(p.name for p in place.iterdir()) == sorted(map(str, range(len(FILES)))), "something was written"
    pairs = zip(lines[::2], lines[1::2], strict=True)
    every = [" ".join(words) for words in asked], [expected for _, expected in (*FLAGS, *FILES)]
    return [(words, expected, told, said) for words, expected, (told, said) in zip(*every, pairs, strict=True)]


def test_every_mistake_is_one_sentence_with_its_place(answers: list[tuple[str, str, Any, str]]) -> None:
    """Breaks if a mistake is a traceback, exits otherwise than with 2, or file, key or nearest name is not said."""
    assert len(answers) >= 60
    for words, expected, (code, _, _), said in answers:
        assert code == 2, (words, said)
        assert said.startswith("byol: "), (words, said)
        assert "Traceback" not in said, words
        assert said.strip().count("\n") <= 2, (words, said)
        for part in expected.split("|"):
            assert part in said, (words, said)


def test_every_mistake_is_said_at_once(answers: list[tuple[str, str, Any, str]], moment: float) -> None:
    """Breaks if a mistake loads torch, or computes for long, the imports included."""
    for words, _, (_, seconds, torch), _ in answers:
        assert not torch, words
        assert seconds < moment, words
