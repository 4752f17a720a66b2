"""What an evaluation looks at: an encoder with how its input is made, and the proof that it stayed as it was."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from byol import networks
from byol.config import Config, apply
from byol.run.machine import Machine, choose, keep_memory


@dataclass(frozen=True)
class Encoder:
    """A module with the config it was trained with, as far as evaluations depend on it, and what computes it."""

    name: str
    module: nn.Module
    config: Config
    place: Machine
    untrained: bool = False  # the network before training, which random:RUN asks for

    @property
    def num_features(self) -> int:
        return int(self.module.num_features)  # type: ignore[arg-type]

    @property
    def resolution(self) -> int:
        return self.config.data.resolution

    def fresh(self) -> nn.Module:
        """The same network with weights drawn anew, from torch's current random state."""
        return networks.encoder(self.config.network, self.config.data.resolution)

    def trainable(self) -> nn.Module:
        """A copy of its own, so that fine-tuning leaves the encoder alone."""
        return copy.deepcopy(self.module)

    def checksum(self) -> str:
        return checksum(self.module)


def checksum(module: nn.Module) -> str:
    """Of every weight and every batch statistic, with names and shapes."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\0".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


@contextmanager
def frozen(encoder: Encoder) -> Iterator[nn.Module]:
    """The module in evaluation mode on its device; afterwards every weight and statistic is the same byte for byte."""
    encoder.module.eval().to(**encoder.place.placement(encoder.config))
    before = encoder.checksum()
    keep_memory()
    yield encoder.module
    assert encoder.checksum() == before, "the frozen encoder was changed"


def open_encoder(path: str | Path, settings: Mapping[str, Any] | None = None) -> Encoder:
    """The encoder at a path that `byol.load_encoder` takes; `settings` are config fields such as run.device."""
    from byol.weights.imports import open_weights  # formats of others are none of a training run's business

    module, config = open_weights(path)
    config = apply(config, settings or {}, str(path))
    return Encoder(str(path), module, config, choose(config))


def random_encoder(like: Encoder, seed: int) -> Encoder:
    """The same network before any training."""
    torch.manual_seed(seed)
    return replace(like, name="random", untrained=True, module=like.fresh().eval())
