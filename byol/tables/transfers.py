"""The paper's transfer to other data sets and tasks (section 4, appendices D and E) as declarations.

Supervised-IN is the same encoder trained with ImageNet's labels by the protocol `supervised`.
"""

from __future__ import annotations

from byol.tables.ablations import SIMCLR
from byol.tables.results import BASE, ORIGINAL
from byol.tables.table import Column, Row, Table, reported

OTHERS = (
    *("food101", "cifar10", "cifar100", "birdsnap", "sun397", "cars"),
    *("aircraft", "voc2007", "dtd", "pets", "caltech101", "flowers102"),
)

DIFFERENT = "BYOL differs in table 13: Birdsnap 57.3, SUN397 62.6, Cars 67.2, DTD 76.5, Caltech-101 94.3."
SUPERVISED = "Supervised-IN"

TRANSFER_LINEAR = Table(
    "transfer-linear",
    "Transfer from ImageNet by linear evaluation",
    "Table 3, upper half (tab:transfer_learning)",
    BASE,
    tuple(Column(name, "transfer-linear", "", name) for name in OTHERS),
    (
        Row("BYOL", "75.3 91.3 78.4 57.2 62.2 67.8 60.6 82.5 75.5 90.4 94.2 96.1", least="paper"),
        Row("SimCLR", "72.8 90.5 74.4 42.4 60.6 49.3 49.8 81.4 75.7 84.6 89.3 92.6", SIMCLR, least="paper"),
        Row(
            "SimCLR of its authors",
            "68.4 90.6 71.6 37.4 58.8 50.3 50.3 80.5 74.5 83.6 90.3 91.2",
            ORIGINAL,
            least="paper",
        ),
        Row(
            SUPERVISED,
            "72.3 93.6 78.3 53.7 61.9 66.7 61.0 82.8 74.9 91.5 94.5 94.7",
            encoder="supervised",
            least="paper",
        ),
    ),
    seeds=1,
    notes=(DIFFERENT, "“Outperforms SimCLR on all benchmarks”: not on DTD, 75.5 against 75.7."),
)

TRANSFER_FINETUNED = Table(
    "transfer-finetuned",
    "Transfer from ImageNet by fine-tuning",
    "Table 3, lower half (tab:transfer_learning)",
    BASE,
    tuple(Column(name, "finetune", "", name) for name in OTHERS),
    (
        Row("BYOL", "88.5 97.8 86.1 76.3 63.7 91.6 88.1 85.4 76.2 91.7 93.8 97.0", least="paper"),
        Row("SimCLR", "87.5 97.4 85.3 75.0 63.9 91.4 87.6 84.5 75.4 89.4 91.7 96.6", SIMCLR, least="paper"),
        Row(
            "SimCLR of its authors",
            "88.2 97.7 85.9 75.9 63.5 91.3 88.1 84.1 73.2 89.2 92.1 97.0",
            ORIGINAL,
            least="paper",
        ),
        Row(
            SUPERVISED,
            "88.3 97.5 86.4 75.8 64.3 92.1 86.0 85.0 74.6 92.1 93.3 97.6",
            encoder="supervised",
            least="paper",
        ),
        Row(
            "random initialization",
            "86.9 95.9 80.2 76.1 53.6 91.4 85.9 67.3 64.8 81.5 72.6 92.0",
            encoder="random",
            least="paper",
        ),
    ),
    seeds=1,
    notes=("“Outperforms SimCLR on all benchmarks”: not on SUN397, 63.7 against 63.9.",),
)

# The paper's dense tasks; at the small scales on rendered scenes, which have masks, boxes and depths.
DENSE_VOC = Table(
    "dense-voc",
    "Transfer to object detection and semantic segmentation on PASCAL VOC",
    "Tables 4a and 11 (tab:detect_segment, tab:detect_segment_full)",
    BASE,
    (
        Column("AP50", "detection", "AP50", "voc2007", small="detection"),
        Column("mIoU", "segmentation", "mIoU", "voc2012", small="segmentation"),
    ),
    (
        Row(SUPERVISED, "74.4 74.4", encoder="supervised"),
        reported("RelPos, ResNet-101", "66.8 -"),
        reported("Multi-task, ResNet-101", "70.5 -"),
        reported("LocalAgg", "69.1 -"),
        reported("MoCo", "74.9 72.5"),
        reported("MoCo + IG-1B", "75.6 73.6"),
        reported("CPC, ResNet-161", "76.6 -"),
        Row("SimCLR", "75.2 75.2", SIMCLR),
        Row("BYOL", "77.5 76.3"),
    ),
    seeds=1,
    notes=(
        "The figures of Supervised-IN are MoCo's authors'.",
        "The main text fine-tunes the detector, the appendix keeps the representation frozen (detection.frozen).",
    ),
)

DENSE_DEPTH = Table(
    "dense-depth",
    "Transfer to depth estimation on NYU v2",
    "Tables 4b and 12 (table:depth, table:app_depth_full)",
    BASE,
    (
        Column("pct. < 1.25", "depth", "pct<1.25", "nyu", small="depth"),
        Column("pct. < 1.25²", "depth", "pct<1.25^2", "nyu", small="depth"),
        Column("pct. < 1.25³", "depth", "pct<1.25^3", "nyu", small="depth"),
        Column("rms (lower is better)", "depth", "rms", "nyu", small="depth"),
        Column("rel (lower is better)", "depth", "rel", "nyu", small="depth"),
    ),
    (
        Row(SUPERVISED, "81.1 95.3 98.8 0.573 0.127", encoder="supervised"),
        reported("RelPos, ResNet-101", "80.6 94.7 98.3 0.399 0.146"),
        reported("Color, ResNet-101", "76.8 93.5 97.7 0.444 0.164"),
        reported("Exemplar, ResNet-101", "71.3 90.6 96.5 0.513 0.191"),
        reported("Motion segmentation, ResNet-101", "74.2 92.4 97.4 0.473 0.177"),
        reported("Multi-task, ResNet-101", "79.3 94.2 98.1 0.422 0.152"),
        Row("SimCLR", "83.3 96.5 99.1 0.557 0.134", SIMCLR),
        Row("BYOL", "84.6 96.7 99.1 0.541 0.129"),
    ),
    seeds=1,
    notes=("Table 4b prints BYOL's rms in bold, table 12 that of RelPos, 0.399; rel is best for Supervised-IN.",),
)

FROM_PLACES = tuple(name for name in OTHERS if name != "voc2007")

PLACES365 = Table(
    "places365",
    "Pretraining on Places365, linear evaluation",
    "Table 13 (tab:transfer_learning_from_places)",
    BASE,
    (
        Column("places365", "linear", on="places365"),
        Column("imagenet", "linear", on="imagenet"),
        *(Column(name, "transfer-linear", "", name) for name in FROM_PLACES),
    ),
    (
        Row("BYOL-IN", "51.0 74.3 75.3 91.3 78.4 57.3 62.6 67.2 60.6 76.5 90.4 94.3 96.1", least="paper"),
        Row(
            "BYOL-PL",
            "53.2 58.5 64.7 84.5 66.1 28.8 64.2 55.6 55.9 68.5 66.1 84.3 90.0",
            least="paper",
            data="places365",
        ),
        Row(
            "SimCLR-PL",
            "53.0 56.5 61.7 80.8 61.1 21.2 62.5 40.1 44.3 64.3 59.4 77.1 85.9",
            SIMCLR,
            least="paper",
            data="places365",
        ),
    ),
    seeds=1,
    notes=(
        "BYOL-IN differs in table 3: Birdsnap 57.2, SUN397 62.2, Cars 67.8, DTD 75.5, Caltech-101 94.2.",
        "The protocol chooses the learning rate on validation images, which the paper's list of Places365 lacks.",
    ),
)

TRANSFERS = (TRANSFER_LINEAR, TRANSFER_FINETUNED, DENSE_VOC, DENSE_DEPTH, PLACES365)
