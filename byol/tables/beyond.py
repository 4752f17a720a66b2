"""What the paper does not ask, as declarations: which of its findings depend on the length of a run and on its rate."""

from __future__ import annotations

from byol.tables.ablations import BASE, NEGATIVES, NO_PREDICTOR, NO_TARGET, STOP_GRADIENT, TOP1
from byol.tables.scales import Overrides, Times, as_in_the_paper
from byol.tables.table import Row, Table

AS_IN_5B = {**NO_PREDICTOR, **NO_TARGET, **NEGATIVES}  # SimCLR without the smaller heads of table 16


def lengths(label: str, printed: str, overrides: Overrides) -> tuple[Row, Row]:
    """A row as long as the ablations, and its twin three times as long."""
    longer = {**overrides, "optim.epochs": Times(3)}
    return Row(label, printed, overrides, group=label), Row(f"{label}, longer", "-", longer, group=label)


TRAINING_LENGTH = Table(
    "training-length",
    "As long as the ablations, and three times as long",
    "beyond the paper, beside Table 5",
    BASE,
    TOP1,
    (
        *lengths("BYOL", "72.5", {}),
        *lengths("SimCLR", "69.4", AS_IN_5B),
        *lengths("stop gradient of online, τ 0", "0.3", STOP_GRADIENT),
        *lengths("isotropic predictor", "-", {"network.predictor": "isotropic"}),
    ),
    notes=(
        "After 1,000 epochs, with other rates, the paper has 74.3 for BYOL beside 69.3 for SimCLR (table 1).",
        "The isotropic predictor is not the paper's.",
    ),
)


def rates(label: str, printed: str, overrides: Overrides) -> tuple[Row, Row]:
    """A row at the rate of the ablations, and its twin at a rate that is far too high for a short run."""
    faster = {**overrides, "optim.lr": Times(16.0)}
    return Row(label, printed, overrides, group="rate × 1"), Row(f"{label}, rate × 16", "-", faster, group="rate × 16")


TARGET_RATE = Table(
    "target-rate",
    "Target modes at the rate of the ablations, and at sixteen times this rate",
    "beyond the paper, beside Table 5a",
    BASE,
    TOP1,
    (
        *rates("constant random network", "18.8±0.7", {"network.target": "fixed"}),
        *rates("moving average that remembers 1/94", "69.8", {"optim.tau": as_in_the_paper(0.999)}),
        *rates("moving average that remembers 1/940", "72.5", {"optim.tau": as_in_the_paper(0.99)}),
        *rates("stop gradient of online", "0.3", STOP_GRADIENT),
        *rates("SimCLR", "-", AS_IN_5B),
    ),
    notes=("SimCLR has 69.4 in table 5b. The paper's own rates go up to 3.3 times that of its ablations (table 15a).",),
)

BEYOND = (TRAINING_LENGTH, TARGET_RATE)
