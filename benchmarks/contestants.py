"""Pretraining by one contestant, in its own process: images a second from files to weights, and peak memory.

    python benchmarks/contestants.py '{"who": "lightly", "tuned": true, "folder": "…", "depth": 18, "width": 0.25,
        "small": true, "size": 32, "batch": 256, "hidden": 1024, "steps": 12, "warm": 3, "workers": 2}'

All of them train byol's ResNet, so that the encoders are the same; everything else is the contestant's own, as in its
example. Tuned: bf16 autocast and channels_last. Prints one line of JSON. Run by the peers' Python for a peer.
"""

from __future__ import annotations

import copy
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BEGAN = time.perf_counter()
SUFFIXES = (".jpg", ".jpeg", ".png")


class Files(Dataset[Any]):
    """All images below a folder, through a transform."""

    def __init__(self, folder: str, transform: Callable[[Image.Image], Any]) -> None:
        self.paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def loader(spec: dict[str, Any], transform: Callable[[Image.Image], Any]) -> Iterator[Any]:
    """Shuffled batches, epoch after epoch."""
    loader = DataLoader(
        Files(spec["folder"], transform),
        batch_size=spec["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=spec["workers"],
        persistent_workers=spec["workers"] > 0,
    )
    while True:
        yield from loader


def encoder(spec: dict[str, Any]) -> nn.Module:
    from byol import networks

    return networks.resnet(spec["depth"], spec["width"], small_images=spec["small"])


class Clock:
    """Images a second after the first `warm` steps, and the peak of memory at the end of the last."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.times, self.peak = spec, [time.perf_counter()], 0

    def tick(self) -> bool:
        """At the end of a step; whether to go on."""
        self.times.append(time.perf_counter())
        self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return len(self.times) <= self.spec["warm"] + self.spec["steps"]

    def found(self) -> dict[str, float]:
        warm = self.times[self.spec["warm"]]
        count = len(self.times) - 1 - self.spec["warm"]
        return {
            "images_per_second": count * self.spec["batch"] / (self.times[-1] - warm),
            "peak_mb": self.peak / 1024 if sys.platform != "darwin" else self.peak / 2**20,
            "first_step_seconds": self.times[1] - BEGAN,
        }


def placed(module: nn.Module, spec: dict[str, Any]) -> nn.Module:
    return module.to(memory_format=torch.channels_last) if spec["tuned"] else module


def pixels(images: Tensor, spec: dict[str, Any]) -> Tensor:
    return images.to(memory_format=torch.channels_last) if spec["tuned"] else images


def autocast(spec: dict[str, Any]) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=spec["tuned"])


def by_byol(spec: dict[str, Any]) -> dict[str, float]:
    """The whole of `byol pretrain`: reading, looks, logs and checkpoints; the clock is read at every step."""
    from byol import presets, pretraining

    clock = Clock(spec)
    preset = "cifar10-cpu" if spec["small"] else "paper-100"
    plain = pretraining.update

    def timed(*arguments: Any, **named: Any) -> Any:
        step = plain(*arguments, **named)
        clock.tick()
        return step

    pretraining.update = timed
    steps = spec["warm"] + spec["steps"]
    count = len(Files(spec["folder"], lambda image: image))
    overrides = {
        "data.resolution": spec["size"],
        "objective.name": "byol",  # as the peers have it, without negatives that fade
        "objective.fade": 0.0,
        "network.encoder": f"resnet{spec['depth']}",
        "network.width": spec["width"],
        "network.small_images": spec["small"],
        "network.projector_hidden": spec["hidden"],
        "network.predictor_hidden": spec["hidden"],
        "optim.optimizer": "lars",
        "optim.batch": spec["batch"],
        "optim.epochs": steps * spec["batch"] / (count - min(int(0.02 * count), 1000)),
        "optim.warmup_epochs": 0,
        "data.workers": spec["workers"] or -1,
        # Twenty looks a run are few when it has the preset's length; these steps alone would have one each.
        "run.monitor_epochs": presets.PRESETS[preset]().optim.epochs / 20,
    }
    if not spec["tuned"]:
        overrides |= {"run.precision": "float32", "run.channels_last": False}
    with tempfile.TemporaryDirectory() as out:
        pretraining.pretrain(spec["folder"], out, preset, overrides)
    return clock.found()


def by_lightly(spec: dict[str, Any]) -> dict[str, float]:
    """As in its example examples/pytorch/byol.py."""
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules.heads import BYOLPredictionHead, BYOLProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms.byol_transform import BYOLTransform, BYOLView1Transform, BYOLView2Transform

    blur = {"gaussian_blur": 0.0} if spec["small"] else {}
    transform = BYOLTransform(
        view_1_transform=BYOLView1Transform(input_size=spec["size"], **blur),
        view_2_transform=BYOLView2Transform(input_size=spec["size"], **blur),
    )
    backbone = placed(encoder(spec), spec)
    head = BYOLProjectionHead(backbone.num_features, spec["hidden"], 256)
    predictor = BYOLPredictionHead(256, spec["hidden"], 256)
    target, target_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(target)
    deactivate_requires_grad(target_head)
    trained = [*backbone.parameters(), *head.parameters(), *predictor.parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.06)
    criterion = NegativeCosineSimilarity()
    clock = Clock(spec)
    for view0, view1 in loader(spec, transform):
        update_momentum(backbone, target, m=0.996)
        update_momentum(head, target_head, m=0.996)
        view0, view1 = pixels(view0, spec), pixels(view1, spec)
        with autocast(spec):
            p0, p1 = (predictor(head(backbone(view).flatten(start_dim=1))) for view in (view0, view1))
            with torch.no_grad():
                z0, z1 = (target_head(target(view).flatten(start_dim=1)) for view in (view0, view1))
            loss = 0.5 * (criterion(p0, z1) + criterion(p1, z0))
        loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not clock.tick():
            break
    return clock.found()


def by_byol_pytorch(spec: dict[str, Any]) -> dict[str, float]:
    """As in its README; it draws one augmentation for a whole batch, and images come to it resized."""
    from byol_pytorch import BYOL
    from torchvision.transforms import v2

    size = spec["size"]
    transform = v2.Compose(
        [v2.Resize(size), v2.CenterCrop(size), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )
    learner = BYOL(placed(encoder(spec), spec), image_size=size, hidden_layer=-1, projection_hidden_size=spec["hidden"])
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-4)
    clock = Clock(spec)
    for images in loader(spec, transform):
        with autocast(spec):
            loss = learner(pixels(images, spec))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.update_moving_average()
        if not clock.tick():
            break
    return clock.found()


def view(spec: dict[str, Any], second: bool) -> Any:
    """The paper's T or T′ in torchvision v2; without blur at 32 px, as in byol's preset and lightly's example."""
    from torchvision.transforms import InterpolationMode, v2

    size, taps = spec["size"], 2 * (spec["size"] // 20) + 1
    blur = [] if spec["small"] else [v2.RandomApply([v2.GaussianBlur(taps, (0.1, 2.0))], 0.1 if second else 1.0)]
    area = (0.2, 1.0) if spec["small"] else (0.08, 1.0)
    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(size, area, interpolation=InterpolationMode.BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
            *blur,
            *([v2.RandomSolarize(128, 0.2)] if second else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def by_hand(spec: dict[str, Any]) -> dict[str, float]:
    """What one would write in an afternoon."""
    first, second = view(spec, False), view(spec, True)
    hidden = spec["hidden"]

    def mlp(inputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 256))

    backbone = placed(encoder(spec), spec)
    online = nn.Sequential(backbone, mlp(backbone.num_features))
    target = copy.deepcopy(online).requires_grad_(False)
    predictor = mlp(256)
    optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.06, momentum=0.9)
    clock = Clock(spec)
    for view1, view2 in loader(spec, lambda image: (first(image), second(image))):
        view1, view2 = pixels(view1, spec), pixels(view2, spec)
        with autocast(spec):
            p1, p2 = predictor(online(view1)), predictor(online(view2))
            with torch.no_grad():
                z1, z2 = target(view1), target(view2)
        loss = 4 - 2 * (F.cosine_similarity(p1, z2) + F.cosine_similarity(p2, z1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for theirs, ours in zip(target.parameters(), online.parameters(), strict=True):
                theirs.lerp_(ours, 0.01)
        if not clock.tick():
            break
    return clock.found()


CONTESTANTS: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
    "byol": by_byol,
    "lightly": by_lightly,
    "byol-pytorch": by_byol_pytorch,
    "by hand": by_hand,
}


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    torch.manual_seed(0)
    print(json.dumps(CONTESTANTS[wanted["who"]](wanted)))
