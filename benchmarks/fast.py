"""What makes BYOL learn fast where compute is small: recipes compared at equal CPU time, every try kept.

    python benchmarks/fast.py FOLDER --minutes 2 --seeds 0 1 -- plain
    python benchmarks/fast.py FOLDER --minutes 2 -- fade-70 objective.name=info-nce objective.fade=0.7

FOLDER holds train/<class>/ and test/<class>/ (or val/). After `--` come the name of the recipe and the fields in which
it departs from `BASE` and `PLAIN` below. A step of the recipe's shape is timed once on one thread, in seconds of CPU;
the run then has as many steps as fit into the minutes, so that recipes of one shape see the same images and recipes of
another shape see as many as the same time pays for; --steps fixes their number instead. Looks and evaluations are
outside the time. Each try is added to results/fast-recipes.json with its config, commit, looks and accuracies: `knn` of
the test images among the training images, `knn_all` of every image among all others (less noise), `linear` by logistic
regression on request.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from byol import data, neighbours, pretraining
from byol.config import apply, flatten
from byol.data.parts import Task
from byol.evals import transfer
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.features import of_both, of_part
from byol.evals.protocol import Session
from byol.evals.spec import Transfer
from byol.presets import PRESETS
from byol.run.files import read_json, write_json
from byol.run.machine import versions
from byol.run.record import commit, read_run

RECORD = Path("results/fast-recipes.json")
NEIGHBOURS = 20
WARM, TIMED = 5, 20  # steps of the pilot
BASE: dict[str, Any] = {
    "run.threads": 1,
    "run.monitor_images": 500,
    "run.log_every": 1_000_000,
    "run.checkpoint_seconds": 1e9,
    "optim.probe": False,
}
QUARTER: dict[str, Any] = {  # the ResNet-18 at 32 px and a quarter of its width, under LARS, that benchmarks share
    "data.resolution": 32,
    "network.width": 0.25,
    "optim.optimizer": "lars",
    "optim.lr": 0.4,
    "optim.trust_coefficient": 0.005,
    "optim.predictor_lr": 10.0,
}
PLAIN: dict[str, Any] = QUARTER | {  # BYOL alone, which tries are compared with
    "network.zero_init_last": False,
    "objective.name": "byol",
    "objective.fade": 0.0,
    "optim.tau": 0.98,
}
FAST: dict[str, Any] = {  # the fastest recipe so far, as `byol.presets.fast` has it
    "network.zero_init_last": True,
    "objective.name": "simclr-to-byol",
    "objective.fade": 0.7,
    "optim.optimizer": "adamw",
    "optim.lr": 0.004,
    "optim.predictor_lr": 1.0,
    "optim.trust_coefficient": 0.001,
}
FADING = FAST | {"objective.name": "info-nce"}  # the fastest before: negatives that fade out of BYOL's own loss
SHAPE = ("data.resolution", "network.", "objective.name", "optim.batch", "optim.optimizer", "run.precision")


class Enough(Exception):
    """The pilot has timed its steps."""


class Clock:
    """CPU seconds of the loop's steps, loading and views included, looks left out."""

    def __init__(self, most: int = 0) -> None:
        self.ends, self.most, self.looked = list[float](), most, 0.0

    def __enter__(self) -> Clock:
        self.update, self.look = pretraining.update, pretraining.look

        def update(*arguments: Any, **named: Any) -> Any:
            step = self.update(*arguments, **named)
            self.ends.append(time.process_time() - self.looked)
            if len(self.ends) == self.most:
                raise Enough
            return step

        def look(*arguments: Any) -> None:
            began = time.process_time()
            self.look(*arguments)
            self.looked += time.process_time() - began

        pretraining.update, pretraining.look = update, look  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        pretraining.update, pretraining.look = self.update, self.look


def seconds_a_step(folder: Path, overrides: dict[str, Any], preset: str) -> float:
    """The median step of a short pilot run."""
    with Clock(WARM + TIMED) as clock, tempfile.TemporaryDirectory() as out, contextlib.suppress(Enough):
        pretraining.pretrain(folder / "train", Path(out) / "pilot", preset, overrides | {"optim.epochs": 100})
    return statistics.median(b - a for a, b in zip(clock.ends[WARM:], clock.ends[WARM + 1 :], strict=False))


def scores(encoder: Encoder, task: Task, linear: bool) -> dict[str, float]:
    """Of one encoder on the images' classes."""
    with tempfile.TemporaryDirectory() as cache:
        known = of_both(encoder, task.train, task.validation, Path(cache))
        asked = of_part(encoder, task.again().test.open(), Path(cache))
        bank, queries = torch.tensor(known.values), torch.tensor(asked.values)
        labels, truth = torch.tensor(known.targets), torch.tensor(asked.targets)
        count = len(task.classes)
        found = neighbours.votes(bank, labels, queries, classes=count, k=NEIGHBOURS).argmax(1)
        result = {"knn": float((found == truth).double().mean()), "knn_all": alone(bank, queries, labels, truth)}
        if linear:
            result["linear"] = transfer.evaluate(encoder, task.again(), Transfer(), Session(cache=Path(cache))).test[
                "top1"
            ]
    return {name: round(value, 4) for name, value in result.items()}


def alone(bank: torch.Tensor, queries: torch.Tensor, labels: torch.Tensor, truth: torch.Tensor) -> float:
    """Every image classified by the others: the share that is right."""
    everything, classes = torch.cat([bank, queries]), torch.cat([labels, truth])
    near = neighbours.nearest(everything, everything, NEIGHBOURS, torch.arange(len(everything)))
    weights = (near.cosines / 0.07).exp()
    votes = torch.zeros(len(everything), int(classes.max()) + 1).scatter_add_(1, classes[near.rows], weights)
    return float((votes.argmax(1) == classes).double().mean())


def compared(
    asked: argparse.Namespace, fields: dict[str, Any], seed: int, step: float, before: dict[str, float] | None
) -> dict[str, Any]:
    """One try: the run, and both encoders of its shape; `before` are the scores of the untrained one, where known."""
    folder, overrides = asked.folder, BASE | PLAIN | fields | {"run.seed": seed}
    config = apply(PRESETS[asked.preset](), overrides)
    steps = asked.steps or max(1, int(60 * asked.minutes / step))
    task = data.open_task(str(folder), config.data)
    with tempfile.TemporaryDirectory() as out, Clock() as clock:
        images = len(list((folder / "train").rglob("*.*")))
        held = min(1000, int(images * config.data.holdout))
        epochs = {"optim.epochs": (steps + 0.5) * config.optim.batch / (images - held)}
        warmup = {"optim.warmup_epochs": asked.warmup * epochs["optim.epochs"]}
        run = pretraining.pretrain(folder / "train", Path(out) / "run", asked.preset, overrides | epochs | warmup)
        encoder = open_encoder(run.out)
        place, chosen = read_run(run.out).machine, flatten(run.config)
        result = {"trained": scores(encoder, task, asked.linear)}
        result["untrained"] = before or scores(random_encoder(encoder, seed), task, asked.linear)
    keep = ("step", "knn", "rank_representation", "rank_projection", "spread", "retrieval")
    looks = [{k: round(m[k], 4) for k in keep if k in m} for m in run.metrics if "spread" in m]
    return {
        "data": folder.name,
        "images": run.plan.images,
        "seed": seed,
        "cpu_minutes_asked": asked.minutes,
        "cpu_minutes": round((clock.ends[-1] - clock.ends[0]) / 60, 2),
        "seconds_a_step": round(step, 5),
        "steps": run.plan.steps,
        "images_seen": run.plan.steps * run.plan.batch,
        **result,
        "gain_knn": round(result["trained"]["knn"] - result["untrained"]["knn"], 4),
        "gain_knn_all": round(result["trained"]["knn_all"] - result["untrained"]["knn_all"], 4),
        "looks": looks,
        "precision": place.precision,
        "preset": asked.preset,
        "departs": {k: v for k, v in chosen.items() if v != flatten(PRESETS[asked.preset]())[k] and k not in BASE},
        "commit": commit(),
        "versions": versions(),
    }


def line(tried: dict[str, Any]) -> str:
    """A try at a glance: accuracies with the untrained network's, and the rank at first, at worst and at the end."""
    ranks = [look["rank_representation"] for look in tried["looks"]]
    both = [f"{k} {tried['trained'][k]:.3f} ({tried['untrained'][k]:.3f})" for k in tried["trained"]]
    return (
        f"{tried['recipe']:<30} seed {tried['seed']} {tried['data']} {tried['steps']} steps "
        f"{tried['cpu_minutes']} min, {', '.join(both)}, gain {tried['gain_knn_all']:+.3f}, "
        f"rank {ranks[0]:.0f} {min(ranks):.0f} {ranks[-1]:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=2.0, help="of CPU time a try")
    parser.add_argument("--steps", type=int, help="instead of minutes, where shapes of other cost are compared")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--preset", default="cifar10-cpu")
    parser.add_argument("--warmup", type=float, default=0.05, help="share of the run")
    parser.add_argument("--linear", action="store_true")
    given = sys.argv[1:]
    place = given.index("--") if "--" in given else len(given)
    asked, words = parser.parse_args(given[:place]), given[place + 1 :]
    if not words:
        parser.error("the name of the recipe should follow `--`.")
    name, *pairs = words
    fields = dict(pair.split("=", 1) for pair in pairs)
    known = read_json(RECORD) if RECORD.exists() else []
    shape = {k: v for k, v in flatten(apply(PRESETS[asked.preset](), PLAIN | fields)).items() if k.startswith(SHAPE)}
    key = " ".join(f"{k}={v}" for k, v in shape.items())
    same = [t for t in known if t["shape"] == key and t["data"] == asked.folder.name]
    step = next((t["seconds_a_step"] for t in same), 0.0)
    step = step or seconds_a_step(asked.folder, BASE | PLAIN | fields, asked.preset)
    for seed in asked.seeds:
        untrained = (t["untrained"] for t in same if t["seed"] == seed)
        before = next((u for u in untrained if not asked.linear or "linear" in u), None)
        tried = {"recipe": name, "shape": key, **compared(asked, fields, seed, step, before)}
        known = read_json(RECORD) if RECORD.exists() else []
        write_json(RECORD, [*known, tried])
        print(line(tried), flush=True)


if __name__ == "__main__":
    main()
