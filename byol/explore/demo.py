"""`byol demo`: the whole idea in a few minutes, on rendered scenes: pretrain, then compare with and without labels."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch

from byol import data
from byol.data.parts import Task, as_source
from byol.data.source import Source
from byol.evals import classifier, features, knn, supervised, transfer
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.protocol import Session
from byol.evals.spec import Knn, Supervised, Transfer
from byol.neighbours import nearest
from byol.pretraining import Run, pretrain
from byol.run import pictures
from byol.run.files import write_json
from byol.run.painting import view_rows
from byol.run.progress import tell
from byol.run.record import commit

SIZE = 4000
# Every object has its own colours, so strong colour changes leave shape and pattern to tell two scenes apart.
COLOUR = {"hue": 0.5, "saturation": 0.8, "jitter": 1.0, "grayscale": 0.4, "area_min": 0.4}
# At 64 px and with the fast recipe, which begins as SimCLR, BYOL ends 50 points above the untrained network by linear
# classifier and 60 by kNN (results/demo.json). Blocks that begin as the identity, by which photographs gain, did not
# pay on scenes at 32 px (results/fast-recipes.json).
OVERRIDES = {
    "data.resolution": 64,
    "data.holdout": 0.05,
    "network.small_images": False,
    "network.zero_init_last": False,
    "network.projector_hidden": 256,
    "network.predictor_hidden": 256,
    "network.projection": 64,
    "objective.name": "simclr-to-byol",
    "objective.fade": 0.7,
    "optim.optimizer": "adamw",
    "optim.epochs": 45,
    "optim.warmup_epochs": 2,
    "optim.batch": 64,
    "optim.lr": 0.004,
    "optim.predictor_lr": 1,
    "optim.tau": 0.97,
    **{f"views.{view}.{name}": value for view in ("t", "t_prime") for name, value in COLOUR.items()},
}


def demo(out: Path) -> None:
    """Accuracy of a linear classifier on three encoders of one shape: random, BYOL's, and one trained with labels."""
    began = time.monotonic()
    run = pretrain(f"scenes:{SIZE}", out, "cifar10-cpu", OVERRIDES)
    task = data.open_task(f"scenes:{SIZE}", run.config.data)
    trained = open_encoder(run.out)
    encoders = {"random": random_encoder(trained, 0), "BYOL": trained, "supervised": _supervised(trained, task)}
    session = Session(cache=out / "features")
    results = {name: _score(encoder, task, session) for name, encoder in encoders.items()}
    _pictures(run, encoders, as_source(task.test.open()), {name: r["linear"] for name, r in results.items()})
    seconds = round(time.monotonic() - began, 1)
    facts = {"results": results, "seconds": seconds, "commit": commit(), "verdict": run.verdict.sentence}
    write_json(out / "demo.json", {**facts, "weights": trained.checksum()})
    tell(f"\nTest accuracy on scenes of {len(task.classes)} kinds:")
    tell(f"{'encoder':<12}{'linear':>9}{'kNN':>9}")
    for name, scores in results.items():
        tell(f"{name:<12}{scores['linear']:>9.1%}{scores['knn']:>9.1%}")
    tell(f"\n{run.verdict.sentence}\nPictures in {out}: curves.png, views.png, neighbours.png. {seconds:.0f} s in all.")


def _supervised(like: Encoder, task: Task) -> Encoder:
    images = classifier.images_of(task.train, like)
    spec = Supervised(epochs=10, batch=64, warmup_epochs=1, weight_decay=5e-4, label_smoothing=0, augment_ops=0)
    model = supervised.train(like, images, len(task.classes), spec, 0)
    return replace(like, name="supervised", module=model.get_submodule("0"))


def _score(encoder: Encoder, task: Task, session: Session) -> dict[str, float]:
    linear = transfer.evaluate(encoder, task.again(), Transfer(), session)
    neighbours = knn.evaluate(encoder, task.again(), Knn(), session)
    return {"linear": linear.test["top1"], "knn": neighbours.test["top1"]}


def _pictures(run: Run, encoders: dict[str, Encoder], test: Source, levels: dict[str, float]) -> None:
    pictures.curves(run.out / "curves.png", run.metrics, {f"linear, {n}": v for n, v in levels.items()})
    images = [test.read(i) for i in range(12)]
    pictures.sheet(run.out / "views.png", view_rows(images, run.config), ["image", "T", "T'"] + ["T", "T'"] * 3)
    vectors = [torch.from_numpy(features.extract(encoders[name], test)[0]) for name in ("random", "BYOL")]
    both = torch.cat([nearest(each, each[:10], 5, torch.arange(10)).rows for each in vectors], 1)
    rows = [[test.read(query), *map(test.read, row)] for query, row in enumerate(both.tolist())]
    pictures.sheet(run.out / "neighbours.png", rows, ["image", "random", "", "", "", "", "BYOL"])
