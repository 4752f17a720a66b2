"""Going on from weights, a rate that is too high, distillation, fit and predict: measured on small real images.

    python benchmarks/from_weights.py PART --cifar FOLDER --flowers FOLDER

PART is continued, bolder, negatives, wrong, distilled, answers, cells (with --bccd FOLDER), or photos: the recipes of
`auto` at 64 px over three seeds, which the parts before it led to. `continued` comes before the parts that go on from
its encoder. CIFAR holds train/<class>/ and test/<class>/, FLOWERS <class>/. Each part writes
results/from-weights-PART.json; runs stay in runs/from-weights.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from fast import FADING, PLAIN
from PIL import Image

from byol import data, neighbours
from byol.checkpoint import BEST, ENCODER
from byol.config import flatten
from byol.data.parts import held_out_fraction, whole
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.evaluation import evaluate
from byol.evals.features import extract
from byol.models.fit import Options, fit
from byol.models.model import load_model
from byol.models.predicting import predict
from byol.pretraining import Run, pretrain
from byol.run.files import write_json
from byol.run.record import encode, read_run

RUNS = Path("runs/from-weights")
SEEDS = (0, 1, 2)
SMALL = {
    "data.resolution": 16,
    "optim.batch": 64,
    "optim.tau": 0.97,
    "network.projector_hidden": 512,
    "network.predictor_hidden": 512,
    "run.threads": 1,
    "data.workers": 0,
    "optim.probe": False,
    "run.monitor_images": 500,
}
GENTLE = {"optim.encoder_lr": 0.3, "optim.head_epochs": 1}
Figures = dict[str, Any]


def trained(name: str, folder: str | Path, steps: int, images: int, **overrides: Any) -> Run:
    """A run of so many steps of 64 images; `images` are those of the folder that are trained on."""
    values = {
        **PLAIN,
        **SMALL,
        "optim.epochs": (steps + 0.5) * 64 / (images - min(int(images * 0.02), 1000)),
        **overrides,
    }
    return pretrain(folder, RUNS / name, "cifar10-cpu", {k.replace("__", "."): v for k, v in values.items()})


def knn(encoder: Encoder, features: np.ndarray, labels: np.ndarray, classes: int) -> Figures:
    """Accuracy of 20 weighted neighbours on a fifth of the images, over three random splits."""
    found = []
    for seed in SEEDS:
        random = np.random.default_rng(seed).permutation(len(labels))
        test, bank = random[: len(labels) // 5], random[len(labels) // 5 :]
        vectors = torch.from_numpy(features)
        votes = neighbours.votes(vectors[bank], torch.from_numpy(labels[bank]), vectors[test], classes=classes)
        found.append(float((votes.argmax(1).numpy() == labels[test]).mean()))
    half = (max(found) - min(found)) / 2
    return {"knn": round(float(np.mean(found)), 4), "half_range": round(half, 4), "splits": len(found)}


def scored(path: Path, folder: str | Path, random: bool = False, side: int = 16) -> Figures:
    encoder = open_encoder(path, {"data.resolution": side, "data.workers": 0})
    encoder = random_encoder(encoder, 0) if random else encoder
    source = data.open_source(str(folder), encoder.config.data)
    features, kept = extract(encoder, source)
    assert source.labels is not None
    return knn(encoder, features, source.labels[kept], len(source.classes))


def curve(run: Run) -> list[Figures]:
    """The monitor's looks: step and nearest neighbours."""
    return [{"step": line["step"] + 1, "knn": line["knn"]} for line in run.metrics if "knn" in line]


def told(run: Run, **more: Any) -> Figures:
    return {"steps": run.plan.steps, "curve": curve(run), "verdict": run.verdict.sentence, **more}


def write(part: str, what: str, run: Run, found: Mapping[str, Any], began: float) -> None:
    record = read_run(run.out)
    write_json(
        Path("results") / f"from-weights-{part}.json",
        {
            "what": what,
            **found,
            "cpu_seconds": round(time.process_time() - began, 1),
            "commit": record.commit,
            "machine": encode(record.machine),
            "versions": record.versions,
            "config": {name: value for name, value in flatten(run.config).items() if name != "network.init"},
        },
    )


def start(folder: Path, images: int) -> Run:
    """The encoder that the others go on from: CIFAR-10 with negatives, which learn faster in few steps."""
    contrastive = {"objective__name": "info-nce", "objective__beta": 1.0}
    return trained("start", folder, 1200, images, **contrastive)


def continued(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    began = time.process_time()
    first = start(cifar / "train", count["cifar"])
    found: Figures = {
        "random": scored(first.out, flowers, random=True),
        "start": {**scored(first.out, flowers), "steps": first.plan.steps},
    }
    gentle = {"network__init": str(first.out), **GENTLE}
    runs = {
        "continued": trained("continued", flowers, 300, count["flowers"], **gentle),
        "scratch": trained("scratch", flowers, 300, count["flowers"]),
        "scratch_long": trained("scratch-long", flowers, 1500, count["flowers"]),
    }
    found |= {name: told(run, **scored(run.out / ENCODER, flowers)) for name, run in runs.items()}
    found["continued"]["best"] = scored(runs["continued"].out / BEST, flowers)
    what = "nearest neighbours on flowers5 at 16 px: CIFAR-10 encoder, continued on flowers5, and flowers5 from scratch"
    write("continued", what, runs["continued"], found, began)


def bolder(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    """The recipe of `continued` with the encoder at the full rate, for as many steps and for three times as many."""
    began = time.process_time()
    first = start(cifar / "train", count["cifar"])
    found: Figures = {}
    for name, steps in (("continued", 300), ("continued_long", 900)):
        full = {"network__init": str(first.out), "optim__head_epochs": 1}
        run = trained(f"bolder-{steps}", flowers, steps, count["flowers"], **full)
        found[name] = told(run, **scored(run.out / ENCODER, flowers), best=scored(run.out / BEST, flowers))
        write("bolder", "as continued, with the encoder at the full rate", run, found, began)


def negatives(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    """As `bolder` and as from scratch, with negative examples (info-nce), in equal steps."""
    began = time.process_time()
    first = start(cifar / "train", count["cifar"])
    contrastive = {"objective__name": "info-nce", "objective__beta": 1.0}
    given = {"network__init": str(first.out), "optim__head_epochs": 1}
    found: Figures = {}
    for name, more in (("continued", given), ("scratch", {})):
        run = trained(f"negatives-{name}", flowers, 600, count["flowers"], **contrastive, **more)
        found[name] = told(run, **scored(run.out / ENCODER, flowers), best=scored(run.out / BEST, flowers))
        write("negatives", "going on and from scratch, both with negative examples", run, found, began)


LARGE = {  # what `auto` takes for photographs in few minutes of one core
    **SMALL,
    "data.resolution": 64,
    "network.small_images": False,
    "network.projector_hidden": 1024,
    "network.predictor_hidden": 1024,
    "optim.batch": 128,
}
ADAMW = {"optim.optimizer": "adamw", "optim.lr": 0.002, "optim.predictor_lr": 1.0, "optim.trust_coefficient": 0.001}
RECIPES: dict[str, Figures] = {  # from given weights
    "lars": {"optim.encoder_lr": 0.3, "optim.head_epochs": 1, "optim.tau": 0.99},
    "adamw": ADAMW | {"optim.head_epochs": 1, "optim.encoder_lr": 0.5, "optim.tau": 0.99},
    "adamw, negatives that fade": FADING | {"optim.lr": 0.002, "optim.head_epochs": 1, "optim.encoder_lr": 0.5},
    "full rate": FADING | {"optim.head_epochs": 0.5},
    "full rate, twice the rate": FADING | {"optim.head_epochs": 0.5, "optim.lr": 0.008},
    "full rate, 600 steps": FADING | {"optim.head_epochs": 0.5},
}


def photos(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    """CIFAR-10 at 64 px, then flowers5: every recipe from given weights, from scratch in up to five times the steps."""
    began, found = time.process_time(), Figures()
    for seed in SEEDS:
        run, found[f"seed {seed}"] = photos_of(seed, cifar, flowers, count)
        what = "nearest neighbours on flowers5 at 64 px, from given weights and from scratch"
        write("photos", what, run, found, began)


def photos_of(seed: int, cifar: Path, flowers: Path, count: Mapping[str, int]) -> tuple[Run, Figures]:
    def made(name: str, folder: Path, kind: str, steps: int, **more: Any) -> Run:
        values = {
            **PLAIN,
            **LARGE,
            "run.seed": seed,
            "optim.epochs": (steps + 0.5) * 128 / (count[kind] * 0.98),
            **more,
        }
        return pretrain(folder, RUNS / f"photos-{seed}-{name}", "cifar10-cpu", values)

    first = made("start", cifar / "train", "cifar", 2000, **FADING)
    here: Figures = {
        "random": scored(first.out, flowers, random=True, side=64),
        "start": {**scored(first.out, flowers, side=64), "steps": first.plan.steps},
    }
    for recipe, fields in RECIPES.items():
        run = made(
            recipe, flowers, "flowers", 600 if "600" in recipe else 300, **{"network.init": str(first.out)}, **fields
        )
        here[recipe] = told(run, **scored(run.out / ENCODER, flowers, side=64))
        here[recipe]["best"] = scored(run.out / BEST, flowers, side=64)
    for steps in (300, 600, 1500):
        run = made(f"scratch-{steps}", flowers, "flowers", steps, **FADING)
        here[f"scratch, {steps} steps"] = told(run, **scored(run.out / ENCODER, flowers, side=64))
    return run, here


def wrong(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    """The recipe of `continued` at 30 times its rate, for all, from the first step."""
    began = time.process_time()
    first = start(cifar / "train", count["cifar"])
    run = trained("wrong", flowers, 300, count["flowers"], network__init=str(first.out), optim__lr=12.0)
    found = {
        "start": scored(first.out, flowers),
        "last": told(run, **scored(run.out / ENCODER, flowers)),
        "best": scored(run.out / BEST, flowers),
        "word": run.verdict.word,
    }
    write("wrong", "nearest neighbours on flowers5 after a rate 30 times too high", run, found, began)


def distilled(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    """A width of 0.25 against its own moving average and against a fixed target of width 0.5, in equal steps."""
    began = time.process_time()
    contrastive = {"objective__name": "info-nce", "objective__beta": 1.0}
    wide = trained("wide", cifar / "train", 400, count["cifar"], network__width=0.5, **contrastive)
    fixed = {"network__target": "fixed", "network__target_init": str(wide.out)}
    runs = {
        "scratch": trained("byol", cifar / "train", 300, count["cifar"]),
        "distilled": trained("distilled", cifar / "train", 300, count["cifar"], **fixed),
    }
    found: Figures = {"target": told(wide, **scored(wide.out, cifar / "test"))}
    found |= {name: told(run, **scored(run.out / ENCODER, cifar / "test")) for name, run in runs.items()}
    what = (
        "nearest neighbours on the test images of CIFAR-10 JPEG at 16 px: BYOL, and a fixed target of twice the width"
    )
    write("distilled", what, runs["distilled"], found, began)


def answers(cifar: Path, flowers: Path, count: Mapping[str, int]) -> None:
    """fit against the protocol on one split, and predict against embed in CPU time."""
    began = time.process_time()
    first = start(cifar / "train", count["cifar"])
    alone = {"data.workers": 0}
    protocol = evaluate(
        first.out, str(flowers), ["transfer-linear"], out=RUNS / "evaluation", settings=alone, cache=RUNS / "features"
    )["transfer-linear"]
    options = Options(test=True, cache=RUNS / "features")
    model = fit(first.out, flowers, RUNS / "model", options=options, settings=alone, overwrite=True)
    seconds: dict[str, list[float]] = {"embed": [], "predict": []}
    for _ in range(3):
        then = time.process_time()
        embed_all(first.out, flowers)
        seconds["embed"].append(time.process_time() - then)
        then = time.process_time()
        predict(RUNS / "model", flowers, RUNS / "predictions.csv", settings=alone)
        seconds["predict"].append(time.process_time() - then)
    images = load_model(RUNS / "model").facts.images
    held = held_out_fraction(whole(data.open_source(str(flowers), first.config.data)), 0.2)[1]
    found = {
        "protocol_top1": protocol.test["top1"].mean,
        "fit_top1": model.facts.test["top1"],
        "test_images": len(held),
        "validation": model.facts.validation,
        "images": images,
        "predicted": count["flowers"],
        "cpu_seconds_of": {name: [round(s, 2) for s in values] for name, values in seconds.items()},
        "predict_speed_over_embed": round(min(seconds["embed"]) / min(seconds["predict"]), 3),
    }
    write("answers", "fit and predict on flowers5 beside the protocol and embed", first, found, began)


def cells(cifar: Path, flowers: Path, count: Mapping[str, int], voc: Path) -> None:
    """fit and predict on the annotated blood cells of BCCD beside the protocol; a quarter of the photos is test."""
    began = time.process_time()
    first = start(cifar / "train", count["cifar"])
    folder, alone = crops(voc, RUNS / "cells"), {"data.workers": 0}
    protocol = evaluate(
        first.out,
        str(folder),
        ["transfer-linear"],
        out=RUNS / "cells-evaluation",
        settings=alone,
        cache=RUNS / "features",
    )["transfer-linear"]
    options = Options(test=True, cache=RUNS / "features")
    model = fit(first.out, folder, RUNS / "cells-model", options=options, settings=alone, overwrite=True)
    predict(RUNS / "cells-model", folder / "test", RUNS / "cells.csv", settings=alone)
    with (RUNS / "cells.csv").open() as file:
        answers = list(csv.DictReader(file))
    right = sum(row["file"].split("/")[0] == row["label"] for row in answers)
    found = {
        "protocol_top1": protocol.test["top1"].mean,
        "fit_top1": model.facts.test["top1"],
        "predicted_right": right / len(answers),
        "predicted": len(answers),
        "images": model.facts.images,
        "validation": model.facts.validation,
    }
    write("cells", "fit and predict on crops of blood cells, three classes, beside the protocol", first, found, began)


def crops(voc: Path, out: Path) -> Path:
    """The boxes of a VOC tree as OUT/train/<class>/ and OUT/test/<class>/; of the commonest class at most 800."""
    kept = Counter[tuple[str, str]]()
    for number, path in enumerate(sorted((voc / "Annotations").glob("*.xml"))):
        part = "test" if number % 4 == 0 else "train"
        image = Image.open(voc / "JPEGImages" / f"{path.stem}.jpg").convert("RGB")
        for found in ElementTree.parse(path).iter("object"):
            label, box = str(found.findtext("name")), found.find("bndbox")
            assert box is not None
            left, top, right, bottom = (int(str(box.findtext(side))) for side in ("xmin", "ymin", "xmax", "ymax"))
            if right - left < 10 or bottom - top < 10 or kept[part, label] >= (200 if part == "test" else 600):
                continue
            kept[part, label] += 1
            place = out / part / label / f"{path.stem}-{kept[part, label]}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            image.crop((left, top, right, bottom)).save(place)
    return out


def embed_all(path: Path, folder: Path) -> None:
    encoder = open_encoder(path, {"data.workers": 0})
    extract(encoder, data.open_source(str(folder), encoder.config.data))


PARTS = {
    "continued": continued,
    "bolder": bolder,
    "negatives": negatives,
    "wrong": wrong,
    "distilled": distilled,
    "answers": answers,
    "photos": photos,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "cells"])
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--flowers", type=Path, required=True)
    parser.add_argument("--bccd", type=Path, help="a VOC tree of blood cells, for the part cells")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    Path("results").mkdir(exist_ok=True)
    places = {"cifar": arguments.cifar / "train", "flowers": arguments.flowers}
    count = {name: sum(1 for path in place.rglob("*.*") if path.is_file()) for name, place in places.items()}
    if arguments.part == "cells":
        cells(arguments.cifar, arguments.flowers, count, arguments.bccd)
    else:
        PARTS[arguments.part](arguments.cifar, arguments.flowers, count)


if __name__ == "__main__":
    main()
