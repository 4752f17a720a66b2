"""What `byol tune` tries: policies, which set fields of both views, and moves around the best of them. Needs no torch.

A policy changes the views that `auto` would take for the images; all that it does not name stays as it is there.
Learning rate and tau are moved when that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from byol.config import Config, Optim, Views

COLOURS = 3
Fields = Mapping[str, float]


@dataclass(frozen=True)
class Policy:
    """Fields of both views, a sentence for people, and what it would mean if these views are the best."""

    fields: Fields
    about: str
    means: str
    channels: str = "any"  # colours: for three channels; several: for two or more that are no colours
    factors: Fields = field(default_factory=dict)  # of the learning rate, `lr`, and of what tau forgets, `forgets`


def made(policy: Policy, base: Config) -> Config:
    """The config with the policy's views, rate and tau."""
    return replace(base, views=apply(policy, base.views), optim=_moved(policy.factors, base.optim))


def _moved(factors: Fields, optim: Optim) -> Optim:
    """A tau that forgets three times as much of the past in a step has three times the 1 − tau."""
    tau = 1 - min(1.0, (1 - optim.tau) * factors.get("forgets", 1.0))
    return replace(optim, lr=optim.lr * factors.get("lr", 1.0), tau=round(tau, 10))


def apply(policy: Policy, base: Views) -> Views:
    """The views with the policy's fields in both."""
    own: dict[str, Any] = dict(policy.fields)
    return replace(base, t=replace(base.t, **own), t_prime=replace(base.t_prime, **own))


def fitting(channels: int, base: Views) -> dict[str, Policy]:
    """The policies that have a meaning for so many channels, each set of views once."""
    kept: dict[str, Policy] = {}
    seen: list[Views] = []
    for name, policy in POLICIES.items():
        colours = channels == COLOURS
        fits = {"any": True, "colours": colours, "several": channels > 1 and not colours}[policy.channels]
        own = apply(policy, base)
        if fits and own not in seen:
            kept[name] = policy
            seen.append(own)
    return kept


def neighbours(name: str, policy: Policy, channels: int, base: Views, rates: bool = False) -> dict[str, Policy]:
    """One move away from a policy, as policies of their own; a move that changes nothing is left out. With `rates`,
    those of rate and tau come first."""
    found = {}
    here = apply(policy, base)
    for move, step in {**(RATES if rates else {}), **MOVES}.items():
        if step.channels == "colours" and channels != COLOURS:
            continue
        fields = {**policy.fields, **step.fields}
        if "area_min" in step.fields:  # relative to where the policy is
            fields["area_min"] = round(min(max(here.t.area_min * step.fields["area_min"], 0.02), 0.9), 4)
        moved = Policy(fields, f"{name}, {step.about}", step.means, step.channels, {**policy.factors, **step.factors})
        if apply(moved, base) != here or step.factors:
            found[f"{name} + {move}"] = moved
    return found


NO_COLOUR = {"jitter": 0.0, "grayscale": 0.0}
LIGHT = {"saturation": 0.0, "hue": 0.0, "grayscale": 0.0}
PLAIN = {**NO_COLOUR, "blur": 0.0, "solarize": 0.0, "channel_jitter": 0.0, "noise": 0.0}
TURNS = {"flip": 0.5, "flip_vertical": 0.5, "quarter_turn": 1.0}
STILL = {"flip": 0.0, "flip_vertical": 0.0, "quarter_turn": 0.0, "rotate": 0.0}
BANDS = {"channel_jitter": 0.8, "channel_brightness": 0.4, "channel_contrast": 0.4}
STRONG = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}

# What differs most comes first: where time is short, only the first ones are tried.
POLICIES: dict[str, Policy] = {
    "usual": Policy({}, "the views that auto takes", "these images are like those that the usual views are made for"),
    "no flip": Policy(STILL, "no flips or turns", "left-right flips change what these images show"),
    "turns": Policy(TURNS, "flips and quarter turns", "nothing says where up is in these images"),
    "no colour": Policy(NO_COLOUR, "no colour operations", "colour carries information here", "colours"),
    "geometry": Policy(PLAIN, "crops and flips alone", "colour, light and sharpness carry information here"),
    "whole images": Policy({"area_min": 0.6}, "hardly cropped", "the whole image is needed to tell what it shows"),
    "strong": Policy(STRONG, "SimCLR's strong colours", "colour and light carry little information here", "colours"),
    "small crops": Policy({"area_min": 0.08}, "crops down to 8 %", "small parts tell what an image shows"),
    "light only": Policy(LIGHT, "brightness and contrast alone", "hue carries information here", "colours"),
    "crops alone": Policy(PLAIN | STILL, "crops alone", "all but the place and the scale carries information here"),
    "large crops": Policy({"area_min": 0.4}, "crops of 40 % and more", "small crops do not tell what an image shows"),
    "noise": Policy({"noise": 0.5, "deviation": 0.1}, "with Gaussian noise", "fine grain carries no information here"),
    "bands": Policy(BANDS, "each channel's own light", "the light of single channels carries no information here"),
    "lost bands": Policy({"channel_drop": 0.3}, "channels dropped", "every channel alone can be missed", "several"),
    "no flip or colour": Policy(STILL | NO_COLOUR, "neither", "sides and colour carry information here", "colours"),
    "turns without colour": Policy(TURNS | NO_COLOUR, "both", "no up, and colour tells a lot", "colours"),
    "leaning": Policy({"rotate": 0.5, "angle": 15.0}, "rotated by up to 15°", "these images lean a little either way"),
}  # fmt: skip

MOVES: dict[str, Policy] = {
    "larger crops": Policy({"area_min": 2.0}, "larger crops", "small crops do not tell what an image shows"),
    "smaller crops": Policy({"area_min": 0.5}, "smaller crops", "small parts tell what an image shows"),
    "no flip": Policy(STILL, "no flips or turns", "left-right flips change what these images show"),
    "turns": Policy(TURNS, "flips and turns", "nothing says where up is in these images"),
    "no colour": Policy(NO_COLOUR, "no colour operations", "colour carries information here", "colours"),
    "no blur": Policy({"blur": 0.0}, "no blur", "sharpness carries information here"),
    "no negatives": Policy({"solarize": 0.0}, "no solarization", "bright and dark carry information here"),
}  # fmt: skip

RATES: dict[str, Policy] = {
    "twice the rate": Policy({}, "twice the learning rate", "larger steps teach more here", factors={"lr": 2.0}),
    "half the rate": Policy({}, "half the learning rate", "smaller steps teach more here", factors={"lr": 0.5}),
    "quick target": Policy({}, "a third of tau's memory", "a quick target teaches more here", factors={"forgets": 3.0}),
    "slow target": Policy({}, "thrice tau's memory", "a steady target teaches more here", factors={"forgets": 1 / 3}),
}  # fmt: skip
