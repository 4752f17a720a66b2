"""BYOL — Bootstrap Your Own Latent: self-supervised learning of image representations.

`byol.pretrain(data, out, preset=…, overrides=…)`, `byol.load_encoder(path)`, `byol.embed(path, data)` and
`byol.load_model(path)` are loaded when first used, so that `import byol` and every config error stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["embed", "load_encoder", "load_model", "pretrain"]

if TYPE_CHECKING:
    from byol.evals.features import embed as embed
    from byol.models.model import load_model as load_model
    from byol.pretraining import pretrain as pretrain
    from byol.weights.imports import load_encoder as load_encoder

_HOME = {
    "pretrain": "byol.pretraining",
    "load_encoder": "byol.weights.imports",
    "load_model": "byol.models.model",
    "embed": "byol.evals.features",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'byol' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
