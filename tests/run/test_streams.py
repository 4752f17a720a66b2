"""Every stream × every verb: output that cannot be written or encoded ends no command, and names are only shown."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from byol import checkpoint, networks
from byol.errors import DiskError
from byol.run import progress
from tests.chaos.scale import LONG
from tests.conftest import ALONE, TINY, write_images
from tests.zygote import Zygote, logged, pretrain

ODD = "ä\x1b[31m\u202e€.jpg"
VERBS = {
    "embed": ["embed", "{run}", "{images}", "-o", "{out}/features.npz"],
    "export": ["export", "{run}", "--to=torchvision", "-o", "{out}/weights.pth"],
    "import": ["import", "{weights}", "-o", "{out}/encoder.safetensors"],
    "report": ["report", "{run}", "--images=0", "-o", "{out}/report.html"],
    "search": ["search", "{images}/class0/" + ODD, "{run}", "{images}", "-o", "{out}/found.csv"],
    "dedupe": ["dedupe", "{run}", "{images}", "-o", "{out}/groups.csv"],
    "outliers": ["outliers", "{run}", "{images}", "-o", "{out}/outliers.csv"],
    "pick": ["pick", "3", "{run}", "{images}", "-o", "{out}/picked.csv"],
    "views": ["views", "{images}", "-o", "{out}/views.png"],
    "doctor": ["doctor", "{images}", "--no-speed", "-o", "{out}/doctor"],
    "evaluate": ["evaluate", "{run}", "--on={images}", "--protocol=knn", "--out={out}/e", "--cache={out}/c"],
    "shard": ["shard", "{images}", "{out}/shards"],
    "pretrain": ["pretrain", "{images}", "--out={out}/run", "--preset=cifar10-cpu"],
    "presets": ["presets"],
    "config": ["config", "paper-1000"],
    "explain": ["explain", "optim.tau"],
    "paper": ["paper"],
    "table": ["table", "--list"],
    "completion": ["completion", "bash"],
    "plan": ["plan", "paper-1000", "--device-type=v100"],
    "help": ["--help"],
    "help of a verb": ["pretrain", "--help"],
    "version": ["--version"],
}
SILENT = ("shard", "pretrain")  # verbs whose results are files alone
BROKEN = [("stdout", "gone"), ("stdout", "/dev/full"), ("stderr", "gone")]
BROKEN += [("stdout", "closed"), ("stderr", "/dev/full"), ("stderr", "closed")] if LONG else []
FLAGS = [
    f"--{name}" if value is True else f"--{name}={value}"
    for name, value in (TINY | ALONE | {"optim.epochs": 1}).items()
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> dict[str, Path]:
    """Images, one of which has a name that would colour and turn a terminal, a run, and weights to import."""
    root = tmp_path_factory.mktemp("made")
    images = write_images(root / "images", 12)
    (images / "class0" / "000.jpg").rename(images / "class0" / ODD)
    (images / "class0" / f"bad-{ODD}").write_text("no image")
    code, said = zygote.run(*pretrain(images, root / "run", TINY | ALONE | {"optim.epochs": 1}))
    assert code == 0, said
    torch.save(networks.resnet(18, width=0.25).state_dict(), root / "weights.pth")
    return {"images": images, "run": root / "run", "weights": root / "weights.pth"}


def command(verb: str, made: dict[str, Path], out: Path) -> list[str]:
    words = [word.format(**made, out=out) for word in VERBS[verb]]
    return words + (FLAGS if verb == "pretrain" else [])


@pytest.mark.parametrize(("stream", "state"), BROKEN)
@pytest.mark.parametrize("verb", VERBS)
def test_a_broken_stream_ends_no_verb(
    verb: str, stream: str, state: str, made: dict[str, Path], tmp_path: Path, zygote: Zygote
) -> None:
    """Breaks if a verb fails because nobody reads what it says, or hides that the disk lacks its results (G4)."""
    code, said = zygote.run(*command(verb, made, tmp_path), streams={stream: state})
    assert "Traceback" not in said
    if stream == "stdout" and state == "/dev/full" and verb not in SILENT:
        assert code == 74, said
        assert "standard output: No space left on device" in said.splitlines()[-1]
    else:
        assert code == 0, said


@pytest.mark.parametrize("verb", VERBS)
def test_names_are_shown_and_not_sent(verb: str, made: dict[str, Path], tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if an ASCII stream ends a verb, or a file's name reaches the terminal as commands for it (G4)."""
    places = {name: str(tmp_path / name) for name in ("stdout", "stderr")}
    code, _ = zygote.run(*command(verb, made, tmp_path / "made"), streams=places)
    both = Path(places["stdout"]).read_bytes() + Path(places["stderr"]).read_bytes()
    assert code == 0, both
    assert b"\x1b" not in both
    assert both.isascii()
    if verb in ("search", "outliers"):
        assert rb"\xe4\x1b[31m\u202e\u20ac.jpg" in both


@pytest.mark.parametrize("verb", ["pretrain", "evaluate", "export"])
def test_a_mistake_with_an_odd_name(verb: str, zygote: Zygote) -> None:
    """Breaks if the sentence of an error sends what a name holds."""
    words = {"evaluate": ["--on=scenes"], "export": ["--to=timm", "-o", "x.safetensors"]}.get(verb, [])
    code, said = zygote.run(verb, f"/nowhere/{ODD}", *words)
    assert code == 2, said
    assert "\x1b" not in said
    assert r"\x1b[31m" in said


def test_a_terminal_that_goes_away_costs_no_step(made: dict[str, Path], tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if training ends because the terminal of its progress bar is gone, or SIGHUP ends it without saving."""
    long = TINY | {"optim.epochs": 4000, "run.checkpoint_seconds": 3600}
    leader, terminal = pty.openpty()
    pid = zygote.start(*pretrain(made["images"], tmp_path / "run", long), streams={"stderr": os.ttyname(terminal)})
    os.close(terminal)
    while logged(tmp_path / "run") < 2:
        assert not zygote.ended(pid)
        time.sleep(0.02)
    assert os.read(leader, 100)
    os.close(leader)
    seen = logged(tmp_path / "run")
    while logged(tmp_path / "run") < seen + 20:
        assert not zygote.ended(pid)
        time.sleep(0.02)
    os.kill(pid, signal.SIGHUP)
    code, _ = zygote.wait(pid)
    assert code == 75
    found = checkpoint.found(tmp_path / "run" / "checkpoints")
    assert found
    assert logged(tmp_path / "run") + 1 == int(re.findall(r"\d+", found[0].name)[0])


def test_nohup_is_obeyed() -> None:
    """Breaks if SIGHUP ends a command that was told to ignore it."""
    text = "import os; from byol.run import signals\nwith signals.handled(): os.kill(os.getpid(), 1)"
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", text]
    assert subprocess.run(ignoring, timeout=60).returncode == 0


def test_the_end_of_python_stays_silent(tmp_path: Path) -> None:
    """Breaks if what a broken stream still holds makes the interpreter's exit fail, which code 120 would show."""
    for words, code in (("presets >/dev/full 2>/dev/full", 74), ("presets >&- 2>&-", 0), ("--help >&- 2>&- <&-", 0)):
        line = f"'{sys.executable}' -m byol {words}"
        assert subprocess.run(["sh", "-c", line], timeout=60).returncode == code, words
    piped = f"('{sys.executable}' -m byol config; echo $? >code) | true"
    result = subprocess.run(["bash", "-c", piped], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (tmp_path / "code").read_text() == "0\n"
    assert not result.stderr


def test_results_that_a_program_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a stream of Python's own, closed or of another encoding, ends what a program calls."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    closed = io.StringIO()
    closed.close()
    for stream in (closed, None, Full()):
        monkeypatch.setattr(sys, "stderr", stream)
        progress.say("nobody reads this")
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stdout", stream)
        progress.tell("nobody reads this")
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(DiskError, match="No space left"):
        progress.tell("a result")


def test_what_is_hidden() -> None:
    """Breaks if a control character is sent, or text that is not one is changed."""
    assert progress.shown("a\x1b]0;t\x07\x9b1m\x7f\r\u2066") == r"a\x1b]0;t\x07\x9b1m\x7f\r\u2066"
    assert progress.shown("é·€ 中\n\tb") == "é·€ 中\n\tb"
