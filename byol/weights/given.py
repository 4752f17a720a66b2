"""Weights that a run begins from: what `byol.load_encoder` opens, or timm's own by name; nothing in a file is run."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from torch import nn

from byol import networks
from byol.checkpoint import Given
from byol.config import Config, apply
from byol.errors import UsageError
from byol.evals.encoder import checksum
from byol.weights.imports import open_weights

TIMM = "timm:"
SHAPE = ("encoder", "width", "small_images", "padding")  # the fields of Network that weights settle


def read(place: str) -> Given:
    """The encoder at a place: a run directory, an encoder file, a file of another code base, or timm:NAME."""
    module, config = _timm(place.removeprefix(TIMM)) if place.startswith(TIMM) else open_weights(place)
    network: dict[str, Any] = {name: getattr(config.network, name) for name in SHAPE}
    views: dict[str, Any] = {"views.mean": config.views.mean, "views.std": config.views.std}
    views["data.range"] = config.data.range
    width = f" at width {config.network.width:g}" if config.network.width != 1 else ""
    origin = f"{config.network.encoder}{width}, {config.data.resolution} px"
    return Given(place, origin, checksum(module), network, views, config.data.resolution, module.state_dict())


def _timm(name: str) -> tuple[nn.Module, Config]:
    """timm's own pretrained weights, from its cache or from where timm finds them, none of which is run."""
    networks.check_timm(name)
    import timm

    try:
        with mock.patch.dict(os.environ, {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}):
            model: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # whatever the many ways to a file on the hub raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise UsageError(
            f"timm cannot give its weights of {name} ({reason}): they are neither in its cache nor reachable. "
            "A file of them works too: --init FILE."
        ) from None
    facts: dict[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    settings = {
        "network.encoder": TIMM + name,
        "data.resolution": facts.get("input_size", (3, 224, 224))[-1],
        "views.mean": facts.get("mean", Config().views.mean),
        "views.std": facts.get("std", Config().views.std),
    }
    return model, apply(Config(), settings, f"{TIMM}{name}")
