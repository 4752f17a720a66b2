"""How soon a kNN accuracy is reached on CIFAR-10: byol's `cifar10-cpu` against lightly's CIFAR example, same encoder.

    python benchmarks/time_to_accuracy.py FOLDER --accuracies 0.34 0.36 0.38 0.4 --minutes 20

FOLDER holds train/<class>/ and test/<class>/. Each contestant trains in its own process and is stopped every so many
seconds of training for a look, which the clock leaves out: 20 neighbours of 2,000 test images among 10,000 training
images, by the same code and from the same pixels for both. A contestant ends when a look reaches the highest accuracy,
or its time is over. byol's schedule has the given epochs; lightly's example has a constant rate. Writes
results/speed-time-to-accuracy.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import peers
import speed
import torch
from contestants import Files, autocast, encoder, loader, pixels, placed
from torch import Tensor, nn

from byol import neighbours
from byol.run.files import write_json
from byol.run.machine import versions
from byol.run.record import commit

HERE = Path(__file__).resolve().parent
SPEC = {"depth": 18, "width": 0.25, "small": True, "size": 32, "batch": 256, "hidden": 1024, "tuned": False}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BANK, QUERIES, NEIGHBOURS = 10_000, 2_000, 20


class Reached(Exception):
    """The accuracy, or the end of the time."""


class Looks:
    """Stops the clock, asks for the neighbours, starts it again."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.found = spec, list[tuple[float, float]]()
        self.bank, self.queries = (self._images(part, count) for part, count in (("train", BANK), ("test", QUERIES)))
        self.trained, self.resumed, self.due = 0.0, time.perf_counter(), spec["every"]

    def _images(self, part: str, count: int) -> tuple[Tensor, Tensor]:
        folder = Path(self.spec["folder"]) / part
        files = Files(str(folder), np.asarray)
        classes = sorted(path.name for path in folder.iterdir())
        chosen = np.random.default_rng(0).permutation(len(files))[:count]
        labels = torch.tensor([classes.index(files.paths[i].parent.name) for i in chosen])
        images = torch.from_numpy(np.stack([files[int(i)] for i in chosen])).permute(0, 3, 1, 2)
        return (images / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), labels

    def after_step(self, network: nn.Module) -> None:
        """Called once a step."""
        seconds = self.trained + time.perf_counter() - self.resumed
        if seconds < self.due:
            return
        accuracy = self._accuracy(network)
        self.found.append((round(seconds, 1), round(accuracy, 4)))
        print(json.dumps(self.found[-1]), file=sys.stderr, flush=True)
        if accuracy >= self.spec["accuracies"][-1] or seconds >= self.spec["seconds"]:
            raise Reached
        self.trained, self.due = seconds, seconds + self.spec["every"]
        self.resumed = time.perf_counter()

    @torch.no_grad()
    def _accuracy(self, network: nn.Module) -> float:

        network.eval()
        bank, queries = (
            torch.cat([network(chunk).float() for chunk in images.split(500)])
            for images, _ in (self.bank, self.queries)
        )
        network.train()
        found = neighbours.votes(bank, self.bank[1], queries, classes=10, k=NEIGHBOURS).argmax(1)
        return float((found == self.queries[1]).double().mean())


def by_byol(spec: dict[str, Any]) -> list[tuple[float, float]]:
    """The preset, with as many epochs as fit into the time at the speed that the plan measures."""
    from byol import pretraining

    looks = Looks(spec)
    plain = pretraining.update

    def watched(model: Any, *arguments: Any, **named: Any) -> Any:
        step = plain(model, *arguments, **named)
        looks.after_step(model.online.encoder)
        return step

    pretraining.update = watched
    overrides = {"optim.epochs": spec["epochs"], "optim.probe": False}
    with tempfile.TemporaryDirectory() as out, contextlib.suppress(Reached):
        looks.resumed = time.perf_counter()  # reading the images counts
        pretraining.pretrain(Path(spec["folder"]) / "train", out, "cifar10-cpu", overrides)
    return looks.found


def by_lightly(spec: dict[str, Any]) -> list[tuple[float, float]]:
    """Its examples/pytorch/byol.py: SGD of rate 0.06, tau from 0.996 to 1 over its 10 epochs, then constant."""
    import copy

    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules.heads import BYOLPredictionHead, BYOLProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms.byol_transform import BYOLTransform, BYOLView1Transform, BYOLView2Transform
    from lightly.utils.scheduler import cosine_schedule

    looks = Looks(spec)
    looks.resumed = time.perf_counter()
    transform = BYOLTransform(
        view_1_transform=BYOLView1Transform(input_size=32, gaussian_blur=0.0),
        view_2_transform=BYOLView2Transform(input_size=32, gaussian_blur=0.0),
    )
    backbone = placed(encoder(spec), spec)
    head, predictor = BYOLProjectionHead(backbone.num_features, 1024, 256), BYOLPredictionHead(256, 1024, 256)
    target, target_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(target)
    deactivate_requires_grad(target_head)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters(), *predictor.parameters()], lr=0.06)
    criterion = NegativeCosineSimilarity()
    folder = str(Path(spec["folder"]) / "train")
    an_epoch = len(Files(folder, np.asarray)) // spec["batch"]
    try:
        for step, (view0, view1) in enumerate(loader(spec | {"folder": folder}, transform)):
            # Beyond the example's ten epochs its target would stand still: it is held where the ninth epoch has it.
            momentum = cosine_schedule(min(step // an_epoch, 8), 10, 0.996, 1)
            update_momentum(backbone, target, m=momentum)
            update_momentum(head, target_head, m=momentum)
            view0, view1 = pixels(view0, spec), pixels(view1, spec)
            with autocast(spec):
                p0, p1 = (predictor(head(backbone(view))) for view in (view0, view1))
                with torch.no_grad():
                    z0, z1 = (target_head(target(view)) for view in (view0, view1))
                loss = 0.5 * (criterion(p0, z1) + criterion(p1, z0))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            looks.after_step(backbone)
    except Reached:
        pass
    return looks.found


CONTESTANTS = {"byol": by_byol, "lightly": by_lightly, "lightly tuned": by_lightly}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--accuracies", type=float, nargs="+", default=[0.34, 0.36, 0.38, 0.4])
    parser.add_argument("--minutes", type=float, default=20.0, help="for each contestant")
    parser.add_argument("--epochs", type=float, default=4.0, help="of byol's schedule; 4 take about 8 minutes")
    parser.add_argument("--every", type=float, default=30.0, help="seconds of training between looks")
    parser.add_argument("--only", nargs="*", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        spec = json.loads(arguments.work)
        torch.manual_seed(0)
        print(json.dumps(CONTESTANTS[spec["who"]](spec)))
        return
    share = speed.busy()
    levels = sorted(arguments.accuracies)
    others = peers.environment(["lightly"])
    looks: dict[str, list[tuple[float, float]]] = {}
    for who in arguments.only:
        if who != "byol" and not others.versions:
            continue
        spec = SPEC | {
            "who": who,
            "folder": arguments.folder,
            "accuracies": levels,
            "seconds": 60 * arguments.minutes,
            "epochs": arguments.epochs,
            "every": arguments.every,
            "tuned": "tuned" in who,
            "workers": 2 if "tuned" in who else 8,
        }
        python = sys.executable if who == "byol" else str(others.python)
        command = [python, str(HERE / "time_to_accuracy.py"), arguments.folder, "--work", json.dumps(spec)]
        paths = {"PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE)))}
        done = subprocess.run(command, env=os.environ | paths, stdout=subprocess.PIPE, text=True, check=True)
        looks[who] = json.loads(done.stdout.splitlines()[-1])
    record = {
        "entry": "time-to-accuracy",
        "command": "python benchmarks/time_to_accuracy.py FOLDER",
        "busy": round(share, 3),
        "idle": share <= speed.BUSY,
        "goals": goals(looks, levels),
        "minutes": arguments.minutes,
        "epochs": arguments.epochs,
        "figures": looks,
        "peers": peers.asked(others),
        "versions": versions(),
        "commit": commit(),
    }
    write_json(HERE.parent / "results" / "speed-time-to-accuracy.json", record)


def goals(looks: dict[str, list[tuple[float, float]]], levels: list[float]) -> list[dict[str, Any]]:
    """Seconds to each level that byol reached, and how much longer the others took, at least as long as was waited."""
    found = []
    for level in levels:
        soonest = {who: next((s for s, accuracy in own if accuracy >= level), None) for who, own in looks.items()}
        ours = soonest.pop("byol", None)
        if ours is None:
            continue
        found.append(speed.goal(f"time to {100 * level:.0f} % of kNN, CIFAR-10 from JPEG files", ours, None, unit="s"))
        for who, seconds in soonest.items():
            waited, best = looks[who][-1][0], max(accuracy for _, accuracy in looks[who])
            short = f", which had {100 * best:.0f} % at best after {waited:.0f} s: at least"
            what, ratio = f"… sooner than {who}{'' if seconds else short}", (seconds or waited) / ours
            found.append(speed.goal(what, ratio, None if "tuned" in who else 3.0))
    return found


if __name__ == "__main__":
    main()
