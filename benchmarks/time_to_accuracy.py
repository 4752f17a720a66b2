"""How soon a kNN accuracy is reached on CIFAR-10: byol's recipe for small machines against lightly's best for CIFAR-10.

    python benchmarks/time_to_accuracy.py FOLDER --seeds 0 1 2 --minutes 9 --wait 20

FOLDER holds train/<class>/ and test/<class>/. Both train the same encoder at the same resolution in bf16 and
channels-last, each in its own process on one thread that also loads its images, and time is CPU time of that process,
which holds on a busy machine too. lightly has the recipe of its CIFAR-10 benchmark: SGD of 0.06 for 128 images,
momentum 0.9, weight decay 5e-4, tau 0.99, a cosine over its time. Every so many seconds training stops for a look,
which the clock leaves out: 20 neighbours of 2,000 test images among all training images, by the same code and from the
same pixels for both. A contestant ends when a look reaches the highest accuracy, or its time is over: --minutes of
byol, --wait of lightly. What is finished in results/speed-time-to-accuracy.json is not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
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
import torch.nn.functional as F
from contestants import Files, autocast, encoder, loader, pixels, placed
from torch import Tensor, nn

from byol import neighbours
from byol.run.files import read_json, write_json
from byol.run.machine import versions
from byol.run.record import commit

HERE = Path(__file__).resolve().parent
RECORD = HERE.parent / "results" / "speed-time-to-accuracy.json"
SPEC = {"depth": 18, "width": 0.25, "small": True, "size": 16, "batch": 128, "hidden": 1024, "tuned": True}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
QUERIES, NEIGHBOURS = 2_000, 20
SOONER = 2.5  # times, than lightly


class Reached(Exception):
    """The accuracy, or the end of the time."""


class Looks:
    """Stops the clock, asks for the neighbours, starts it again."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.found = spec, list[tuple[float, float]]()
        self.bank, self.queries = (self._images(part, count) for part, count in (("train", None), ("test", QUERIES)))
        self.trained, self.resumed, self.due = 0.0, time.process_time(), spec["every"]

    def _images(self, part: str, count: int | None) -> tuple[Tensor, Tensor]:
        folder = Path(self.spec["folder"]) / part
        files = Files(str(folder), np.asarray)
        classes = sorted(path.name for path in folder.iterdir())
        chosen = np.random.default_rng(0).permutation(len(files))[:count]
        labels = torch.tensor([classes.index(files.paths[i].parent.name) for i in chosen])
        images = torch.from_numpy(np.stack([files[int(i)] for i in chosen])).permute(0, 3, 1, 2) / 255
        size = (self.spec["size"], self.spec["size"])
        images = F.interpolate(images, size, mode="bilinear", antialias=True)
        return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), labels

    @property
    def seconds(self) -> float:
        """Of training so far."""
        return self.trained + time.process_time() - self.resumed

    def after_step(self, network: nn.Module) -> None:
        """Called once a step."""
        seconds = self.seconds
        if seconds < self.due:
            return
        accuracy = self._accuracy(network)
        self.found.append((round(seconds, 1), round(accuracy, 4)))
        print(json.dumps(self.found[-1]), file=sys.stderr, flush=True)
        if accuracy >= self.spec["accuracies"][-1] or seconds >= self.spec["seconds"]:
            raise Reached
        self.trained, self.due = seconds, seconds + self.spec["every"]
        self.resumed = time.process_time()

    @torch.no_grad()
    def _accuracy(self, network: nn.Module) -> float:
        network.eval()
        with autocast(self.spec):
            bank, queries = (
                torch.cat([network(pixels(chunk, self.spec)).float() for chunk in images.split(500)])
                for images, _ in (self.bank, self.queries)
            )
        network.train()
        found = neighbours.votes(bank, self.bank[1], queries, classes=10, k=NEIGHBOURS).argmax(1)
        return float((found == self.queries[1]).double().mean())


def by_byol(spec: dict[str, Any]) -> list[tuple[float, float]]:
    """The preset auto, with the time as its budget."""
    from byol import pretraining

    looks, plain = Looks(spec), pretraining.update
    time.perf_counter = time.process_time  # by which auto times steps

    def watched(model: Any, *arguments: Any, **named: Any) -> Any:
        step = plain(model, *arguments, **named)
        looks.after_step(model.online.encoder)
        return step

    pretraining.update = watched
    overrides = {
        "run.budget": f"{spec['seconds']}s",
        "run.threads": 1,
        "run.seed": spec["seed"],
        "data.workers": 0,
        "data.resolution": spec["size"],
        "network.encoder": f"resnet{spec['depth']}",
        "network.width": spec["width"],
        "network.small_images": spec["small"],
        "optim.probe": False,
    }
    with tempfile.TemporaryDirectory() as out, contextlib.suppress(Reached):
        looks.resumed = time.process_time()  # reading the images counts
        pretraining.pretrain(Path(spec["folder"]) / "train", out, "auto", overrides)
    return looks.found


def by_lightly(spec: dict[str, Any]) -> list[tuple[float, float]]:
    """The BYOL of its CIFAR-10 benchmark, without blur, and with the views of the smaller images that both train on."""
    import copy

    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules.heads import BYOLPredictionHead, BYOLProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms.byol_transform import BYOLTransform, BYOLView1Transform, BYOLView2Transform

    looks = Looks(spec)
    looks.resumed = time.process_time()
    transform = BYOLTransform(
        view_1_transform=BYOLView1Transform(input_size=spec["size"], gaussian_blur=0.0),
        view_2_transform=BYOLView2Transform(input_size=spec["size"], gaussian_blur=0.0),
    )
    backbone = placed(encoder(spec), spec)
    head, predictor = BYOLProjectionHead(backbone.num_features, 1024, 256), BYOLPredictionHead(256, 1024, 256)
    target, target_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(target)
    deactivate_requires_grad(target_head)
    trained = [*backbone.parameters(), *head.parameters(), *predictor.parameters()]
    rate = 0.06 * spec["batch"] / 128
    optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9, weight_decay=5e-4)
    criterion = NegativeCosineSimilarity()
    with contextlib.suppress(Reached):
        for view0, view1 in loader(spec | {"folder": str(Path(spec["folder"]) / "train")}, transform):
            for group in optimizer.param_groups:
                group["lr"] = 0.5 * rate * (1 + math.cos(math.pi * min(1.0, looks.seconds / spec["seconds"])))
            update_momentum(backbone, target, m=0.99)
            update_momentum(head, target_head, m=0.99)
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
    return looks.found


CONTESTANTS = {"byol": by_byol, "lightly": by_lightly}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--accuracies", type=float, nargs="+", default=[0.45, 0.5, 0.55])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="of byol's schedule")
    parser.add_argument("--wait", type=float, default=20.0, help="minutes of lightly's schedule")
    parser.add_argument("--every", type=float, default=20.0, help="seconds of training between looks")
    parser.add_argument("--only", nargs="*", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        spec = json.loads(asked.work)
        torch.set_num_threads(1)
        torch.manual_seed(spec["seed"])
        print(json.dumps(CONTESTANTS[spec["who"]](spec)))
        return
    levels, others = sorted(asked.accuracies), peers.environment(["lightly"])
    for seed in asked.seeds:
        for who in asked.only:
            minutes = asked.minutes if who == "byol" else asked.wait
            own = {"who": who, "seed": seed, "seconds": 60 * minutes, "every": asked.every, "accuracies": levels}
            if who == "byol" or others.versions:
                added(SPEC | own | {"folder": asked.folder, "workers": 0}, others)


def added(spec: dict[str, Any], others: peers.Peers) -> None:
    """A contestant's run into the record, unless it is there."""
    run = {name: spec[name] for name in ("who", "seed", "seconds")}
    if any(all(known[name] == value for name, value in run.items()) for known in recorded()):
        return
    python = sys.executable if spec["who"] == "byol" else str(others.python)
    command = [python, str(HERE / "time_to_accuracy.py"), spec["folder"], "--work", json.dumps(spec)]
    paths = {"PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE))), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | paths, stdout=subprocess.PIPE, text=True, check=True)
    looks = json.loads(done.stdout.splitlines()[-1])
    about = {**run, "looks": looks, "commit": commit()}
    runs = sorted([*recorded(), about], key=lambda each: (each["seed"], each["who"]))
    record = {
        "entry": "time-to-accuracy",
        "command": "python benchmarks/time_to_accuracy.py FOLDER --seeds 0 1 2",
        "idle": True,  # whatever else the machine does: CPU time of one thread counts
        "goals": goals(runs, spec["accuracies"]),
        "spec": {name: value for name, value in spec.items() if name not in (*run, "folder")},
        "runs": runs,
        "peers": peers.asked(others),
        "versions": versions(),
    }
    write_json(RECORD, record)


def recorded() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = read_json(RECORD).get("runs", []) if RECORD.exists() else []
    return runs


def goals(runs: list[dict[str, Any]], levels: list[float]) -> list[dict[str, Any]]:
    """The median over seeds of the seconds to each level, with how many never had it; and how much longer lightly took
    with the same seed, at least as long as was waited."""
    by_seed = {who: {run["seed"]: run["looks"] for run in runs if run["who"] == who} for who in CONTESTANTS}
    found = []
    for level in levels:
        ours = {seed: seconds for seed, looks in by_seed["byol"].items() if (seconds := soonest(looks, level))}
        if not ours:
            continue
        middle = statistics.median(ours.values())
        what = f"CPU time to {100 * level:.0f} % of kNN, CIFAR-10 from JPEG files, one thread"
        if missed := [max(accuracy for _, accuracy in by_seed["byol"][s]) for s in by_seed["byol"] if s not in ours]:
            least = f"{100 * min(missed):.0f} % at best when its time was over"
            what += f" ({len(missed)} of {len(by_seed['byol'])} seeds had {least} and are not counted)"
        found.append(speed.goal(what, middle, None, unit="s", rounds=list(ours.values())))
        both = [seed for seed in ours if seed in by_seed["lightly"]]
        if not both:
            continue
        theirs = {seed: by_seed["lightly"][seed] for seed in both}
        ratios = [(soonest(theirs[seed], level) or theirs[seed][-1][0]) / ours[seed] for seed in both]
        short = [max(accuracy for _, accuracy in looks) for looks in theirs.values() if not soonest(looks, level)]
        least = f", which had {100 * max(short):.0f} % at best when its time was over: at least" if short else ""
        what = f"… sooner than lightly's CIFAR-10 recipe{least}"
        found.append(speed.goal(what, statistics.median(ratios), SOONER, rounds=ratios))
    return found


def soonest(looks: list[tuple[float, float]], level: float) -> float | None:
    """Seconds to the first look of at least this accuracy."""
    return next((seconds for seconds, accuracy in looks if accuracy >= level), None)


if __name__ == "__main__":
    main()
