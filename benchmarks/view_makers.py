"""Two views of each image by one library, in its own process and on one core: images a second.

    python benchmarks/view_makers.py '{"who": "kornia", "folder": "…", "size": 224, "decode": true, "seconds": 3}'

With `decode` an image begins as the bytes of its file, else as pixels in memory in the form that the library likes. It
ends as two normalized float tensors. Prints one line of JSON. Run by the peers' Python for a peer.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

IMAGES = 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JITTER = (0.4, 0.4, 0.2, 0.1)


def files(spec: dict[str, Any]) -> list[bytes]:
    paths = sorted(path for path in Path(spec["folder"]).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    return [path.read_bytes() for path in paths[:: max(1, len(paths) // IMAGES)][:IMAGES]]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def area(spec: dict[str, Any]) -> tuple[float, float]:
    return (0.2, 1.0) if spec["size"] < 64 else (0.08, 1.0)


def blur(spec: dict[str, Any], second: bool) -> float:
    """Its probability; the presets for 32 px have none."""
    return 0.0 if spec["size"] < 64 else 0.1 if second else 1.0


def taps(spec: dict[str, Any]) -> int:
    return 2 * (spec["size"] // 20) + 1


def by_byol(spec: dict[str, Any], data: list[bytes]) -> Callable[[], int]:
    """As training does it: crops one by one where images differ in size, colours by the batch."""
    from byol import presets, views
    from byol.config import Views
    from byol.data.decode import decode
    from byol.run import machine

    machine.keep_memory()  # as every run does
    config, size = presets.small_views() if spec["size"] < 64 else Views(), spec["size"]
    held = None if spec["decode"] else torch.stack([decode(each) for each in data])
    step = iter(range(10**9))

    def from_memory() -> int:
        assert held is not None
        for draw in views.draw(0, next(step), len(held), config):
            views.make(held, draw, config, size)
        return len(held)

    def from_files() -> int:
        batch = data[:32]
        data.extend(data[:32])
        del data[:32]
        draws = views.draw(0, next(step), len(batch), config)
        images = [decode(each) for each in batch]
        for draw in draws:
            views.make(images, draw, config, size)
        return len(batch)

    return from_files if spec["decode"] else from_memory


def each(
    spec: dict[str, Any], begin: Callable[[bytes], Any], pair: list[Callable[[Any], Any]], data: list[bytes]
) -> Callable[[], int]:
    """For libraries that take one image at a time."""
    held = data if spec["decode"] else [begin(one) for one in data]

    def make() -> int:
        for one in held[:32]:
            image = begin(one) if spec["decode"] else one
            for view in pair:
                view(image)
        held.extend(held[:32])
        del held[:32]
        return 32

    return make


def _torchvision(spec: dict[str, Any], data: list[bytes], tensors: bool) -> Callable[[], int]:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import InterpolationMode, v2

    def view(second: bool) -> Any:
        likely = blur(spec, second)
        return v2.Compose(
            [
                v2.RandomResizedCrop(spec["size"], area(spec), interpolation=InterpolationMode.BICUBIC, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(*JITTER)], 0.8),
                v2.RandomGrayscale(0.2),
                *([v2.RandomApply([v2.GaussianBlur(taps(spec), (0.1, 2.0))], likely)] if likely else []),
                *([v2.RandomSolarize(128, 0.2)] if second else []),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def read(one: bytes) -> Any:
        if not tensors:
            return opened(one)
        return decode_jpeg(torch.frombuffer(bytearray(one), dtype=torch.uint8), ImageReadMode.RGB)

    return each(spec, read, [view(False), view(True)], data)


def by_pil(spec: dict[str, Any], data: list[bytes]) -> Callable[[], int]:
    """torchvision's transforms on PIL images, with PIL's own blur, as most repositories have it."""
    import random

    from PIL import ImageFilter
    from torchvision import transforms as T

    class Blur:
        def __call__(self, image: Image.Image) -> Image.Image:
            return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))

    def view(second: bool) -> Any:
        return T.Compose(
            [
                T.RandomResizedCrop(spec["size"], area(spec), interpolation=T.InterpolationMode.BICUBIC),
                T.RandomHorizontalFlip(),
                T.RandomApply([T.ColorJitter(*JITTER)], 0.8),
                T.RandomGrayscale(0.2),
                *([T.RandomApply([Blur()], blur(spec, second))] if blur(spec, second) else []),
                *([T.RandomSolarize(128, 0.2)] if second else []),
                T.ToTensor(),
                T.Normalize(MEAN, STD),
            ]
        )

    return each(spec, opened, [view(False), view(True)], data)


def by_albumentations(spec: dict[str, Any], data: list[bytes]) -> Callable[[], int]:
    """On arrays, by OpenCV: colours from tables, crops without antialiasing: not the same maths."""
    import albumentations as A
    import cv2
    from albumentations.pytorch import ToTensorV2

    cv2.setNumThreads(1)

    def view(second: bool) -> Any:
        likely = blur(spec, second)
        brightness, contrast, saturation, hue = JITTER
        chain = A.Compose(
            [
                A.RandomResizedCrop((spec["size"], spec["size"]), scale=area(spec), interpolation=cv2.INTER_CUBIC),
                A.HorizontalFlip(),
                A.ColorJitter(
                    brightness=(1 - brightness, 1 + brightness),
                    contrast=(1 - contrast, 1 + contrast),
                    saturation=(1 - saturation, 1 + saturation),
                    hue=(-hue, hue),
                    p=0.8,
                ),
                A.ToGray(p=0.2),
                *([A.GaussianBlur(blur_limit=taps(spec), sigma_limit=(0.1, 2.0), p=likely)] if likely else []),
                *([A.Solarize(p=0.2)] if second else []),
                A.Normalize(MEAN, STD),
                ToTensorV2(),
            ]
        )
        return lambda image: chain(image=image)["image"]

    def read(one: bytes) -> np.ndarray:
        if spec["decode"]:
            found: np.ndarray = cv2.cvtColor(cv2.imdecode(np.frombuffer(one, np.uint8), 1), cv2.COLOR_BGR2RGB)
            return found
        return np.asarray(opened(one))

    return each(spec, read, [view(False), view(True)], data)


def by_kornia(spec: dict[str, Any], data: list[bytes]) -> Callable[[], int]:
    """By the batch; images of different sizes are cropped by PIL before, as its documentation has it."""
    import kornia.augmentation as K
    from torchvision import transforms as T

    def view(second: bool) -> Any:
        likely, size = blur(spec, second), spec["size"]
        crop = [] if spec["decode"] else [K.RandomResizedCrop((size, size), area(spec), resample="BICUBIC")]
        return torch.nn.Sequential(
            *crop,
            K.RandomHorizontalFlip(),
            K.ColorJitter(*JITTER, p=0.8),
            K.RandomGrayscale(p=0.2),
            *([K.RandomGaussianBlur((taps(spec), taps(spec)), (0.1, 2.0), p=likely)] if likely else []),
            *([K.RandomSolarize(p=0.2)] if second else []),
            K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        )

    pair = [view(False), view(True)]
    cut = T.RandomResizedCrop(spec["size"], area(spec), interpolation=T.InterpolationMode.BICUBIC)
    to_tensor = T.ToTensor()
    held = None if spec["decode"] else torch.stack([to_tensor(opened(one)) for one in data])

    def from_files() -> int:
        images = [opened(one) for one in data[:32]]
        data.extend(data[:32])
        del data[:32]
        for view in pair:
            view(torch.stack([to_tensor(cut(image)) for image in images]))
        return len(images)

    def from_memory() -> int:
        assert held is not None
        for view in pair:
            view(held)
        return len(held)

    return from_files if spec["decode"] else from_memory


MAKERS: dict[str, Callable[[dict[str, Any], list[bytes]], Callable[[], int]]] = {
    "byol": by_byol,
    "torchvision v2": lambda spec, data: _torchvision(spec, data, tensors=True),
    "PIL": by_pil,
    "kornia": by_kornia,
    "albumentations": by_albumentations,
}


def main() -> None:
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        make = MAKERS[spec["who"]](spec, files(spec))
        make()
        began, count = time.process_time(), 0
        while time.process_time() - began < spec["seconds"]:
            count += make()
        print(json.dumps({"images_per_second": count / (time.process_time() - began)}))


if __name__ == "__main__":
    main()
