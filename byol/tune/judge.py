"""Who chooses: a few labels where there are some, else the measure without labels that lost least in the calibration.

CALIBRATED holds what benchmarks/tune.py found for each measure, of results/tune-calibration.json. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LABELS, MANY = "labels", "labels50"  # ten labels a class in the calibration, and fifty
Values = Mapping[str, Mapping[str, float]]  # by policy, by measure


class Calibrated(NamedTuple):
    """How well a measure chose in the calibration: its mean rank correlation with linear accuracy, and the points lost
    by its choice against the best policy, on average and at worst."""

    correlation: float
    regret: float
    worst: float


def judge(labels: bool) -> str:
    """The name of the measure that chooses."""
    return LABELS if labels else WITHOUT_LABELS


def scores(values: Values, name: str) -> dict[str, float]:
    """Of each policy by one measure; a policy whose run failed is last."""
    return {policy: own.get(name, float("-inf")) for policy, own in values.items()}


def preferred(values: Values) -> dict[str, str]:
    """The policy that each measure would choose."""
    names = dict.fromkeys(name for own in values.values() for name in own)
    found = {}
    for name in names:
        own = scores(values, name)
        found[name] = max(own, key=lambda policy: own[policy])
    return found


def agreement(values: Values, chosen: str, against: str) -> tuple[list[str], list[str]]:
    """The measures by which one policy is better than another, and those by which it is not."""
    names = [name for name in values.get(chosen, {}) if name in values.get(against, {})]
    better = [name for name in names if values[chosen][name] > values[against][name]]
    return better, [name for name in names if name not in better]


def words(values: Values, chosen: str, means: Mapping[str, str], name: str, usual: str = "usual") -> list[str]:
    """The choice for people, with what speaks against it."""
    if chosen == usual:
        first = f"The usual views stay: no other policy is better by the judge, {name}."
    else:
        first = f"{chosen[:1].upper()}{chosen[1:]}: {means[chosen]}."
    lines = [first]
    if chosen != usual and usual in values:
        better, other = agreement(values, chosen, usual)
        told = f"Better than the usual views by {', '.join(better) or 'no measure'}"
        lines.append(f"{told}; not by {', '.join(other)}." if other else f"{told}: all that were measured.")
    others = {measure: policy for measure, policy in preferred(values).items() if policy != chosen}
    if others:
        lines.append("Others would choose: " + ", ".join(f"{policy} ({measure})" for measure, policy in others.items()))
    if name != LABELS and name in CALIBRATED:
        found = CALIBRATED[name]
        lines.append(
            f"Judged without labels by {name}. In the calibration its order agreed with that of linear accuracy by "
            f"{found.correlation:+.2f}, where 1 is the same order, and its choice lost {found.regret:.1f} points on "
            f"average and {found.worst:.1f} at worst; the choice by ten labels a class, --labels FOLDER, lost "
            f"{CALIBRATED[LABELS].regret:.1f} and {CALIBRATED[LABELS].worst:.1f}, that by fifty "
            f"{CALIBRATED[MANY].regret:.1f} and {CALIBRATED[MANY].worst:.1f}. Take it for a suggestion."
        )
    return lines


WITHOUT_LABELS = "rotation"
CALIBRATED: dict[str, Calibrated] = {
    "labels": Calibrated(0.4, 2.88, 10.0),
    "labels50": Calibrated(0.81, 0.64, 2.75),
    "rankme": Calibrated(0.18, 9.86, 21.95),
    "lidar": Calibrated(-0.25, 16.86, 46.12),
    "alpha": Calibrated(-0.02, 10.81, 36.0),
    "twins": Calibrated(0.5, 9.97, 39.38),
    "rotation": Calibrated(0.37, 5.55, 21.8),
    "belongs": Calibrated(0.56, 5.92, 26.38),
}
