"""The data sets of the paper's evaluations as one table, with its validation rules and metrics (appendix D.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # names of data sets are known before torch is loaded
    from byol.data.parts import Metric

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


@dataclass(frozen=True)
class Rule:
    """Where the validation images come from: the data set itself, or `amount` of the training images, held out."""

    kind: Literal["official", "random", "per-class", "share"]
    amount: float = 0


@dataclass(frozen=True)
class Benchmark:
    """A row of the paper's table and where the data set is looked for; its reader is in `layouts.READERS`."""

    title: str
    classes: int
    sizes: tuple[int, int, int]  # images in the paper's train, validation and test parts
    metric: Metric
    rule: Rule
    needs: tuple[str, ...]  # below the root; the data set is not there unless all of these are
    expected: str


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


SPLITS = ("train", "val", "test")
OFFICIAL = Rule("official")

# A row of the paper in one line.
# fmt: off
BENCHMARKS: dict[str, Benchmark] = {
    "imagenet": Benchmark(
        "ImageNet", 1000, (1_271_158, 10_009, 50_000), "top1",
        # The paper takes the last images of TensorFlow's order, which is shuffled. Folders are sorted by class: their
        # last 10,009 images would be of eight classes, so as many are taken from a shuffled order.
        Rule("random", 10_009),
        _in("imagenet", "train", "val"),
        "imagenet/train/<wnid>/<image>.JPEG and imagenet/val/<wnid>/<image>.JPEG, a folder for each class",
    ),
    "places365": Benchmark(
        "Places365", 365, (1_803_460, 0, 36_500), "top1",
        # The text holds out training images wherever there is no official part, the table counts none here.
        Rule("share", 0.1),
        _in(
            "places365",
            "categories_places365.txt", "places365_train_standard.txt", "places365_val.txt",
            "data_256_standard", "val_256",
        ),
        "places365/data_256_standard/<letter>/<class>/<image>.jpg and places365/val_256/<image>.jpg (from "
        "train_256_places365standard.tar and val_256.tar) with categories_places365.txt, "
        "places365_train_standard.txt and places365_val.txt (from filelist_places365-standard.tar) in places365",
    ),
    "food101": Benchmark(
        "Food-101", 101, (68_175, 7_575, 25_250), "top1", Rule("per-class", 75),
        _in("food-101", "meta/train.json", "meta/test.json", "images"),
        "food-101/images/<class>/<image>.jpg with food-101/meta/train.json and test.json (from food-101.tar.gz)",
    ),
    "cifar10": Benchmark(
        "CIFAR-10", 10, (45_000, 5_000, 10_000), "top1", Rule("random", 5_000),
        _in("cifar-10-batches-py", "batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        "cifar-10-batches-py with data_batch_1 to data_batch_5, test_batch and batches.meta, unchanged "
        "(from cifar-10-python.tar.gz)",
    ),
    "cifar100": Benchmark(
        "CIFAR-100", 100, (44_933, 5_067, 10_000), "top1", Rule("random", 5_067),
        _in("cifar-100-python", "meta", "train", "test"),
        "cifar-100-python with train, test and meta, unchanged (from cifar-100-python.tar.gz)",
    ),
    "birdsnap": Benchmark(
        "Birdsnap", 500, (42_405, 4_981, 2_443), "top1",
        # The text takes as many of each species as the test part has, which would be 2,443; the table's size is kept.
        Rule("random", 4_981),
        _in("birdsnap", "images.txt", "test_images.txt", "species.txt", "images"),
        "birdsnap/images/<species>/<number>.jpg with images.txt, test_images.txt and species.txt (from "
        "birdsnap.tgz, whose script fetches the images) in birdsnap",
    ),
    "sun397": Benchmark(
        "SUN397 (split 1)", 397, (15_880, 3_970, 19_850), "top1", Rule("per-class", 10),
        _in("SUN397", "ClassName.txt", "Training_01.txt", "Testing_01.txt"),
        "SUN397/<letter>/<class>/sun_<id>.jpg (from SUN397.tar.gz) with ClassName.txt, Training_01.txt and "
        "Testing_01.txt (from Partitions.zip) in SUN397",
    ),
    "cars": Benchmark(
        "Stanford Cars", 196, (6_494, 1_650, 8_041), "top1", Rule("random", 1_650),
        _in(
            "stanford_cars",
            "devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat",
            "cars_train", "cars_test",
        ),
        "stanford_cars/cars_train/<number>.jpg and stanford_cars/cars_test/<number>.jpg with devkit/cars_meta.mat, "
        "devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat in stanford_cars",
    ),
    "aircraft": Benchmark(
        "FGVC Aircraft (variants)", 100, (3_334, 3_333, 3_333), "mean-per-class", OFFICIAL,
        _in("fgvc-aircraft-2013b/data", "images", "variants.txt", *(f"images_variant_{part}.txt" for part in SPLITS)),
        "fgvc-aircraft-2013b/data/images/<number>.jpg with variants.txt and images_variant_train.txt, _val.txt and "
        "_test.txt beside images (from fgvc-aircraft-2013b.tar.gz)",
    ),
    "voc2007": Benchmark(
        "PASCAL VOC 2007 (classification)", 20, (2_501, 2_510, 4_952), "map11", OFFICIAL,
        _in(
            "VOCdevkit/VOC2007",
            "JPEGImages", *(f"ImageSets/Main/{name}_{part}.txt" for part in SPLITS for name in VOC_CLASSES),
        ),
        "VOCdevkit/VOC2007/JPEGImages/<number>.jpg and VOCdevkit/VOC2007/ImageSets/Main/<class>_train.txt, "
        "_val.txt and _test.txt (from VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar)",
    ),
    "dtd": Benchmark(
        "DTD (split 1)", 47, (1_880, 1_880, 1_880), "top1", OFFICIAL,
        _in("dtd/dtd", "images", *(f"labels/{part}1.txt" for part in SPLITS)),
        "dtd/dtd/images/<class>/<image>.jpg with dtd/dtd/labels/train1.txt, val1.txt and test1.txt "
        "(from dtd-r1.0.1.tar.gz, unpacked in dtd)",
    ),
    "pets": Benchmark(
        "Oxford-IIIT Pets", 37, (2_940, 740, 3_669), "mean-per-class", Rule("per-class", 20),
        _in("oxford-iiit-pet", "images", "annotations/trainval.txt", "annotations/test.txt"),
        "oxford-iiit-pet/images/<breed>_<number>.jpg with oxford-iiit-pet/annotations/trainval.txt and test.txt "
        "(from images.tar.gz and annotations.tar.gz)",
    ),
    "caltech101": Benchmark(
        # As in the table, though its sizes are those of 102 folders: 30 x 102 = 3,060, with the one of backgrounds.
        "Caltech-101", 101, (2_550, 510, 6_084), "mean-per-class", Rule("per-class", 5),
        ("caltech101/101_ObjectCategories",),
        "caltech101/101_ObjectCategories/<class>/image_<number>.jpg, BACKGROUND_Google among the classes "
        "(from 101_ObjectCategories.tar.gz)",
    ),
    "flowers102": Benchmark(
        "Oxford 102 Flowers", 102, (1_020, 1_020, 6_149), "mean-per-class", OFFICIAL,
        _in("flowers-102", "jpg", "imagelabels.mat", "setid.mat"),
        "flowers-102/jpg/image_<number>.jpg (from 102flowers.tgz) with imagelabels.mat and setid.mat in flowers-102",
    ),
}
# fmt: on
