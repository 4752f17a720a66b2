"""Which label-free measure chooses views well: policies trained briefly on several kinds of images, every cell kept.

    nice -n 15 python benchmarks/tune.py --work runs/tune --images FOLDER --seeds 0 1

Domains: `glyphs` (strokes whose class a flip or a turn changes) and `textures` (grey, told apart by scale and
direction) are drawn from a seed; `cifar10-jpeg`, `flowers5` and `imagenette-subset` are folders below --images. Of
each, some images are shrunk to 48 px first; views are 16 px. A cell is a trial of `byol tune` with one policy, from one
initial network: its measures, its judge with ten and with fifty labels a class, and, by logistic regression on frozen
features, its accuracy on test images. Every cell is added to results/tune-calibration.json, which the same command
continues. `--summary` says what the cells say, and adds it: each measure's rank correlation with linear accuracy, and
the points that its choice loses.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from fast import scores
from PIL import Image, ImageDraw
from scipy.stats import spearmanr

from byol import data
from byol.config import Config, Data, Network, Optim, Runtime
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.presets import fast, small_views
from byol.run import machine
from byol.run.files import read_json, write_json
from byol.run.progress import silent
from byol.run.record import commit
from byol.tables.cells import checksum
from byol.tables.compute import compute
from byol.tune import looks, policies, trials
from byol.tune.labelled import labelled
from byol.tune.measures import few_labels

RECORD = Path("results/tune-calibration.json")
SIDE, TRAIN, TEST = 48, 1600, 2000  # px, and images; of imagenette-subset there are 500 for the test
FEWEST = 8  # policies of a domain and seed that are summed up
PHOTOS = ("cifar10-jpeg", "flowers5", "imagenette-subset")
POLICIES = (
    *("usual", "no flip", "turns", "geometry", "no colour", "crops alone", "whole images", "strong", "small crops"),
    *("light only", "large crops", "noise"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("tune"))
    parser.add_argument("--images", type=Path, default=Path("images"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--domains", nargs="+", default=["glyphs", "textures", *PHOTOS])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--summary", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.summary:
        kept = read_json(RECORD)
        kept["summary"] = summary(kept["cells"])
        write_json(RECORD, kept)
        print(json.dumps(kept["summary"], indent=1))
        return
    for seed in asked.seeds:
        for name in asked.policies:
            for domain in asked.domains:
                add(domain, made(domain, asked.work, asked.images), name, asked.steps, seed, asked.work)


def made(domain: str, work: Path, images: Path) -> Path:
    """The folder of a domain: train/CLASS/ and test/CLASS/ of PNG files, drawn or shrunk once."""
    folder = work / domain
    if not (folder / "done").exists():
        if domain in PHOTOS:
            shrink(images / domain, folder)
        else:
            draw(folder, glyph if domain == "glyphs" else texture)
        (folder / "done").touch()
    return folder


def shrink(source: Path, folder: Path) -> None:
    """As many images of each class, with the short side at SIDE px; the last ones are for the test where all is one."""
    whole = next((path for path in sorted(source.iterdir()) if path.name not in ("train", "test", "val")), None)
    for part, count in (("train", TRAIN), ("test", TEST)):
        places = [place for place in (source / part, source / "val", whole) if place and place.is_dir()]
        classes = sorted(path for path in places[0].iterdir() if path.is_dir())
        for each in classes:
            files = sorted(path for path in each.iterdir() if path.is_file())
            files = files[::-1] if places[0] == whole and part == "test" else files
            for path in files[: count // len(classes)]:
                with Image.open(path) as image:
                    small = image.convert("RGB")
                    scale = SIDE / min(small.size)
                    if scale < 1:
                        small = small.resize([round(side * scale) for side in small.size], Image.Resampling.LANCZOS)
                    out = folder / part / each.name / f"{path.stem}.png"
                    out.parent.mkdir(parents=True, exist_ok=True)
                    small.save(out)


# Strokes in a unit square, from which a flip or a turn makes another class.
STROKES = {
    "b": [((0.3, 0.1), (0.3, 0.9)), ((0.3, 0.5), (0.7, 0.5)), ((0.7, 0.5), (0.7, 0.9)), ((0.3, 0.9), (0.7, 0.9))],
    "hook": [((0.3, 0.1), (0.3, 0.9)), ((0.3, 0.9), (0.75, 0.9))],
    "step": [((0.2, 0.2), (0.5, 0.2)), ((0.5, 0.2), (0.5, 0.8)), ((0.5, 0.8), (0.8, 0.8))],
}


def variants() -> dict[str, list[list[tuple[float, float]]]]:
    """Each stroke with its mirror image and its turns by a half, where they differ."""
    ways = {
        "": lambda x, y: (x, y),
        "-mirrored": lambda x, y: (1 - x, y),
        "-turned": lambda x, y: (1 - x, 1 - y),
        "-upside-down": lambda x, y: (x, 1 - y),
    }
    kept: dict[str, list[list[tuple[float, float]]]] = {}
    for name, strokes in STROKES.items():
        for way, change in ways.items():
            if name == "step" and way in ("-turned", "-upside-down"):
                continue  # a step turned by a half is itself
            kept[name + way] = [[change(*point) for point in line] for line in strokes]
    return kept


GLYPHS = variants()


def glyph(label: int, random: np.random.Generator) -> Image.Image:
    """Dark strokes on a bright ground, a little askew."""
    big = SIDE * 2
    ink, ground = (
        random.integers(20, 80) + random.integers(0, 30, 3),
        random.integers(170, 220) + random.integers(0, 30, 3),
    )
    image = Image.new("RGB", (big, big), tuple(int(v) for v in ground))
    pen = ImageDraw.Draw(image)
    angle, scale = random.normal(0, 0.12), random.uniform(0.55, 0.95)
    cos, sin = np.cos(angle) * scale * big, np.sin(angle) * scale * big
    middle = big / 2 + random.uniform(-0.12, 0.12, 2) * big
    width = int(random.integers(5, 12))
    for line in list(GLYPHS.values())[label]:
        points = [
            (middle[0] + (x - 0.5) * cos - (y - 0.5) * sin, middle[1] + (x - 0.5) * sin + (y - 0.5) * cos)
            for x, y in line
        ]
        pen.line(points, fill=tuple(int(v) for v in ink), width=width)
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def texture(label: int, random: np.random.Generator) -> Image.Image:
    """Noise of a band of frequencies: classes are four scales, each alike in all directions or along one."""
    scale, along = divmod(label, 2)
    frequency = 0.03 * 1.6**scale  # of cycles a pixel; the finest can still be seen at a third of the size
    y, x = np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE), indexing="ij")
    band = np.exp(-(((np.hypot(x, y) - frequency) / (0.25 * frequency)) ** 2))
    if along:
        direction = random.uniform(0, np.pi)
        band *= np.cos(np.arctan2(y, x) - direction) ** 8
    waves = np.fft.ifft2(np.fft.fft2(random.normal(size=(SIDE, SIDE))) * band).real
    waves = waves / waves.std() * random.uniform(20, 45) + random.uniform(90, 165) + random.normal(0, 8, waves.shape)
    return Image.fromarray(np.clip(waves, 0, 255).astype(np.uint8)).convert("RGB")


def draw(folder: Path, image_of: object) -> None:
    classes = list(GLYPHS) if image_of is glyph else [f"texture-{number}" for number in range(8)]
    for part, count, seed in (("train", TRAIN, 0), ("test", TEST, 1)):
        random = np.random.default_rng([seed, len(classes)])
        for number in range(count):
            label = number % len(classes)
            out = folder / part / classes[label] / f"{number:05d}.png"
            out.parent.mkdir(parents=True, exist_ok=True)
            (glyph if image_of is glyph else texture)(label, random).save(out)


def recipe() -> Config:
    """What `auto` takes for small compute, at a size whose step takes a twentieth of a second on one core."""
    heads = {"projector_hidden": 1024, "predictor_hidden": 1024}
    return fast(
        Config(
            data=Data(resolution=16),
            views=small_views(),
            network=Network(encoder="resnet18", width=0.25, small_images=True, **heads),
            optim=Optim(batch=64, weight_decay=1e-6, tau=0.97),
            run=Runtime(threads=1, device="cpu"),
        )
    )


def add(domain: str, folder: Path, name: str, steps: int, seed: int, work: Path) -> None:
    """One cell, if the record does not hold it yet."""
    kept = read_json(RECORD) if RECORD.exists() else {"what": __doc__.splitlines()[0], "cells": []}
    key = {"domain": domain, "policy": name, "seed": seed, "steps": steps}
    if any(all(cell[field] == value for field, value in key.items()) for cell in kept["cells"]):
        return
    config = recipe()
    own = policies.made(policies.POLICIES[name], config)
    source = data.open_source(str(folder), config.data)
    setting = trials.Setting(str(folder), checksum(str(folder), ""), len(source), config, work / "cells", seed)
    began, clock = time.process_time(), time.monotonic()
    trial = trials.cell(setting, name, own, steps)
    with silent(True):
        computed = compute(trial)
    if computed is None or not (trial.run / "encoder.safetensors").exists():
        print(domain, name, seed, "failed", flush=True)
        return
    encoder = open_encoder(trial.run, {"run.threads": 1})
    score(kept, key, encoder, folder, time.process_time() - began, time.monotonic() - clock)
    if name == "usual":
        score(kept, key | {"policy": "untrained", "steps": 0}, random_encoder(encoder, seed), folder, 0.0, 0.0)


def score(kept: dict, key: dict, encoder: Encoder, folder: Path, cpu: float, seconds: float) -> None:
    """Adds measures, the judge with labels and accuracies of one encoder to the record."""
    began = time.process_time()
    encoder = replace(encoder, place=machine.choose(encoder.config))
    source = data.open_source(str(folder), encoder.config.data)
    seen = looks.looks(source, encoder.config)
    few = labelled(source, encoder.config.data, each=10)
    found = trials.values(encoder, seen, few)
    many = labelled(source, encoder.config.data, each=50)
    found["labels50"] = round(few_labels(looks.represented(encoder, many.images), many.targets), 6)
    accuracy = scores(encoder, data.open_task(str(folder), encoder.config.data), linear=True)
    kept["cells"].append(
        {
            **key,
            "measures": found,
            "accuracy": accuracy,
            "cpu_seconds": round(cpu, 1),
            "seconds": round(seconds, 1),
            "measuring": round(time.process_time() - began, 1),
            "commit": commit(),
        }
    )
    write_json(RECORD, kept)
    print(key, found, accuracy, round(cpu, 1), round(time.process_time() - began, 1), flush=True)


def summary(cells: list[dict]) -> dict:
    """Over all domains and seeds: rank correlation with linear accuracy, and points lost against the best policy.

    A policy's accuracy is its mean over the seeds, of which each has a choice of its own. `default` always takes the
    usual views, `random` any policy. `held out` is what a judge loses on a domain when the measure is the one that
    loses least on all other domains: measures of one kind, without labels.
    """
    groups: dict[tuple[str, int], dict[str, dict]] = {}
    reached: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if cell["policy"] != "untrained":
            groups.setdefault((cell["domain"], cell["seed"]), {})[cell["policy"]] = cell
            reached.setdefault((cell["domain"], cell["policy"]), []).append(100 * cell["accuracy"]["linear"])
    groups = {key: group for key, group in groups.items() if len(group) >= FEWEST}
    names = list(next(iter(groups.values()))["usual"]["measures"])
    lost: dict[str, dict[str, list[float]]] = {name: {} for name in (*names, "default", "random")}
    ordered: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for (domain, _), group in groups.items():
        accuracy = {policy: float(np.mean(reached[domain, policy])) for policy in group}
        best, values = max(accuracy.values()), list(accuracy.values())
        for name in names:
            own = {policy: cell["measures"][name] for policy, cell in group.items()}
            lost[name].setdefault(domain, []).append(best - accuracy[max(own, key=own.__getitem__)])
            found = spearmanr(list(own.values()), values).statistic if len(set(own.values())) > 1 else 0.0
            ordered[name].setdefault(domain, []).append(float(found))
        lost["default"].setdefault(domain, []).append(best - accuracy["usual"])
        lost["random"].setdefault(domain, []).append(best - float(np.mean(values)))
    free = [name for name in names if not name.startswith("labels")]
    held = {}
    for domain in lost["default"]:
        others = {name: [x for d, v in lost[name].items() if d != domain for x in v] for name in free}
        chosen = min(free, key=lambda name: float(np.mean(others[name] or [0.0])))
        held[domain] = [chosen, round(float(np.mean(lost[chosen][domain])), 2)]
    return {
        "groups": {f"{domain} seed {seed}": len(group) for (domain, seed), group in groups.items()},
        "correlation": {name: digest(by_domain) for name, by_domain in ordered.items()},
        "regret": {name: digest(by_domain) for name, by_domain in lost.items()},
        "held out": held,
    }


def digest(by_domain: dict[str, list[float]]) -> dict[str, float]:
    """The mean of each domain, of all, and the largest."""
    every = [value for values in by_domain.values() for value in values]
    means = {domain: round(float(np.mean(values)), 2) for domain, values in by_domain.items()}
    return {**means, "mean": round(float(np.mean(every)), 2), "largest": round(max(every), 2)}


if __name__ == "__main__":
    main()
