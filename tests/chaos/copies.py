"""Small copies of the benchmarks as their authors lay them out, with images whose grey says which they are."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from byol.data.benchmarks.table import VOC_CLASSES

EACH = 11  # training images of a class: a tenth is one image


@dataclass
class Copy:
    """A miniature on disk: the class of each grey level, part by part, and the files that hold the test images."""

    root: Path
    train: dict[int, Any] = field(default_factory=dict)
    validation: dict[int, Any] = field(default_factory=dict)
    test: dict[int, Any] = field(default_factory=dict)
    test_files: list[Path] = field(default_factory=list)
    serial: int = 0

    def image(self, path: str, split: str, label: Any) -> Path:
        """Write the next image of a part as a JPEG file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (self.serial,) * 3).save(file, "JPEG", quality=100)
        getattr(self, split)[self.serial] = label
        if split == "test":
            self.test_files.append(file)
        self.serial += 1
        return file

    def text(self, path: str, lines: list[str]) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))


def checksum(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def write_imagenet(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    for wnid in ("n01440764", "n01443537", "n02123045"):
        for i in range(EACH):
            copy.image(f"imagenet/train/{wnid}/{wnid}_{i}.JPEG", "train", wnid)
        copy.image(f"imagenet/val/{wnid}/ILSVRC2012_val_{copy.serial:08d}.JPEG", "test", wnid)


def write_places365(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # Not in the order of the alphabet, so that a number is not confused with a place in it.
    names = {"/a/airfield": 0, "/z/zen_garden": 1, "/a/apartment_building/outdoor": 2}
    trained, tested = [], []
    for name, number in names.items():
        for i in range(EACH):
            copy.image(f"places365/data_256_standard{name}/{i:08d}.jpg", "train", name[3:])
            trained.append(f"{name}/{i:08d}.jpg {number}")
        file = copy.image(f"places365/val_256/Places365_val_{number:08d}.jpg", "test", name[3:])
        tested.append(f"{file.name} {number}")
    copy.text("places365/categories_places365.txt", [f"{name} {number}" for name, number in names.items()])
    copy.text("places365/places365_train_standard.txt", trained)
    copy.text("places365/places365_val.txt", tested)
    kind, base = datasets.Places365, copy.root / "places365"
    file = base / "categories_places365.txt"
    patch.setattr(kind, "_CATEGORIES_META", (file.name, checksum(file)))
    lists = {"train-standard": "places365_train_standard.txt", "val": "places365_val.txt"}
    patch.setattr(kind, "_FILE_LIST_META", {split: (name, checksum(base / name)) for split, name in lists.items()})


def write_food101(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # The real json is not sorted, and a class may be missing from one list of an incomplete copy.
    counts = {"train": {"waffles": EACH, "apple_pie": EACH, "sushi": EACH}, "test": {"waffles": 2, "sushi": 3}}
    for split, classes in counts.items():
        lists = {name: [f"{name}/{split}{i}" for i in range(count)] for name, count in classes.items()}
        for name, images in lists.items():
            for image in images:
                copy.image(f"food-101/images/{image}.jpg", split, name)
        copy.text(f"food-101/meta/{split}.json", [json.dumps(lists)])


def write_cifar(copy: Copy, patch: pytest.MonkeyPatch, kind: Any, names: list[str], key: str) -> None:
    base = copy.root / kind.base_folder
    base.mkdir(parents=True)
    (base / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}, protocol=2))
    for split, files in (("train", kind.train_list), ("test", kind.test_list)):
        each = EACH * len(names) // len(files) if split == "train" else 4
        for name, _ in files:
            labels = [(i * 7) % len(names) for i in range(each)]
            greys = range(copy.serial, copy.serial + each)
            data = np.repeat(np.array(greys, np.uint8)[:, None], 3072, axis=1)
            (base / name).write_bytes(pickle.dumps({"data": data, key: labels, "batch_label": name}, protocol=2))
            getattr(copy, split).update({g: names[label] for g, label in zip(greys, labels, strict=True)})
            copy.serial += each
        renewed = [[name, checksum(base / name)] for name, _ in files]
        patch.setattr(kind, f"{split}_list", renewed)
        copy.test_files = [base / name for name, _ in files]
    patch.setattr(kind, "meta", {**kind.meta, "md5": checksum(base / kind.meta["filename"])})


def write_cifar10(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    write_cifar(copy, patch, datasets.CIFAR10, names, "labels")


def write_cifar100(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    write_cifar(copy, patch, datasets.CIFAR100, ["apple", "aquarium_fish", "baby", "bear"], "fine_labels")


def write_birdsnap(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    species = [("1", "Cooper's Hawk", "Coopers_Hawk"), ("2", "Mallard", "Mallard"), ("3", 'A "Quoted" Owl', "Owl")]
    rows, tested = [], ["path"]
    for key, common, folder in species:
        for i in range(EACH + 3):
            split = "test" if i % 5 == 0 else "train"
            path = f"{folder}/{copy.serial:04d}.jpg"
            copy.image(f"birdsnap/images/{path}", split, common)
            # Without coordinates the columns at the end are empty.
            rows.append("\t".join(["address", "0" * 32, path, key, "1", "2", "3", "4", "", ""]))
            tested += [path] * (split == "test")
        rows.append("\t".join(["address", "0" * 32, f"{folder}/gone.jpg", key, "1", "2", "3", "4", "", ""]))
    columns = ["url", "md5", "path", "species_id", "bb_x1", "bb_y1", "bb_x2", "bb_y2", "back_x", "back_y"]
    copy.text("birdsnap/images.txt", ["\t".join(columns), *rows])
    copy.text("birdsnap/test_images.txt", tested)
    scientific = "Genus species"
    lines = ["\t".join((key, common, scientific, folder)) for key, common, folder in species]
    copy.text("birdsnap/species.txt", ["\t".join(("id", "common", "scientific", "dir")), *lines])


def write_sun397(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    classes = ["/a/abbey", "/a/apartment_building/outdoor", "/z/zoo"]
    copy.text("SUN397/ClassName.txt", classes)
    for split, listed, count in (("train", "Training", EACH), ("test", "Testing", 2)):
        lines = [f"{name}/sun_{split}{i}.jpg" for i in range(count) for name in classes]
        for line in lines:
            copy.image(f"SUN397{line}", split, line[3:].rpartition("/")[0])
        copy.text(f"SUN397/{listed}_01.txt", lines)


def write_cars(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    savemat = pytest.importorskip("scipy.io", reason="the lists of the cars are .mat files: needs scipy").savemat
    names = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]
    base = copy.root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array([names], dtype=object)})
    places = {"train": ("devkit/cars_train_annos.mat", EACH), "test": ("cars_test_annos_withlabels.mat", 2)}
    for split, (place, count) in places.items():
        kinds = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
        rows = np.zeros((1, count * len(names)), dtype=kinds)
        for i in range(rows.size):
            file = copy.image(f"stanford_cars/cars_{split}/{i + 1:05d}.jpg", split, names[i % len(names)])
            rows[0, i] = (np.uint8(3), np.uint8(i % len(names) + 1), file.name)
        savemat(base / place, {"annotations": rows})


def write_aircraft(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    base, variants = "fgvc-aircraft-2013b/data", ["707-320", "A300B4", "Boeing 717"]
    copy.text(f"{base}/variants.txt", variants)
    for split, short, count in (("train", "train", 3), ("validation", "val", 2), ("test", "test", 2)):
        lines = []
        for i in range(count * len(variants)):
            variant = variants[i % len(variants)]
            file = copy.image(f"{base}/images/{1000000 + copy.serial}.jpg", split, variant)
            lines.append(f"{file.stem} {variant}")
        copy.text(f"{base}/images_variant_{short}.txt", lines)


def write_voc2007(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    base = "VOCdevkit/VOC2007"
    for split, short, count in (("train", "train", 6), ("validation", "val", 5), ("test", "test", 4)):
        rows = []
        for i in range(count):
            # Each image has one class, one that is only there as a difficult object, and no other.
            values = dict.fromkeys(VOC_CLASSES, -1) | {VOC_CLASSES[i]: 1, VOC_CLASSES[i + 9]: 0}
            file = copy.image(f"{base}/JPEGImages/{copy.serial + 5:06d}.jpg", split, values)
            rows.append((file.stem, values))
        for name in VOC_CLASSES:
            lines = [f"{image} {values[name]:2d}" for image, values in rows]
            copy.text(f"{base}/ImageSets/Main/{name}_{short}.txt", lines)


def write_dtd(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    for split, short, names in (
        ("train", "train", ("banded", "blotchy", "zigzagged")),
        ("validation", "val", ("banded", "zigzagged")),
        ("test", "test", ("blotchy", "zigzagged")),
    ):
        lines = [f"{name}/{name}_{short}{i}.jpg" for name in names for i in range(3)]
        for line in lines:
            copy.image(f"dtd/dtd/images/{line}", split, line.partition("/")[0])
        copy.text(f"dtd/dtd/labels/{short}1.txt", lines)
        copy.text(f"dtd/dtd/labels/{short}2.txt", lines[:1])


def write_pets(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # Breeds 2 and 4 of the 37 are not in this copy.
    breeds = {"Abyssinian": 1, "Basset_Hound": 3, "yorkshire_terrier": 5}
    for split, listed, count in (("train", "trainval", EACH), ("test", "test", 2)):
        lines = []
        for breed, number in breeds.items():
            for i in range(count):
                file = copy.image(
                    f"oxford-iiit-pet/images/{breed}_{split}{i}.jpg", split, breed.replace("_", " ").title()
                )
                lines.append(f"{file.stem} {number} 1 1")
        copy.text(f"oxford-iiit-pet/annotations/{listed}.txt", lines)


def write_caltech101(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # Which images are for the test is not said on disk.
    for name in ("BACKGROUND_Google", "Faces_easy", "accordion"):
        for i in range(2 * EACH):
            file = copy.image(f"caltech101/101_ObjectCategories/{name}/image_{i + 1:04d}.jpg", "train", name)
            copy.test_files.append(file)
    (copy.root / "caltech101/101_ObjectCategories/BACKGROUND_Google/tmp").write_text("not an image")


def write_flowers102(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    savemat = pytest.importorskip("scipy.io", reason="the lists of the flowers are .mat files: needs scipy").savemat
    base, names = copy.root / "flowers-102", {1: "pink primrose", 77: "passion flower", 102: "blackberry lily"}
    order = np.random.default_rng(0).permutation(24)
    labels = np.array([list(names)[i % 3] for i in range(24)], np.uint8)
    splits = {"trnid": ("train", order[:9]), "valid": ("validation", order[9:15]), "tstid": ("test", order[15:])}
    for split, places in splits.values():
        for place in places:
            copy.image(f"flowers-102/jpg/image_{place + 1:05d}.jpg", split, names[int(labels[place])])
    savemat(base / "imagelabels.mat", {"labels": labels[None]})
    savemat(base / "setid.mat", {key: places[None] + 1 for key, (_, places) in splits.items()})
    files = {"label": "imagelabels.mat", "setid": "setid.mat"}
    renewed = {key: (name, checksum(base / name)) for key, name in files.items()}
    patch.setattr(datasets.Flowers102, "_file_dict", {**datasets.Flowers102._file_dict, **renewed})
