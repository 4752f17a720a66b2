"""BYOL — Bootstrap Your Own Latent: self-supervised learning of image representations.

`byol.pretrain(data, out, preset=…, overrides=…)` trains and returns a `Run`; `byol.load_run(path)` opens one;
`byol.load_encoder(path)`, `byol.embed(path, data)`, `byol.evaluate(run, on)`, `byol.search(image, run)` and
`byol.report(run)` use it; `byol.load_model(path)` opens what `byol fit` made; `byol.presets` holds the recipes and
`byol.plugins.load(file)` adds objectives, encoders and views of your own. All are loaded when first used, so that
`import byol` and every config error stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "embed",
    "evaluate",
    "load_encoder",
    "load_model",
    "load_run",
    "plugins",
    "presets",
    "pretrain",
    "report",
    "search",
]

if TYPE_CHECKING:
    from byol import plugins as plugins
    from byol import presets as presets
    from byol import report as report
    from byol.evals.evaluation import evaluate as evaluate
    from byol.evals.features import embed as embed
    from byol.library import load_run as load_run
    from byol.library import search as search
    from byol.models.model import load_model as load_model
    from byol.pretraining import pretrain as pretrain
    from byol.weights.imports import load_encoder as load_encoder

_HOME = {
    "pretrain": "byol.pretraining",
    "load_encoder": "byol.weights.imports",
    "load_model": "byol.models.model",
    "load_run": "byol.library",
    "embed": "byol.evals.features",
    "evaluate": "byol.evals.evaluation",
    "search": "byol.library",
}
_MODULES = ("plugins", "presets", "report")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"byol.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'byol' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
