"""The paper's main results on ImageNet (section 4, appendices C and G) as declarations; figures as printed there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byol.tables.ablations import SIMCLR, views
from byol.tables.scales import Overrides, ScaleName, Times
from byol.tables.table import Column, Row, Table, reported

BASE = "paper-1000"
LINEAR = (Column("Top-1", small="linear"), Column("Top-5", figure="top5", small="linear"))
BOTH = (Column("Top-1"), Column("Top-5", figure="top5"))
# SimCLR with its own views, too (see the preset simclr): what its authors' figures are of.
ORIGINAL = {**SIMCLR, **views(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5, solarize=0.0)}
SHALLOW = {50: "resnet18", 101: "resnet34"}  # what stands for an encoder at the small scales


LIGHT = ((50, 1), (101, 1), (50, 2))  # depths and widths that a night has time for


def sized(label: str, printed: str, depth: int, width: int, method: Overrides | None = None, **more: Any) -> Row:
    """A row with an encoder of its own: the base's at every scale, other light ones in a night."""
    least: ScaleName = "paper" if (depth, width) not in LIGHT else "cpu" if (depth, width) == (50, 1) else "night"
    wide: Overrides = {"network.encoder": f"resnet{depth}", "network.width": Times(float(width))}
    small = {"network.encoder": SHALLOW.get(depth, ""), **(views(blur=0.0) if method is ORIGINAL else {})}
    return Row(label, printed, {**(method or {}), **wide}, small=small, **{"least": least, **more})


def every_encoder(lines: Mapping[tuple[int, int], str]) -> tuple[Row, ...]:
    """Rows that are compared over the size of the encoder, which needs more than one: nothing for the cpu scale."""
    return tuple(
        sized(
            f"ResNet-{depth} ({width}×)",
            printed,
            depth,
            width,
            x=ENCODERS[depth, width][0],
            least="night" if (depth, width) in LIGHT else "paper",
        )
        for (depth, width), printed in lines.items()
    )


LINEAR_RESNET50 = Table(
    "linear-resnet50",
    "Linear evaluation on ImageNet with a ResNet-50",
    "Table 1a (table:linear_classif_1)",
    BASE,
    BOTH,
    (
        reported("Local Aggregation", "60.2 -"),
        reported("PIRL", "63.6 -"),
        reported("CPC v2", "63.8 85.3"),
        reported("CMC", "66.2 87.0"),
        sized("SimCLR", "69.3 89.0", 50, 1, ORIGINAL),
        reported("MoCo v2", "71.1 -"),
        reported("InfoMin Aug.", "73.0 91.1"),
        sized("BYOL", "74.3 91.6", 50, 1),
    ),
    seeds=1,
    notes=("The conclusion compares with a previous best of 76.8; tables 1a and 1b have 73.0 and 76.5.",),
)

LINEAR_ENCODERS = Table(
    "linear-encoders",
    "Linear evaluation on ImageNet with other encoders",
    "Table 1b (table:linear_classif_2)",
    BASE,
    BOTH,
    (
        sized("SimCLR, ResNet-50 (2×)", "74.2 92.0", 50, 2, ORIGINAL, group="SimCLR", x=94),
        reported("CMC, ResNet-50 (2×)", "70.6 89.7", x=94),
        sized("BYOL, ResNet-50 (2×)", "77.4 93.6", 50, 2, group="BYOL", x=94),
        reported("CPC v2, ResNet-161", "71.5 90.1", x=305),
        reported("MoCo, ResNet-50 (4×)", "68.6 -", x=375),
        sized("SimCLR, ResNet-50 (4×)", "76.5 93.2", 50, 4, ORIGINAL, group="SimCLR", x=375),
        sized("BYOL, ResNet-50 (4×)", "78.6 94.2", 50, 4, group="BYOL", x=375),
        sized("BYOL, ResNet-200 (2×)", "79.6 94.8", 200, 2, group="BYOL", x=250),
    ),
    seeds=1,
    notes=("ResNet-200 (2×) has a top-5 of 94.8 here and in table 7, 94.9 in table 9.",),
)


def protocols(depth: int, width: int, printed: list[str]) -> tuple[Row, ...]:
    """The four protocols for one encoder: they share its pretraining."""
    name = f"ResNet-{depth} ({width}×)"
    pretraining = {"linear.views": "pretraining"}
    regularized = {"linear.tclip": 20.0, "linear.logit_penalty": 0.01}
    kinds: list[tuple[str, Overrides]] = [
        ("", {}),
        (", pre-train augmentations", pretraining),
        (", logits regularization", regularized),
        (", both", {**pretraining, **regularized}),
    ]
    return tuple(
        sized(name + kind, figures, depth, width, spec=spec, group=name)
        for (kind, spec), figures in zip(kinds, printed, strict=True)
    )


LINEAR_PROTOCOLS = Table(
    "linear-protocols",
    "Linear evaluation protocols",
    "Table 7 (tab:recuit_enhanced)",
    BASE,
    LINEAR,
    (
        *protocols(50, 1, ["74.3 91.6", "74.4 91.8", "74.7 91.8", "74.8 91.8"]),
        *protocols(50, 4, ["78.6 94.2", "78.6 94.3", "78.9 94.3", "79.0 94.5"]),
        *protocols(200, 2, ["79.6 94.8", "79.6 94.8", "79.8 95.0", "80.0 95.0"]),
    ),
    seeds=1,
    notes=("ResNet-200 (2×) has a top-5 of 94.8 here and in table 1, 94.9 in table 9.",),
)

ENCODERS = {
    (50, 1): (24, "74.3 91.6 76.4 92.9 76.5"),
    (101, 1): (43, "76.4 93.0 78.0 94.0 -"),
    (152, 1): (58, "77.3 93.7 79.1 94.5 -"),
    (200, 1): (63, "77.8 93.9 79.3 94.6 -"),
    (50, 2): (94, "77.4 93.6 79.9 95.0 77.8"),
    (101, 2): (170, "78.7 94.3 80.3 95.0 -"),
    (50, 3): (211, "78.2 93.9 80.2 95.0 -"),
    (152, 2): (232, "79.0 94.6 80.6 95.3 -"),
    (200, 2): (250, "79.6 94.9 80.1 95.2 -"),
    (50, 4): (375, "78.6 94.2 80.7 95.3 78.9"),
    (101, 3): (382, "78.4 94.2 80.7 95.3 -"),
    (152, 3): (522, "79.5 94.6 80.9 95.2 -"),
}  # depth and width → millions of parameters, and the line of table 9


LARGER_ENCODERS = Table(
    "larger-encoders",
    "Larger encoders, beside the same encoders trained with labels",
    "Table 9 (tab:large_resnet_perf), Figures 1 and 6",
    BASE,
    (
        Column("Top-1"),
        Column("Top-5", figure="top5"),
        Column("Supervised Top-1", "supervised", small="supervised"),
        Column("Supervised Top-5", "supervised", "top5", small="supervised"),
        Column("Supervised Top-1 of SimCLR’s authors", ""),
    ),
    every_encoder({size: printed for size, (_, printed) in ENCODERS.items()}),
    figure="parameters",
    seeds=1,
    notes=("ResNet-200 (2×) has a top-5 of 94.9 here and 94.8 in tables 1 and 7.",),
)


def few(share: str, figure: str = "top1", title: str = "") -> Column:
    name = {"top1": "Top-1", "top5": "Top-5"}[figure.split()[-1]]
    figure, x = f"{figure}@{share}", float(share[:-1])
    return Column(title or f"{name}, {share}", "semi-supervised", figure, small="semi-supervised", x=x)


SEMI_SUPERVISED = Table(
    "semi-supervised",
    "Fine-tuning with a fraction of the labels",
    "Table 2 (table:few_labels)",
    BASE,
    (few("1%"), few("10%"), few("1%", "top5"), few("10%", "top5")),
    (
        Row("Supervised, from scratch", "25.4 56.4 48.4 80.4", encoder="random"),
        reported("InstDisc", "- - 39.2 77.4"),
        reported("PIRL", "- - 57.2 83.8"),
        sized("SimCLR", "48.3 65.6 75.5 87.8", 50, 1, ORIGINAL, group="SimCLR"),
        sized("BYOL", "53.2 68.8 78.4 89.0", 50, 1, group="BYOL"),
        reported("CPC v2, ResNet-161", "- - 77.9 91.2", least="night"),
        sized("SimCLR, ResNet-50 (2×)", "58.5 71.7 83.0 91.2", 50, 2, ORIGINAL, group="SimCLR"),
        sized("BYOL, ResNet-50 (2×)", "62.2 73.5 84.1 91.7", 50, 2, group="BYOL"),
        sized("SimCLR, ResNet-50 (4×)", "63.0 74.4 85.8 92.6", 50, 4, ORIGINAL, group="SimCLR"),
        sized("BYOL, ResNet-50 (4×)", "69.1 75.7 87.9 92.5", 50, 4, group="BYOL"),
        sized("BYOL, ResNet-200 (2×)", "71.2 77.7 89.5 93.7", 200, 2, group="BYOL"),
    ),
    spec={"semi_supervised.scratch": False},
    figure="labels",
    seeds=1,
    notes=(
        "The paper reuses SimCLR’s lists of labelled images; ours are balanced draws.",
        "ResNet-50 (4×) has a top-5 of 92.5 with 10 % of the labels, below SimCLR's 92.6.",
    ),
)

FRACTIONS = ("1%", "2%", "5%", "10%", "20%", "50%", "100%")
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
UNPRINTED = "- - - - - - "


def last(*printed: str) -> str:
    """A line of several curves of which the figures at 100 % alone are printed."""
    return " ".join(UNPRINTED + figure for figure in printed)


FEW_LABELS = Table(
    "few-labels",
    "Fine-tuning with 1 % to 100 % of the labels, and from scratch",
    "Figures 4a and 4b (fig:few_data)",
    BASE,
    (
        *(few(share) for share in FRACTIONS),
        *(few(share, "top5") for share in FRACTIONS),
        *(few(share, "scratch top1", f"Top-1 from scratch, {share}") for share in FRACTIONS),
        *(few(share, "scratch top5", f"Top-5 from scratch, {share}") for share in FRACTIONS),
    ),
    (
        Row("BYOL", last("77.7", "93.9", "-", "-"), least="night", group="BYOL"),
        Row("SimCLR", last("76.5", "93.5", "-", "-"), SIMCLR, least="night", group="SimCLR"),
    ),
    spec={"semi_supervised.fractions": SHARES},
    figure="labels",
    seeds=1,
    notes=("The figures print no numbers; those at 100 % are table 8's, SimCLR's are the paper's reproduction.",),
)

FEW_LABELS_ENCODERS = Table(
    "few-labels-encoders",
    "Fine-tuning with 1 % to 100 % of the labels, with many encoders",
    "Figure 5 (fig:few_data_all_resnet)",
    BASE,
    tuple(few(share) for share in FRACTIONS),
    every_encoder({size: UNPRINTED + ("77.7" if size == (50, 1) else "-") for size in ENCODERS}),
    spec={"semi_supervised.fractions": SHARES, "semi_supervised.scratch": False},
    figure="labels",
    seeds=1,
    notes=("The figure prints no numbers and does not name its encoders in the text; 77.7 is table 8's.",),
)

ALL_LABELS = Table(
    "all-labels",
    "Fine-tuning with all labels, beside training with labels",
    "Table 8 (tab:finetune100)",
    BASE,
    (few("100%"), few("100%", "top5")),
    (
        Row("Supervised", "76.5 -", encoder="random", protocol="supervised", least="night"),
        Row("SimCLR of its authors", "76.0 93.1", ORIGINAL, small=views(blur=0.0), least="night"),
        reported("AutoAugment, supervised", "77.6 93.8", least="night"),
        Row("SimCLR (repro)", "76.5 93.5", SIMCLR, least="night"),
        reported("MaxUp, supervised", "78.9 94.2", least="night"),
        Row("BYOL", "77.7 93.9", least="night"),
    ),
    spec={"semi_supervised.fractions": (1.0,), "semi_supervised.scratch": False},
    seeds=1,
)

BATCH_512 = Table(
    "batch-512",
    "Training for 1000 epochs with a batch of 512",
    "appendix G (app:smaller-batch)",
    BASE,
    (Column("Top-1"),),
    (
        Row("batch 4096", "74.3", least="night"),
        Row(
            "batch 512",
            "73.7",
            {"optim.batch": 512, "optim.lr": 0.4, "optim.tau": 0.9995},
            # An eighth of the batch, twice the rate, and as in the paper the same share of the run is remembered.
            small={"optim.batch": Times(1 / 8), "optim.lr": Times(2), "optim.tau": 1 - 0.01 / 8},
            least="night",
        ),
    ),
    seeds=1,
)

RESULTS = (
    LINEAR_RESNET50,
    LINEAR_ENCODERS,
    LINEAR_PROTOCOLS,
    LARGER_ENCODERS,
    SEMI_SUPERVISED,
    FEW_LABELS,
    FEW_LABELS_ENCODERS,
    ALL_LABELS,
    BATCH_512,
)
