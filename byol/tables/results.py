"""The paper's main results (section 4, appendices C, D, E and G) as declarations; figures as printed there.

Rows of other people's methods are left out: a row is something that this package can run.
"""

from __future__ import annotations

from typing import Any

from byol.tables.ablations import SIMCLR
from byol.tables.scales import Overrides
from byol.tables.table import Column, Row, Table

BASE = "paper-1000"
LINEAR = (Column("Top-1", small="linear"), Column("Top-5", figure="top5", small="linear"))


def encoder(depth: int, width: int) -> Overrides:
    return {"network.encoder": f"resnet{depth}", "network.width": float(width)}


def protocols(name: str, overrides: Overrides, printed: list[str], **more: Any) -> tuple[Row, ...]:
    """The four protocols for one encoder: they share its pretraining."""
    pretraining = {"linear.views": "pretraining"}
    regularized = {"linear.tclip": 20.0, "linear.logit_penalty": 0.01}
    kinds: list[tuple[str, Overrides]] = [
        ("", {}),
        (", pre-train augmentations", pretraining),
        (", logits regularization", regularized),
        (", both", {**pretraining, **regularized}),
    ]
    return tuple(
        Row(name + kind, figures, overrides, spec=spec, group=name, **more)
        for (kind, spec), figures in zip(kinds, printed, strict=True)
    )


LINEAR_PROTOCOLS = Table(
    "linear-protocols",
    "Linear evaluation protocols",
    "Table 7 (tab:recuit_enhanced)",
    BASE,
    LINEAR,
    (
        *protocols("ResNet-50 (1×)", {}, ["74.3 91.6", "74.4 91.8", "74.7 91.8", "74.8 91.8"]),
        *protocols(
            "ResNet-50 (4×)", encoder(50, 4), ["78.6 94.2", "78.6 94.3", "78.9 94.3", "79.0 94.5"], least="paper"
        ),
        *protocols(
            "ResNet-200 (2×)", encoder(200, 2), ["79.6 94.8", "79.6 94.8", "79.8 95.0", "80.0 95.0"], least="paper"
        ),
    ),
    small_spec={"linear.epochs": 2.0, "linear.batch": 256},
    seeds=1,
    notes=("ResNet-200 (2×) has a top-5 of 94.8 here and in table 1, 94.9 in table 9.",),
)


def larger(depth: int, width: int, millions: float, printed: str) -> Row:
    return Row(f"ResNet-{depth} ({width}×)", printed, encoder(depth, width), least="paper", x=millions)


LARGER_ENCODERS = Table(
    "larger-encoders",
    "Larger encoders, beside the same encoders trained with labels",
    "Table 9 (tab:large_resnet_perf), Tables 1a and 1b, Figures 1 and 6",
    BASE,
    (
        Column("Top-1"),
        Column("Top-5", figure="top5"),
        Column("Supervised Top-1", "supervised"),
        Column("Supervised Top-5", "supervised", "top5"),
    ),
    (
        larger(50, 1, 24, "74.3 91.6 76.4 92.9"),
        larger(101, 1, 43, "76.4 93.0 78.0 94.0"),
        larger(152, 1, 58, "77.3 93.7 79.1 94.5"),
        larger(200, 1, 63, "77.8 93.9 79.3 94.6"),
        larger(50, 2, 94, "77.4 93.6 79.9 95.0"),
        larger(101, 2, 170, "78.7 94.3 80.3 95.0"),
        larger(50, 3, 211, "78.2 93.9 80.2 95.0"),
        larger(152, 2, 232, "79.0 94.6 80.6 95.3"),
        larger(200, 2, 250, "79.6 94.9 80.1 95.2"),
        larger(50, 4, 375, "78.6 94.2 80.7 95.3"),
        larger(101, 3, 382, "78.4 94.2 80.7 95.3"),
        larger(152, 3, 522, "79.5 94.6 80.9 95.2"),
    ),
    figure="parameters",
    seeds=1,
    notes=(
        "ResNet-200 (2×) has a top-5 of 94.9 here and 94.8 in tables 1 and 7.",
        "The conclusion compares with a previous best of 76.8; table 1 has 76.5.",
    ),
)


def few(share: str, figure: str = "top1", title: str = "") -> Column:
    name = {"top1": "Top-1", "top5": "Top-5"}[figure.split()[-1]]
    return Column(
        title or f"{name}, {share}",
        "semi-supervised",
        f"{figure}@{share}",
        small="semi-supervised",
        x=float(share[:-1]),
    )


FRACTIONS = ("1%", "2%", "5%", "10%", "20%", "50%", "100%")

SEMI_SUPERVISED = Table(
    "semi-supervised",
    "Fine-tuning with a fraction of the labels",
    "Table 2 (table:few_labels)",
    BASE,
    (few("1%"), few("10%"), few("1%", "top5"), few("10%", "top5")),
    (
        Row("ResNet-50 (1×)", "53.2 68.8 78.4 89.0"),
        Row("ResNet-50 (2×)", "62.2 73.5 84.1 91.7", encoder(50, 2), least="paper"),
        Row("ResNet-50 (4×)", "69.1 75.7 87.9 92.5", encoder(50, 4), least="paper"),
        Row("ResNet-200 (2×)", "71.2 77.7 89.5 93.7", encoder(200, 2), least="paper"),
    ),
    spec={"semi_supervised.scratch": False},
    small_spec={
        "semi_supervised.epochs": (10.0,),
        "semi_supervised.lrs": (0.05, 0.1),
        "semi_supervised.batch": 128,
    },
    figure="labels",
    seeds=1,
    notes=(
        "The paper reuses SimCLR’s lists of labelled images; ours are balanced draws.",
        "ResNet-50 (4×) has a top-5 of 92.5 with 10 % of the labels, below SimCLR's 92.6.",
    ),
)

FEW_LABELS = Table(
    "few-labels",
    "Fine-tuning with 1 % to 100 % of the labels, and from scratch",
    "Figure 4 (fig:few_data), Table 8 (tab:finetune100)",
    BASE,
    (
        *(few(share) for share in FRACTIONS),
        few("100%", "top5"),
        *(few(share, "scratch top1", f"from scratch, {share}") for share in FRACTIONS),
    ),
    (
        Row("BYOL", "- - - - - - 77.7 93.9 - - - - - - -", least="paper", group="BYOL"),
        Row("SimCLR", "- - - - - - 76.5 93.5 - - - - - - -", SIMCLR, least="paper", group="SimCLR"),
    ),
    spec={"semi_supervised.fractions": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)},
    figure="labels",
    seeds=1,
    notes=("The figure prints no numbers; those at 100 % are table 8's, SimCLR's is the paper's reproduction.",),
)

OTHERS = (
    *("food101", "cifar10", "cifar100", "birdsnap", "sun397", "cars"),
    *("aircraft", "voc2007", "dtd", "pets", "caltech101", "flowers102"),
)

DIFFERENT = "BYOL differs in table 13: Birdsnap 57.3, SUN397 62.6, Cars 67.2, DTD 76.5, Caltech-101 94.3."

TRANSFER_LINEAR = Table(
    "transfer-linear",
    "Transfer from ImageNet by linear evaluation",
    "Table 3, upper half (tab:transfer_learning)",
    BASE,
    tuple(Column(name, "transfer-linear", "", name) for name in OTHERS),
    (
        Row("BYOL", "75.3 91.3 78.4 57.2 62.2 67.8 60.6 82.5 75.5 90.4 94.2 96.1", least="paper"),
        Row("SimCLR", "72.8 90.5 74.4 42.4 60.6 49.3 49.8 81.4 75.7 84.6 89.3 92.6", SIMCLR, least="paper"),
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
    ),
    seeds=1,
    notes=("“Outperforms SimCLR on all benchmarks”: not on SUN397, 63.7 against 63.9.",),
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

BATCH_512 = Table(
    "batch-512",
    "Training for 1000 epochs with a batch of 512",
    "appendix G",
    BASE,
    (Column("Top-1"),),
    (
        Row("batch 4096", "74.3", least="paper"),
        Row("batch 512", "73.7", {"optim.batch": 512, "optim.lr": 0.4, "optim.tau": 0.9995}, least="paper"),
    ),
    seeds=1,
)

RESULTS = (
    LINEAR_PROTOCOLS,
    LARGER_ENCODERS,
    SEMI_SUPERVISED,
    FEW_LABELS,
    TRANSFER_LINEAR,
    TRANSFER_FINETUNED,
    PLACES365,
    BATCH_512,
)
