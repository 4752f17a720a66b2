"""Every command and every line of Python in the README and in docs/ runs, on a few small images.

What makes a run small is put between the command and the work (`smaller`), never into the text: each command is taken
by the real command line as it stands. What cannot run in a test is listed with its reason, and still parsed. A diff is
applied to a copy of the package, and the block after the diff runs with that copy.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from cyclopts.exceptions import MissingArgumentError
from PIL import Image

from byol import networks, objectives, plugins, pretraining, views
from byol.cli import EVERYWHERE, main, take_plugin
from byol.cli.app import app, given_values
from byol.config import Config as Everything
from byol.config import apply, declared
from byol.evals import evaluation
from byol.evals.spec import Specs
from byol.explore import doctor
from byol.models import fit as fitting
from byol.presets import compose
from byol.tables import catalog, measure
from byol.tables.scales import SCALES
from byol.tune import halving
from byol.tune import run as tuning
from byol.weights import resnets
from tests.conftest import TINY, write_images

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

pytestmark = pytest.mark.timeout(900)  # a page is one test, and seconds of work wait long on a busy machine

# Command → why it is only parsed. One that is not in the pages any more fails the test, as does a new one that fails.
NOT_RUN = {
    "make demo": "minutes",
    "make test": "runs this test",
    "make setup": "downloads torch where it is not there",
    ". .venv/bin/activate": "changes the shell that it is given in",
    "torchrun --nproc-per-node 8 -m byol pretrain ./images --preset paper-300 --out runs/mine": "eight GPUs",
    "torchrun --nproc-per-node 8 -m byol pretrain ./images --preset paper-300 --run.shard"
    " --out runs/mine": "eight GPUs",
    "byol check-gpu --out gpu-report.json": "a GPU; tests/test_device.py runs it on a pretended one",
    "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint first:29500 -m byol pretrain ./images"
    " --preset paper-300 --out runs/big": "two machines",
    "torchrun --nproc-per-node 8 --max-restarts 100 -m byol pretrain ./images --preset paper-300"
    " --out runs/big": "eight GPUs",
    "srun --ntasks 64 byol pretrain ./images --preset paper-300 --out /shared/mine": "a cluster",
    "srun --ntasks 64 byol pretrain ./images --preset paper-300 --out runs/big": "a cluster",
    "byol launch ./images --preset paper-300 --out runs/big --nodes 8 --gpus 8 --partition gpu": "submits to a cluster",
    "byol pretrain ./images --run.device cuda --out runs/gpu": "a GPU",
    "byol pretrain torchvision:CIFAR10 --preset cifar10": "downloads 170 MB",
    "byol pretrain 's3://bucket/train-{000..511}.tar' --data.shuffle shards": "a bucket",
    "byol pretrain 's3://bucket/train-{000..511}.tar' --data.shuffle shards --preset paper-300": "a bucket",
    "byol pretrain hf:someone/flowers:train": "downloads",
    "byol table target-decay --data.root /datasets": "ImageNet",
    "byol table augmentations --jobs slurm:gpu:1 --data.root /datasets": "ImageNet and a cluster",
    "byol table linear-encoders --jobs slurm:gpu:8:4 --data.root /datasets": "ImageNet and a cluster",
    "until byol pretrain ./images --out runs/loop; do [ $? -eq 75 ] || break; done": "starts a process of its own",
    "python benchmarks/render.py": "writes these pages",
}
# Pages that begin with a run which another page has made.
RUN_BEFORE = {"faq.md", "extend.md", "weights.md"}

SHORT = {**TINY, "optim.epochs": 1, "data.workers": 0}
QUICK = {name: value for name, value in SHORT.items() if name.startswith(("network.", "data.res", "optim.batch"))}
SHAPE = ("network.encoder", "network.width", "network.small_images")
FIXED = {name: SHORT[name] for name in ("optim.epochs", "optim.batch", "data.workers")}
FEW = {
    **{"linear.epochs": 1, "linear.batch": 8, "linear.lrs": (0.1,), "transfer.penalties": (0.1, 1.0)},
    **{"semi_supervised.lrs": (0.1,), "semi_supervised.epochs": (1.0,), "semi_supervised.fractions": (0.5,)},
    **{"finetune.steps": 1, "finetune.batch": 8, "finetune.lrs": (0.1,), "finetune.weight_decays": (0.0,)},
    **{"supervised.epochs": 1, "supervised.batch": 8},
}


class Block(NamedTuple):
    """What stands between fences, after which language, and the diffs before it that it needs."""

    language: str
    text: str
    patch: str


def blocks(page: Path) -> list[Block]:
    """All but diffs, each of which belongs to the block after it; that block must be in the same section."""
    found: list[Block] = []
    patch = ""
    pieces = re.findall(r"^(#+ [^\n]*)$|^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for heading, language, text in [*pieces, ("the end", "", "")]:
        if language == "diff":
            patch += text
        elif heading:
            assert not patch, f"{page.name}: before {heading}, a diff has no block after it that tries it"
        else:
            found.append(Block(language, text, patch))
            patch = ""
    return found


def commands(text: str) -> list[str]:
    """The lines of a block without comments, one that ends in a backslash together with the next."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines) if line]


ALL = {page.name: [c for b in blocks(page) if b.language == "sh" for c in commands(b.text)] for page in PAGES}


def parsed(command: str) -> None:
    """The command line knows the verb, every flag and the type of every value, and the config takes them."""
    command = re.sub(r"^until (.*?);.*", r"\1", command)
    tokens = shlex.split(command)
    if tokens[0] == "make":
        assert re.search(rf"^{tokens[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
    elif tokens[0] == "python":
        assert (ROOT / tokens[1]).is_file(), command
    elif tokens[0] not in ("pip", "."):
        assert "byol" in tokens, command
        words = [word for word in take_plugin(tokens[tokens.index("byol") + 1 :]) if word not in EVERYWHERE]
        _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        given = bound.arguments.get("given")
        preset = bound.arguments.get("preset", "auto")
        if "preset" in bound.signature.parameters and preset not in catalog.TABLES:  # a table is planned, too
            compose(preset, given_values(given) if given else {}, {})


def run(command: str) -> None:
    tokens = shlex.split(command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", tokens)
        if tokens[0] == "python":
            patch.setattr(sys, "argv", tokens[1:])
            runpy.run_path(str(ROOT / tokens[1]), run_name="__main__")
        else:
            assert tokens[0] == "byol", f"{command}: neither run nor listed in NOT_RUN"
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 0, command


def execute(language: str, text: str) -> None:
    """A block of a page, in the present directory."""
    assert language in ("sh", "python", "text"), f"a block without a known language: {text}"
    file = re.match(r"# (\w+\.py)\n", text)
    if language == "python" and file:  # the block shows this file
        Path(file[1]).write_text(text)
    if language == "python":
        exec(compile(text, "a page", "exec"), {"__name__": "__main__"})
    for command in commands(text) if language == "sh" else []:
        parsed(command)
        if command not in NOT_RUN:
            run(command)


def smaller(world: Path) -> contextlib.ExitStack:
    """Inside, every verb works as ever, but trains for a few steps and tries few settings."""
    patch = pytest.MonkeyPatch()
    real_pretrain, real_evaluate, real_plan, real_doctor = (
        *(pretraining.pretrain, evaluation.evaluate),
        *(catalog.plan, doctor.doctor),
    )
    real_fit, real_tune = fitting.fit, tuning.tune

    def pretrain(data: Any, out: Any = None, preset: str = "auto", overrides: Any = None, **more: Any) -> Any:
        given = "network.init" in (overrides or {})  # then the weights settle the encoder
        small = {name: value for name, value in SHORT.items() if not (given and name in SHAPE)}
        return real_pretrain(data, out, preset, {**small, **(overrides or {}), **FIXED}, **more)

    def evaluate(*arguments: Any, specs: Specs | None = None, **more: Any) -> Any:
        return real_evaluate(*arguments, specs=apply(specs or Specs(), FEW), **more)

    def fit(*arguments: Any, options: fitting.Options, **more: Any) -> Any:
        few = apply(Specs(), FEW)
        return real_fit(*arguments, options=replace(options, transfer=few.transfer, finetune=few.finetune), **more)

    def plan(asked: catalog.Request) -> Any:
        if asked.planned:
            return real_plan(asked)
        rows = asked.rows or (next(row for row in catalog.find(asked.name).at(SCALES[asked.scale]) if row.ours).label,)
        return real_plan(replace(asked, given={**SHORT, **asked.given}, rows=rows, seeds=1))

    def tune(request: tuning.Request) -> Any:
        names = request.policies or ("usual", "no flip")
        patch.setattr(measure, "pretrain", real_pretrain)  # a trial has its own few steps
        return real_tune(replace(request, values={**QUICK, **request.values}, policies=names))

    patch.setattr(tuning, "tune", tune)
    patch.setattr(tuning, "_cost", lambda *_: halving.Cost(100.0, 1.0))  # so that few steps fit
    patch.setattr(halving, "FEWEST_STEPS", 1)
    patch.setattr(pretraining, "pretrain", pretrain)
    patch.setattr(evaluation, "evaluate", evaluate)
    patch.setattr(fitting, "fit", fit)
    patch.setattr(catalog, "plan", plan)
    patch.setattr(doctor, "doctor", lambda request: real_doctor(replace(request, speed=False)))
    patch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    patch.chdir(world)
    stack = contextlib.ExitStack()
    stack.callback(patch.undo)
    stack.callback(plugins.unload)
    return stack


def furnish(world: Path) -> None:
    """The files that the pages take for granted."""
    images = write_images(world / "images", 52, sides=(40,))
    shutil.copy(next(images.rglob("*.jpg")), images / "cat.jpg")
    shutil.copy(images / "cat.jpg", world)
    write_images(world / "labelled", 16, sides=(40,))
    for part in ("train", "test"):
        write_images(world / "cifar10" / part, 16, sides=(40,))
    write_images(world / "imagenette", 16, sides=(40,))
    (world / "grey").mkdir()
    (world / "scans").mkdir()
    for number, path in enumerate(sorted((world / "labelled").rglob("*.jpg"))):
        grey = Image.open(path).convert("L")
        grey.save(world / "grey" / f"{number}.png")
        Image.fromarray(np.asarray(grey).astype(np.uint16) * 16).save(world / "scans" / f"{number}.png")


def torchvision_weights(path: Path) -> None:
    """A file as torchvision's are, of a ResNet-18 at a sixteenth of its width."""
    model = resnets.torchvision_resnet("BasicBlock", [2, 2, 2, 2], 0.0625, small_images=False)
    model.fc = torch.nn.Linear(32, 10)
    torch.save(model.state_dict(), path)


def deepmind(path: Path) -> None:
    """A checkpoint as theirs is built, of a ResNet-50 at a sixteenth of its width."""
    from tests.weights.test_weights import haiku, trained

    config = apply(Everything(), {"network.encoder": "resnet50", "network.width": 0.0625})
    state = haiku(dict(trained(networks.encoder(config.network)).state_dict()))
    path.write_bytes(pickle.dumps({"experiment_state": state, "step": 1, "rng": None}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader of the pages has it; copied for each page."""
    root = tmp_path_factory.mktemp("world") / "files"
    root.mkdir()
    furnish(root)
    deepmind(root / "resnet50x1.pkl")
    torchvision_weights(root / "resnet18.pth")
    return root


@pytest.fixture(scope="module")
def trained_run(world: Path) -> Path:
    with smaller(world):
        return Path(pretraining.pretrain("images", world.parent / "run").out)


@pytest.fixture
def place(world: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Path]]:
    with contextlib.ExitStack() as stack:

        def furnished(page: str) -> Path:
            here = tmp_path / "here"
            shutil.copytree(world, here)
            if page in RUN_BEFORE:
                shutil.copytree(request.getfixturevalue("trained_run"), here / "runs" / "images-auto")
            stack.enter_context(smaller(here))
            return here

        yield furnished


@pytest.fixture
def own_entries() -> Iterator[None]:
    """What a page adds to the package's dicts is gone after it: other tests count what is in them."""
    dicts = objectives.OBJECTIVES, networks.BACKBONES, views.OPERATIONS
    before = [dict(entries) for entries in dicts]
    yield
    plugins.unload()
    for entries, kept in zip(dicts, before, strict=True):
        entries.clear()
        entries.update(kept)


@pytest.mark.usefixtures("own_entries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs(page: Path, place: Callable[[str], Path]) -> None:
    """Breaks if a command or a line of Python in the pages is wrong, or no longer fits the program."""
    place(page.name)
    for block in blocks(page):
        if not block.patch:
            execute(block.language, block.text)


PATCHED = [(page.name, block) for page in PAGES for block in blocks(page) if block.patch]
WITH_THE_COPY = """
import sys
from pathlib import Path
from tests.test_docs import execute, smaller

with smaller(Path.cwd()):
    execute(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize(("page", "block"), PATCHED, ids=[f"{page}-{n}" for n, (page, _) in enumerate(PATCHED)])
def test_every_patch_applies_and_works(page: str, block: Block, place: Callable[[str], Path], tmp_path: Path) -> None:
    """Breaks if a worked example no longer fits the code, or the block after it does not find what it promises."""
    if not shutil.which("git"):
        pytest.skip("needs git, to apply a patch")
    copy = tmp_path / "copy"
    for top in {"byol", *re.findall(r"^--- a/(\w+)/", block.patch, re.MULTILINE)}:
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__", "fixtures"))
    (copy / "worked.diff").write_text(block.patch)
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}  # not as a part of a checkout around it
    done = subprocess.run(["git", "apply", "worked.diff"], cwd=copy, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    result = subprocess.run(
        [sys.executable, "-c", WITH_THE_COPY, block.language, block.text],
        cwd=place(page),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"},
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_there_are_patches() -> None:
    """Breaks if the worked examples are no longer recognized, so that none is tried."""
    assert {page for page, _ in PATCHED} == {"extend.md"}


def test_what_is_not_run_is_there() -> None:
    """Breaks if a command was changed or removed, and its reason not to be run was left behind."""
    everything = {command for found in ALL.values() for command in found}
    assert set(NOT_RUN) <= everything
    assert len(everything) > 60


def test_commands_within_the_text() -> None:
    """Breaks if a command in running text names a verb or a flag that is gone."""
    flags = {name for kind in (Everything, Specs) for name, _, _ in declared(kind)}
    added = {name for _, block in PATCHED for name in re.findall(r"^\+ +(\w+): .*option\(", block.patch, re.MULTILINE)}
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text):
            words = span.split()
            if words[0] == "byol" and len(words) > 1:
                with contextlib.suppress(MissingArgumentError):  # a verb alone stands for itself
                    app.parse_args(words[1:], exit_on_error=False, print_error=False)
            for word in words:
                if re.match(r"--[a-z-]+\.[a-z]", word) and not word.endswith("*"):
                    name = word.split("=")[0].removeprefix("--").replace(".no-", ".").replace("-", "_")
                    assert name in flags or name.split(".")[-1] in added, f"{page.name}: {span}"


def test_links_lead_somewhere() -> None:
    """Breaks if a page or a heading that a link names was renamed."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            other = (page.parent / file).resolve() if file else page
            assert other.exists(), f"{page.name}: {target}"
            titles = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
            names = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert not heading or heading in names, f"{page.name}: {target}"


def test_the_readme_is_short_and_leads_everywhere() -> None:
    """Breaks if the README grows past what one reads, loses a task, or a page of docs/ cannot be reached from it."""
    text = PAGES[0].read_text(encoding="utf-8")
    assert len(text.split()) <= 1200
    tasks = text.partition("## Five tasks")[2].partition("\n## ")[0]
    assert [len(commands(block)) for block in re.findall(r"```sh\n(.*?)```", tasks, re.DOTALL)] == [3] * 5
    reached, waiting = set[Path](), [PAGES[0]]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        found = re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text(encoding="utf-8"))
        waiting += [other for name in found if (other := (page.parent / name).resolve()) not in reached]
    assert set(PAGES) <= reached
    picture = ROOT / "docs" / "demo.png"
    assert "(docs/demo.png)" in text
    assert picture.stat().st_size <= 200_000


def test_the_drawn_path_of_a_batch_names_its_files() -> None:
    """Breaks if a file on the path of a batch is renamed or added, and the drawing still shows the old path."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([\w/]+)`", page.partition("twelve files:")[2].partition("Blue")[0]))
    drawn = re.findall(r'class="m"[^>]*>([\w/, ]+)<', (ROOT / "docs" / "batch.svg").read_text(encoding="utf-8"))
    assert len(listed) == 12
    assert {name for group in drawn for name in group.split(", ")} == listed | {"schedules"}
    assert all((ROOT / "byol" / f"{name}.py").is_file() for name in listed)
