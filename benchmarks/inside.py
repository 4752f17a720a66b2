"""What is timed in one process: a training step against its bare passes, the optimizer's share, features, neighbours.

    python benchmarks/inside.py step '{"batch": 256, "rounds": 5}'

Contestants alternate within every round. Prints one line of JSON: lists of seconds, or of figures that are named.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fast import QUARTER
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from byol import method, optim, presets, pretraining
from byol.algorithm import Pass, update
from byol.config import Config, apply, resolve
from byol.data import loader
from byol.data.loader import BadList, Images
from byol.data.source import Source
from byol.run import machine
from byol.run.directory import Setup
from byol.run.machine import Machine
from byol.run.progress import silent
from byol.run.record import FORMAT, Asked, DataFacts, RunRecord


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def races(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round; the first round only warms up."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = timed(work)
            if number:
                found[name].append(seconds)
    return found


class Training(NamedTuple):
    """A method and all that its loop needs, on random pixels in memory."""

    model: method.Method
    optimizer: torch.optim.Optimizer
    place: Machine
    setup: Setup
    batches: Iterator[loader.Crops]

    def step(self) -> None:
        """As in the loop: loading, views, gradient, optimizer, target."""
        passes = pretraining.augmented(self.batches, self.setup)
        update(self.model, self.optimizer, passes, lr=0.1, tau=0.99, machine=self.place)


def prepared(config: Config, images: int) -> Training:
    place = machine.choose(config)
    machine.use(place)
    torch.manual_seed(0)
    model = method.build(config.network, 10, config.objective).to(**place.placement(config)).train()
    size = config.data.resolution
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8)
    labels = np.arange(images) % 10
    source = Source("pixels", images, pixels.__getitem__, str, labels, [str(i) for i in range(10)])
    held = Images(source, np.arange(images), np.arange(0), pixels, [], "")
    plan = replace(resolve(config, images), steps=10**6)
    bad = BadList([], images, config, lambda _: None)
    asked = Asked("pixels", "", {})
    facts = DataFacts("pixels", images, 0, 10, True, "")
    record = RunRecord(FORMAT, asked, "", {}, [], place, {}, "", facts)
    setup = Setup(Path(), config, plan, place, held, record, bad, 10)
    batches = loader.batches(held, config, plan, 0, place.device)
    return Training(model, optim.build(model, config.optim), place, setup, batches)


def bare_passes(model: method.Method, place: Machine, view1: Tensor, view2: Tensor) -> None:
    """Two views through the online encoder and back, and through the target's."""
    assert model.target is not None
    for view in (view1, view2):
        with place.autocast():
            with torch.no_grad():
                model.target.encoder(view)
            out = model.online.encoder(view)
        out.sum().backward()
    for parameter in model.online.encoder.parameters():
        parameter.grad = None


def flops(encoder: nn.Module, view: Tensor, place: Machine) -> float:
    """Of one forward pass of these images."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), place.autocast():
        encoder(view)
    return float(counter.get_total_flops())


def step(spec: dict[str, Any]) -> dict[str, Any]:
    """Loading from memory, views, gradient, optimizer and target, against the encoder's passes alone."""
    config = apply(
        presets.cifar10_cpu(),
        {**QUARTER, "optim.batch": spec["batch"], "objective.name": "byol", "objective.fade": 0.0},
    )
    training = prepared(config, 5000)
    model, _, place, setup, batches = training
    seen = next(pretraining.augmented(batches, setup))
    matrix = torch.randn(2048, 2048, dtype=torch.bfloat16 if place.precision == "bf16" else torch.float32)
    works = {
        "step": training.step,
        "bare": lambda: bare_passes(model, place, seen.view1, seen.view2),
        "product": lambda: [torch.mm(matrix, matrix) for _ in range(10)],
        "loading": lambda: next(batches),
        "loading and views": lambda: next(pretraining.augmented(batches, setup)),
    }
    found = races(works, spec["rounds"])
    # The gradient costs twice its forward pass: 2 x (1 + 2) + 2.
    work = 8 * flops(model.online.encoder, seen.view1, place)
    peak = [10 * 2 * 2048**3 / seconds / 1e9 for seconds in found["product"]]
    reached = [work / seconds / 1e9 for seconds in found["bare"]]
    return found | {"peak_gflops": peak, "bare_gflops": reached, "precision": place.precision}


def share(spec: dict[str, Any]) -> dict[str, Any]:
    """LARS and the moving average within a step of ResNet-50 at 224 px."""
    config = apply(presets.paper_100(), {"optim.batch": spec["batch"]})
    model, optimizer, place, *_ = prepared(config, spec["batch"])
    view = place.images(torch.rand(spec["batch"], 3, 224, 224), config)
    seen = Pass(view, view, torch.arange(spec["batch"]) % 10)
    found: dict[str, list[float]] = {"step": [], "update": []}
    for number in range(spec["rounds"] + 1):
        seconds = timed(lambda: update(model, optimizer, [seen], lr=0.1, tau=0.99, machine=place))
        own = timed(optimizer.step) + timed(lambda: model.update_target(0.99))
        if number:
            found["step"].append(seconds)
            found["update"].append(own)
    return found


def features(spec: dict[str, Any]) -> dict[str, Any]:
    """All images of a folder through a ResNet-18 of width 0.25 at 32 px, against a plain loop with a DataLoader."""
    from contestants import Files
    from torchvision import transforms as T

    from byol import data, networks
    from byol.evals.encoder import Encoder
    from byol.evals.features import extract

    config = apply(presets.cifar10_cpu(), QUARTER)
    torch.manual_seed(0)
    encoder = Encoder("random", networks.encoder(config.network).eval(), config, machine.choose(config))
    source = data.open_source(spec["folder"], config.data)
    count = min(spec["images"], len(source))
    source = replace(source, count=count, labels=None)
    chain = T.Compose([T.Resize(32), T.CenterCrop(32), T.ToTensor(), T.Normalize(config.views.mean, config.views.std)])
    module = networks.encoder(config.network).eval()

    def plain(workers: int) -> None:
        files = Files(spec["folder"], chain)
        files.paths = files.paths[:count]
        with torch.inference_mode():
            for images in torch.utils.data.DataLoader(files, batch_size=256, num_workers=workers):
                module(images)

    works = {"byol": lambda: extract(encoder, source)}
    works |= {f"{workers} workers": lambda workers=workers: plain(workers) for workers in (1, 2, 4)}
    with silent(True):
        return races(works, spec["rounds"]) | {"images": count}


def neighbours(spec: dict[str, Any]) -> dict[str, Any]:
    """The votes of 200 neighbours: ours, by faiss's exact index, and by scikit-learn."""
    import faiss
    from sklearn.neighbors import NearestNeighbors

    from byol import neighbours as exact

    torch.manual_seed(0)
    bank, queries = torch.randn(spec["bank"], spec["width"]), torch.randn(spec["queries"], spec["width"])
    labels = torch.arange(len(bank)) % 10

    def by_faiss() -> Any:
        index = faiss.IndexFlatIP(spec["width"])
        index.add(nn.functional.normalize(bank).numpy())
        return index.search(nn.functional.normalize(queries).numpy(), spec["k"])[1]

    def by_sklearn() -> Any:
        index = NearestNeighbors(n_neighbors=spec["k"], algorithm="brute", metric="cosine").fit(bank.numpy())
        return index.kneighbors(queries.numpy(), return_distance=False)

    works = {
        "byol": lambda: exact.votes(bank, labels, queries, classes=10, k=spec["k"]),
        "faiss": by_faiss,
        "scikit-learn": by_sklearn,
    }
    return races(works, spec["rounds"])


def logistic(spec: dict[str, Any]) -> dict[str, Any]:
    """45 penalties by ours; by scikit-learn at its own tolerance some of them, evenly spread, of which each counts for
    its share of the 45. Its loss may be above ours, never ours above its by more than the tolerance."""
    import warnings

    import logistic as both

    warnings.simplefilter("ignore")
    values, labels = both.pooled_features(spec["rows"], spec["width"], spec["classes"])
    both.ours(*both.pooled_features(100, 8, 3))
    seconds, losses = both.ours(values, labels)
    count = len(both.PENALTIES)
    places = [round((number + 0.5) * count / spec["sample"] - 0.5) for number in range(spec["sample"])]
    fits = [(place, *both.sklearns(values, labels, both.PENALTIES[place], 1e-4)) for place in places]
    return {
        "byol": [seconds],
        "scikit-learn": [sum(each for _, each, _ in fits) * count / len(fits)],
        "fits": [{"penalty": both.PENALTIES[place], "seconds": each} for place, each, _ in fits],
        "worst_against_sklearn": max(float(losses[place] / loss - 1) for place, _, loss in fits),
    }


def slopes(spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step for doubled batches, images, pixels and widths; and of an epoch's loading for more images."""
    sizes: dict[str, list[tuple[float, dict[str, Any]]]] = {
        "batch": [(n, {"optim.batch": n}) for n in (32, 64, 128, 256)],
        "pixels of an image": [(s * s, {"optim.batch": 32, "data.resolution": s}) for s in (32, 64, 128)],
        "weights (width squared)": [(w * w, {"optim.batch": 32, "network.width": w}) for w in (0.25, 0.5, 1.0)],
    }
    found: dict[str, Any] = {}
    for name, points in sizes.items():
        found[name] = []
        for size, fields in points:
            training = prepared(apply(presets.cifar10_cpu(), QUARTER | fields), 1000)
            seconds = races({"step": training.step}, spec["rounds"])["step"]
            found[name].append((size, sorted(seconds)[len(seconds) // 2]))
    found["images of an epoch"] = []
    for count in (4096, 16384, 65536):
        batches = prepared(apply(presets.cifar10_cpu(), {**QUARTER, "optim.batch": 256}), count).batches
        seconds = timed(lambda batches=batches, count=count: [next(batches) for _ in range(count // 256)])
        found["images of an epoch"].append((count, seconds))
    return found


WORKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "step": step,
    "share": share,
    "features": features,
    "neighbours": neighbours,
    "logistic": logistic,
    "slopes": slopes,
}


if __name__ == "__main__":
    print(json.dumps(WORKS[sys.argv[1]](json.loads(sys.argv[2]))))
