"""Transfer by fine-tuning (paper, appendix D.3): the whole network trained on another data set.

20,000 steps of 256 images; learning rate and weight decay chosen on validation, trained again on train and validation
together, tested once. The schedule, on which the paper is silent, is a cosine as in the protocol that the paper cites.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from byol.data.loader import Images
from byol.data.parts import Task
from byol.evals import classifier
from byol.evals.budget import Setting, coarse_first
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe
from byol.evals.protocol import Result, Session, Study, dependencies
from byol.evals.spec import Finetune


def evaluate(encoder: Encoder, task: Task, spec: Finetune, session: Session) -> Result:
    """The encoder itself stays as it is: each run trains a copy."""
    return classifier.chosen_and_tested(study(encoder, task, spec, session), task, encoder, session)[1]


def study(encoder: Encoder, task: Task, spec: Finetune, session: Session) -> Study[Images, classifier.Held]:
    """How the whole network is trained with a setting and scored; `byol fit --finetune` goes by it too."""
    batch = min(spec.batch, len(task.train))

    def train(images: Images, setting: Setting, steps: int, title: str) -> nn.Module:
        model = classifier.classifier(encoder.trainable(), encoder.num_features, len(task.classes), session.seed)
        set_statistics_momentum(model, len(images.train) / batch)
        return classifier.train(model, images, recipe(setting, steps, batch, session.seed), encoder, title)

    return Study(
        grid(spec),
        lambda setting: spec.steps,
        train,
        lambda model, held: held.score(model, task.metric),
        classifier.images_of(task.train, encoder),
        classifier.Held(task.validation, encoder),
        dependencies(encoder, task, replace(spec, batch=batch, lrs=(), weight_decays=()), session.seed),
    )


def grid(spec: Finetune) -> list[Setting]:
    """All pairs, in an order of which any beginning covers the range: rates first, at no weight decay."""
    decays = [0.0] * (0.0 in spec.weight_decays) + coarse_first([d for d in spec.weight_decays if d])
    return [{"lr": lr, "weight_decay": decay} for decay in decays for lr in coarse_first(spec.lrs)]


def recipe(setting: Setting, steps: int, batch: int, seed: int) -> Recipe:
    """SGD multiplies the decay by the learning rate, so the paper divides it by the learning rate first."""
    decay = setting["weight_decay"] / setting["lr"] if setting["lr"] else 0.0
    return Recipe(steps, batch, setting["lr"], weight_decay=decay, seed=seed)


def set_statistics_momentum(model: nn.Module, steps_per_epoch: float) -> None:
    """max(1 − 10/s, 0.9) as the paper writes it is what torch calls 1 − momentum."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.momentum = min(10 / steps_per_epoch, 0.1)
