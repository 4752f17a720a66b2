"""`byol demo`: the whole idea in a few minutes, on rendered scenes: pretrain, then compare with and without labels."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from byol import checkpoint, data, networks, pictures, views
from byol.config import Config
from byol.data.loader import prepare
from byol.data.source import Source
from byol.evals import features, knn, probe, supervised
from byol.machine import choose
from byol.pretraining import Run, pretrain
from byol.records import write_json
from byol.rundir import commit

SIZE = 4000
OVERRIDES = {
    "data.resolution": 32,
    "data.holdout": 0.05,
    "network.small_images": False,
    "network.projector_hidden": 256,
    "network.predictor_hidden": 256,
    "network.projection": 64,
    "optim.epochs": 50,
    "optim.warmup_epochs": 1,
    "optim.batch": 64,
    "optim.lr": 0.2,
    "views.t.area_min": 0.3,
    "views.t_prime.area_min": 0.3,
}


def demo(out: Path) -> None:
    """Accuracy of a linear probe on three encoders of one shape: random, BYOL's, and one trained with labels."""
    began = time.monotonic()
    run = pretrain(f"scenes:{SIZE}", out, "cifar10-cpu", OVERRIDES)
    config = run.config
    train = data.open_source(f"scenes:{SIZE}", config.data)
    test = data.open_source(f"scenes:{SIZE // 4}", config.data, "test")
    torch.manual_seed(config.run.seed)
    random = networks.encoder(config.network)
    trained = _supervised(train, config)
    encoders = {"random": random, "BYOL": checkpoint.load_encoder(run.out), "supervised": trained}
    results = {name: _score(encoder, train, test, config) for name, encoder in encoders.items()}
    _pictures(run, encoders, test, {name: r["linear"] for name, r in results.items()})
    seconds = round(time.monotonic() - began, 1)
    write_json(
        out / "demo.json", {"results": results, "seconds": seconds, "commit": commit(), "verdict": run.verdict.sentence}
    )
    print(f"\nTest accuracy on {len(test)} scenes of {len(test.classes)} kinds:")
    print(f"{'encoder':<12}{'linear probe':>14}{'kNN':>9}")
    for name, scores in results.items():
        print(f"{name:<12}{scores['linear']:>13.1%}{scores['knn']:>9.1%}")
    print(
        f"\n{run.verdict.sentence}\nPictures in {out}: curves.png, views.png, neighbours.png. {seconds:.0f} s in all."
    )


def _supervised(train: Source, config: Config) -> nn.Module:
    settings = replace(config, optim=replace(config.optim, epochs=10, warmup_epochs=1, lr=0.1, weight_decay=5e-4))
    images = prepare(train, replace(settings, data=replace(settings.data, holdout=0.0, in_memory="always")))
    assert images.pixels is not None
    assert images.source.labels is not None
    labels = torch.from_numpy(images.source.labels)
    return supervised.train(images.pixels, labels, len(train.classes), settings, choose(config))


def _score(encoder: nn.Module, train: Source, test: Source, config: Config) -> dict[str, float]:
    place = choose(config)
    known, asked = (features.extract(encoder, source, config, place) for source in (train, test))
    assert known.labels is not None
    assert asked.labels is not None
    classes = len(train.classes)
    linear = probe.linear_probe(known.values, known.labels, asked.values, asked.labels, classes=classes)
    found = knn.classify(
        torch.from_numpy(known.values), torch.from_numpy(known.labels), torch.from_numpy(asked.values), classes=classes
    )
    return {"linear": linear.accuracy, "knn": float((found.numpy() == asked.labels).mean())}


def _pictures(run: Run, encoders: dict[str, nn.Module], test: Source, levels: dict[str, float]) -> None:
    pictures.curves(run.out / "curves.png", run.metrics, {f"linear probe, {n}": v for n, v in levels.items()})
    images = [test.read(i) for i in range(12)]
    pictures.sheet(run.out / "views.png", view_rows(images, run.config), ["image", "T", "T'"] + ["T", "T'"] * 3)
    place = choose(run.config)
    queries = list(range(10))
    both = []
    for name in ("random", "BYOL"):
        values = features.extract(encoders[name], test, run.config, place).values
        both.append(pictures.neighbours(values, queries, 5))
    rows = [[test.read(q), *(test.read(int(i)) for found in both for i in found[row])] for row, q in enumerate(queries)]
    pictures.sheet(run.out / "neighbours.png", rows, ["image", "random", "", "", "", "", "BYOL"])


def view_rows(images: list[Tensor], config: Config, pairs: int = 4) -> list[list[Tensor]]:
    """For each image: itself, then several draws of T and T′, before normalization."""
    rows: list[list[Tensor]] = [[image] for image in images]
    for step in range(pairs):
        for draw in views.draw(config.run.seed, step, len(images), config.views):
            for place, image in enumerate(images):
                crop = views.crop_one(image, draw, place, config.views, config.data.resolution)
                rows[place].append(views.augment(crop[None], views.slice_draw(draw, place, place + 1), config.views)[0])
    return rows
