"""The paper's ablations (section 5, appendix F) as declarations; figures as printed there.

All are 300 epochs of ImageNet, three seeds, linear evaluation; the row without overrides is the paper's baseline.
"""

from __future__ import annotations

from typing import Any

from byol.tables.scales import Overrides, ScaleName, Times, as_in_the_paper
from byol.tables.table import Column, Row, Table

TOP1 = (Column("Top-1"),)
BOTH = (Column("Top-1"), Column("Top-5", figure="top5"))
BASE = "paper-300"

NO_PREDICTOR = {"network.predictor": "none"}
STOP_GRADIENT = {"network.target": "stop-gradient"}
NO_TARGET = {"network.target": "online"}
NEGATIVES = {"objective.name": "info-nce", "objective.beta": 1.0, "objective.temperature": 0.1}
# The reproduction of SimCLR in tables 16 and 17: its loss and its smaller heads, with BYOL's views (appendix F.5).
SIMCLR = {
    **NO_PREDICTOR,
    **NO_TARGET,
    **NEGATIVES,
    "objective.scale": 5.0,
    "network.projector_hidden": Times(0.5),
    "network.projection": Times(0.5),
    "network.projection_norm": True,
}


def views(**fields: float) -> dict[str, float]:
    """The same change of both T and T′."""
    return {f"views.{view}.{name}": value for view in ("t", "t_prime") for name, value in fields.items()}


def both_methods(label: str, byol: str, simclr: str, overrides: Overrides, **more: Any) -> tuple[Row, Row]:
    """A row of BYOL and its twin of SimCLR."""
    return (
        Row(f"BYOL, {label}", byol, overrides, group="BYOL", **more),
        Row(f"SimCLR, {label}", simclr, {**SIMCLR, **overrides}, group="SimCLR", **more),
    )


def smaller(divisor: int, byol: str, simclr: str) -> tuple[Row, Row]:
    """A batch divided by N. Passes of 4 images take a small cell five times as long, for a night; 2 are too few."""
    least: ScaleName = "cpu" if divisor <= 8 else "night" if divisor == 16 else "paper"
    overrides = {"optim.accumulate": divisor} if divisor > 1 else {}
    return both_methods(f"batch/{divisor}", byol, simclr, overrides, x=4096 / divisor, least=least)


BATCH_SIZE = Table(
    "batch-size",
    "Batch size: 4096 in the paper, divided by N, gradients averaged over N passes",
    "Table 16 (tab:batchsize-all-ablations), Figure 3a",
    BASE,
    BOTH,
    (
        *smaller(1, "72.5 90.8", "67.9 88.5"),
        *smaller(2, "72.4 90.7", "67.8 88.5"),
        *smaller(4, "72.2 90.7", "67.4 88.1"),
        *smaller(8, "72.2 90.8", "66.5 87.6"),
        *smaller(16, "71.8 90.7", "64.3±2.1 86.3±1.0"),
        *smaller(32, "69.6±0.5 89.6", "63.6 85.9"),
        *smaller(64, "59.7±1.5 83.2±1.2", "59.2±2.9 83.0±1.9"),
    ),
    figure="decrease",
    notes=("The main text says 128 to 4096; the appendix goes down to 64.",),
)

NO_COLOUR = {"jitter": 0.0, "grayscale": 0.0}
NO_BLUR = {"blur": 0.0, "solarize": 0.0}

AUGMENTATIONS = Table(
    "augmentations",
    "Image augmentations removed",
    "Table 17 (tab:im-transfo-all-ablations), Figure 3b",
    BASE,
    BOTH,
    (
        *both_methods("baseline", "72.5 90.8", "67.9 88.5", {}),
        *both_methods("remove flip", "71.9 90.6", "67.3 88.2", views(flip=0.0)),
        *both_methods("remove blur", "71.2 90.3", "65.2 86.6", views(blur=0.0)),
        *both_methods(
            "remove color (jittering and grayscale)", "63.4±0.7 85.3±0.5", "45.7 70.6", views(jitter=0.0, grayscale=0.0)
        ),
        *both_methods("remove color jittering", "71.8 90.7", "63.7 85.9", views(jitter=0.0)),
        *both_methods("remove grayscale", "70.3 89.8", "61.9 84.1", views(grayscale=0.0)),
        *both_methods("remove blur in T′", "72.4 90.8", "67.5 88.4", {"views.t_prime.blur": 0.0}),
        *both_methods("remove solarize in T′", "72.3 90.8", "67.7 88.2", {"views.t_prime.solarize": 0.0}),
        *both_methods(
            "remove blur and solarize in T′",
            "72.2 90.8",
            "67.4 88.1",
            {"views.t_prime.blur": 0.0, "views.t_prime.solarize": 0.0},
        ),
        *both_methods(
            "symmetric blurring/solarization",
            "72.5 90.8",
            "68.1 88.4",
            views(blur=0.5, solarize=0.2),
            small=views(blur=0.0),  # the cpu scale has no blur to share out
        ),
        *both_methods("crop only", "59.4±0.3 82.4", "40.3±0.3 64.8±0.4", views(flip=0.0, **NO_COLOUR, **NO_BLUR)),
        *both_methods("crop and flip only", "60.1±0.3 83.0±0.3", "40.2 64.8", views(**NO_COLOUR, **NO_BLUR)),
        *both_methods("crop and color only", "70.7 90.0", "64.2 86.2", views(flip=0.0, **NO_BLUR)),
        *both_methods("crop and blur only", "61.1±0.3 83.9", "41.7 66.4", views(flip=0.0, solarize=0.0, **NO_COLOUR)),
    ),
    figure="decrease",
    notes=("At the cpu scale views have no blur, so rows that only remove it repeat another row.",),
)


TARGET_DECAY = Table(
    "target-decay",
    "Target modes",
    "Table 5a (tab:ablation_bootstrap)",
    BASE,
    TOP1,
    (
        Row("constant random network, τ 1", "18.8±0.7", {"network.target": "fixed"}),
        Row("moving average of online, τ 0.999", "69.8", {"optim.tau": 0.999}),
        Row("moving average of online, τ 0.99", "72.5", {"optim.tau": 0.99}),
        Row("moving average of online, τ 0.9", "68.4", {"optim.tau": 0.9}),
        Row("stop gradient of online, τ 0", "0.3", STOP_GRADIENT),
        Row("random encoder", "1.4", encoder="random"),
    ),
    notes=(
        "τ 0 is 0.3 here, but 5.5 in tables 19 and 21, where 0.3 is the row without stop-gradient.",
        "The random encoder's 1.4 is in the text of section 3.1.",
    ),
)

TARGET_MEMORY = Table(
    "target-memory",
    "Target modes, by the share of the run that the moving average remembers",
    "Table 5a (tab:ablation_bootstrap), its τ as 1/((1 − τ) · steps)",
    BASE,
    TOP1,
    (
        Row("constant random network", "18.8±0.7", {"network.target": "fixed"}),
        Row("moving average that remembers 1/94", "69.8", {"optim.tau": as_in_the_paper(0.999)}),
        Row("moving average that remembers 1/940", "72.5", {"optim.tau": as_in_the_paper(0.99)}),
        # In the few thousand steps of the small scales even τ 0 remembers more than this.
        Row("moving average that remembers 1/9,400", "68.4", {"optim.tau": as_in_the_paper(0.9)}, least="paper"),
        Row("stop gradient of online", "0.3", STOP_GRADIENT),
        Row("random encoder", "1.4", encoder="random"),
    ),
    notes=("At the paper's scale these are the runs of target-decay.",),
)

BYOL_TO_SIMCLR = Table(
    "byol-to-simclr",
    "Intermediate variants between BYOL and SimCLR",
    "Table 5b (tab:simclr_to_pbl)",
    BASE,
    TOP1,
    (
        Row("BYOL: predictor, target, β 0", "72.5"),
        Row("predictor, target, β 1", "70.9", NEGATIVES),
        Row("target, β 1", "70.7", {**NO_PREDICTOR, **NEGATIVES}),
        Row("SimCLR: β 1", "69.4", {**NO_PREDICTOR, **NO_TARGET, **NEGATIVES}),
        Row("predictor, β 1", "69.1", {**NO_TARGET, **NEGATIVES}),
        Row("predictor, β 0", "0.3", NO_TARGET),
        Row("target, β 0", "0.2", NO_PREDICTOR),
        Row("β 0", "0.1", {**NO_PREDICTOR, **NO_TARGET}),
    ),
    notes=(
        "Predictor without target at β 1 is 69.1 here and 69.0 in table 19.",
        "SimCLR is 69.4 here and 69.2 in the text of appendix F.5; a target adds 1.3 to it, the text says 1.6.",
    ),
)

BYOL_TO_SIMCLR_13 = Table(
    "byol-to-simclr-13",
    "Intermediate variants between BYOL and SimCLR, with stop-gradient",
    "Table 19 (tab:app_neg_term_1)",
    BASE,
    TOP1,
    (
        Row("BYOL: predictor, ξ, β 0", "72.5"),
        Row("predictor, ξ, β 1", "70.9", NEGATIVES),
        Row("ξ, β 1", "70.7", {**NO_PREDICTOR, **NEGATIVES}),
        Row("predictor, sg(θ), β 1", "70.2", {**STOP_GRADIENT, **NEGATIVES}),
        Row("SimCLR: θ, β 1", "69.4", {**NO_PREDICTOR, **NO_TARGET, **NEGATIVES}),
        Row("predictor, sg(θ), β 1 (again)", "70.1", {**STOP_GRADIENT, **NEGATIVES}),
        Row("sg(θ), β 1", "69.2", {**NO_PREDICTOR, **STOP_GRADIENT, **NEGATIVES}),
        Row("predictor, θ, β 1", "69.0", {**NO_TARGET, **NEGATIVES}),
        Row("predictor, sg(θ), β 0", "5.5", STOP_GRADIENT),
        Row("predictor, θ, β 0", "0.3", NO_TARGET),
        Row("ξ, β 0", "0.2", NO_PREDICTOR),
        Row("sg(θ), β 0", "0.1", {**NO_PREDICTOR, **STOP_GRADIENT}),
        Row("θ, β 0", "0.1", {**NO_PREDICTOR, **NO_TARGET}),
    ),
    notes=(
        "The paper lists predictor, sg(θ), β 1 twice, with 70.2 and 70.1: here one run stands beside both.",
        "Predictor, θ, β 1 is 69.0 here and 69.1 in table 5b; sg(θ), β 0 is 5.5 here and 0.3 in table 5a.",
    ),
)


SIMCLR_BASELINE = Table(
    "simclr-baseline",
    "The paper's SimCLR beside its reproduction of the original",
    "appendix F.5 (app:simclr_baseline)",
    BASE,
    TOP1,
    (
        Row("the original's loss and heads", "67.9", SIMCLR),
        Row("loss times 2α, hidden and output sizes as BYOL's", "69.2", {**NO_PREDICTOR, **NO_TARGET, **NEGATIVES}),
    ),
    notes=("69.2 with the three changes is 69.4 in tables 5b and 19.",),
)


def depth(projector: int, predictor: int, printed: str) -> Row:
    overrides = {"network.projector_depth": projector, "network.predictor_depth": predictor}
    return Row(f"projector {projector}, predictor {predictor}", printed, overrides)


DEPTH = Table(
    "depth",
    "Projector and predictor depth",
    "Table 14a (table:ablation-proj-depth)",
    BASE,
    BOTH,
    (
        depth(1, 1, "61.9 86.0"),
        depth(1, 2, "65.0 86.8"),
        depth(1, 3, "65.7 86.8"),
        depth(2, 1, "71.5 90.7"),
        depth(2, 2, "72.5 90.8"),
        depth(2, 3, "71.4 90.4"),
        depth(3, 1, "71.4 90.4"),
        depth(3, 2, "72.1 90.5"),
        depth(3, 3, "72.1 90.5"),
    ),
)

PROJECTION_SIZE = Table(
    "projection-size",
    "Projection dimension",
    "Table 14b (table:ablation-proj-size)",
    BASE,
    BOTH,
    (
        Row("16", "69.9±0.3 89.9", {"network.projection": 16}),
        Row("32", "71.3 90.6", {"network.projection": 32}),
        Row("64", "72.2 90.9", {"network.projection": 64}),
        Row("128", "72.5 91.0", {"network.projection": 128}),
        Row("256", "72.5 90.8"),
        Row("512", "72.6 91.0", {"network.projection": 512}),
    ),
)

LEARNING_RATE = Table(
    "learning-rate",
    "Base learning rate: multiples of 0.3 in the paper",
    "Table 15a (tab:ablation-lr)",
    BASE,
    BOTH,
    (
        Row("0.01/0.3", "34.8±3.0 60.8±3.2", {"optim.lr": Times(0.01 / 0.3)}),
        Row("0.1/0.3", "65.0 87.0", {"optim.lr": Times(0.1 / 0.3)}),
        Row("0.2/0.3", "71.7 90.6", {"optim.lr": Times(0.2 / 0.3)}),
        Row("0.3/0.3", "72.5 90.8"),
        Row("0.4/0.3", "72.3 90.6", {"optim.lr": Times(0.4 / 0.3)}),
        Row("0.5/0.3", "71.5 90.1", {"optim.lr": Times(0.5 / 0.3)}),
        Row("1/0.3", "69.4 89.2", {"optim.lr": Times(1 / 0.3)}),
    ),
)

WEIGHT_DECAY = Table(
    "weight-decay",
    "Weight decay",
    "Table 15b (table:ablation-weight-decay)",
    BASE,
    BOTH,
    (
        Row("1e-7", "72.1 90.4", {"optim.weight_decay": Times(0.1)}),
        Row("5e-7", "72.6 91.0", {"optim.weight_decay": Times(0.5)}),
        Row("1e-6", "72.5 90.8"),
        Row("5e-6", "71.0±0.3 90.0", {"optim.weight_decay": Times(5)}),
        Row("1e-5", "69.6±0.4 89.3", {"optim.weight_decay": Times(10)}),
        Row("BYOL, 0", "- -", {"optim.weight_decay": 0.0}),
        Row("SimCLR, 0", "- -", {**SIMCLR, "optim.weight_decay": 0.0}),
    ),
    notes=("Without weight decay either method diverges (section 5), or “may” be unstable (the table's caption).",),
)

INITIALIZATION = Table(
    "initialization",
    "Scale of the initial weights: the factor of their variance",
    "section 5, network hyperparameters",
    BASE,
    TOP1,
    (
        Row("half", "-", {"network.init_scale": 0.5}),
        Row("as it is", "72.5"),
        Row("double", "-", {"network.init_scale": 2.0}),
    ),
    notes=("The paper names no factor and no figure: “higher than 72 %”.",),
)


def weighted(beta: float, temperature: float, printed: str) -> Row:
    overrides = {"objective.name": "info-nce", "objective.beta": beta, "objective.temperature": temperature}
    return Row(f"β {beta:g}, α {temperature:g}", printed, overrides, group=f"β {beta:g}", x=temperature)


TEMPERATURE = Table(
    "temperature",
    "Temperature α and weight β of negative examples, with predictor and target network",
    "Table 18 (tab:app_neg_term_2)",
    BASE,
    BOTH,
    (
        Row("β 0, α 0.1", "72.5 90.8", group="β 0", x=0.1),
        weighted(0.1, 0.01, "72.2 90.7"),
        weighted(0.1, 0.1, "72.4 90.9"),
        weighted(0.1, 0.3, "72.7 91.0"),
        weighted(0.1, 1, "72.6 90.9"),
        weighted(0.1, 3, "72.5 90.9"),
        weighted(0.1, 10, "72.5 90.9"),
        weighted(0.5, 0.01, "70.9 90.2"),
        weighted(0.5, 0.1, "72.0 90.8"),
        weighted(0.5, 0.3, "72.7 91.2"),
        weighted(0.5, 1, "72.7 91.1"),
        weighted(0.5, 3, "72.6 91.1"),
        weighted(0.5, 10, "72.5 91.0"),
        weighted(1, 0.01, "53.9±0.5 77.5±0.5"),
        weighted(1, 0.1, "70.9 90.3"),
        weighted(1, 0.3, "72.7 91.1"),
        weighted(1, 1, "72.7 91.1"),
        weighted(1, 3, "72.6 91.0"),
        weighted(1, 10, "72.6 91.1"),
    ),
    notes=("The caption speaks of top-1 alone; the table prints top-5, too.",),
)

NORMALIZATION = Table(
    "normalization",
    "Normalization in the loss",
    "Table 20 (tab:abla_norm), Figure 7",
    BASE,
    BOTH,
    (
        Row("ℓ2-norm", "72.5 90.8"),
        Row("layer norm", "72.5±0.4 90.1", {"objective.normalization": "layer"}),
        Row("no normalization", "67.4 87.1", {"objective.normalization": "none"}),
        Row("batch norm", "65.3 85.3", {"objective.normalization": "batch"}),
    ),
    figure="norms",
    notes=("The text names the four in another order than it lists their functions; the table's order is meant.",),
)


ABLATIONS = (
    BATCH_SIZE,
    AUGMENTATIONS,
    TARGET_DECAY,
    TARGET_MEMORY,
    BYOL_TO_SIMCLR,
    BYOL_TO_SIMCLR_13,
    SIMCLR_BASELINE,
    DEPTH,
    PROJECTION_SIZE,
    LEARNING_RATE,
    WEIGHT_DECAY,
    INITIALIZATION,
    TEMPERATURE,
    NORMALIZATION,
)
