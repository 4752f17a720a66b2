"""`byol fit`: from an encoder and labelled images to a model that answers.

Logistic regression on frozen features by the protocol of linear transfer, or the whole network by that of fine-tuning:
the setting is chosen on validation images, then the weights are fitted to all labelled images but those of the test.
Temperature, thresholds and validation figures come from weights that have not seen the validation images.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from byol import checkpoint
from byol.config import flatten
from byol.crops import MARGIN, scale_of
from byol.data.loader import Images
from byol.data.parts import Part, joined
from byol.errors import BadData, Interrupted, OutputBusy, UsageError
from byol.evals import classifier, features, finetune, logistic
from byol.evals.budget import Setting
from byol.evals.classifier import Held
from byol.evals.encoder import Encoder, open_encoder
from byol.evals.metrics import METRICS, score, shown
from byol.evals.protocol import Session, Trial, best, choose
from byol.evals.spec import Finetune, Transfer
from byol.evals.transfer import WHOLE
from byol.models import calibrate, card
from byol.models.labels import Labelled, folds, open_labelled
from byol.models.model import FORMAT, HEAD, NAME, VALIDATION, Model, ModelRecord, load_model, read_record
from byol.run import record
from byol.run.files import followed, only_writer, write_atomically, write_json
from byol.run.progress import say, tell

ALONE = 1.0  # the penalty where no image can be spared to choose one on


@dataclass(frozen=True)
class Options:
    """How a model is fitted; `test` holds the protocol's fifth of the images out, `precision` is what answers need."""

    how: str = "logistic"
    transfer: Transfer = field(default_factory=Transfer)
    finetune: Finetune = field(default_factory=Finetune)
    test: bool = False
    precision: float = 0.0
    seconds: float = float("inf")
    cache: Path | None = None


class Learned(NamedTuple):
    """The weights, and what weights that had not seen the validation images gave for them."""

    encoder: nn.Module
    weight: Tensor  # (classes, D)
    bias: Tensor  # (classes,)
    logits: np.ndarray  # (N, classes) of the validation images
    targets: np.ndarray
    names: list[str]
    setting: dict[str, float]
    test: dict[str, float]
    notes: list[str]


def fit(
    encoder: str | Path,
    on: str | Path,
    out: str | Path,
    *,
    labels: str | Path | None = None,
    options: Options = Options(),
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Model:
    """Fits a model to labelled images and writes it to the folder `out`; the same call gives the same bytes."""
    place = followed(Path(out))
    opened = open_encoder(encoder, settings)
    labelled = open_labelled(str(on), Path(labels) if labels else None, opened.config.data, options.test)
    labelled = labelled.split() if options.how == "finetune" else labelled
    with only_writer(place):
        begun = _record(opened, labelled, options, Path(encoder).name)
        _begin(place, begun, overwrite)
        _announce(opened, labelled, options)
        try:
            learn = by_finetuning if options.how == "finetune" else by_regression
            learned = learn(opened, labelled, options, place)
        except Interrupted:
            raise Interrupted("Interrupted; the same command fits the model from here.") from None
        _write(place, opened, labelled, learned, begun)
    facts = read_record(place)
    for note in facts.notes:
        say(note)
    figures = ", ".join(f"{name} {_figure(name, value)}" for name, value in facts.validation.items())
    tested = "".join(f"; test {name} {shown(name, value)}" for name, value in facts.test.items())
    tell(f"{out}: {len(facts.classes)} classes; on validation {figures or 'no image could be spared'}{tested}")
    return load_model(place, settings)


def _figure(name: str, value: float) -> str:
    return f"{value:.3f}" if name in ("log loss", "temperature") else shown(name, value)


def _record(encoder: Encoder, labelled: Labelled, options: Options, name: str) -> ModelRecord:
    spec = flatten(options.finetune if options.how == "finetune" else options.transfer)
    asked = [encoder.checksum(), encoder.resolution, list(labelled.classes), labelled.fingerprints(), options.how]
    key = json.dumps([*asked, spec, options.test, options.precision, options.seconds], default=str)
    parts = {"train": labelled.train, "validation": labelled.validation, "test": labelled.test}
    views = encoder.config.views
    margin = WHOLE if options.how == "logistic" else MARGIN
    return ModelRecord(
        format=FORMAT,
        status="fitting",
        request=hashlib.sha256(key.encode()).hexdigest()[:16],
        encoder=name,
        weights=encoder.checksum(),
        classes=list(labelled.classes),
        several=labelled.several,
        how="finetune" if options.how == "finetune" else "logistic",
        margin=margin,
        metric=labelled.metric,
        precision=options.precision,
        images={part: len(found) for part, found in parts.items() if found is not None},
        preprocessing={
            "resolution": encoder.resolution,
            "short_side": round(encoder.resolution * margin),
            "crop": "centre",
            "resize": "bicubic",
            "mean": list(views.mean),
            "std": list(views.std),
            **({"range": encoder.config.data.range} if scale_of(encoder.config.data) else {}),
        },
    )


def _begin(place: Path, begun: ModelRecord, overwrite: bool) -> None:
    """Refuses a folder of somebody else's, or of another model; a fit that was cut short goes on in its own."""
    visible = [path for path in place.iterdir() if not path.name.startswith(".")]
    if visible and not (place / NAME).is_file():
        raise OutputBusy(f"{place} exists and is no model of byol. Choose another --out.")
    if visible:
        there = read_record(place)
        if there.request == begun.request:
            return  # the same bytes again, or the rest of them
        if there.status == "done" and not overwrite:  # one that was never finished is no model yet
            raise OutputBusy(f"{place} holds another model. Choose another --out, or --overwrite to replace it.")
    record.write(place / NAME, begun)


def _announce(encoder: Encoder, labelled: Labelled, options: Options) -> None:
    held = f"{len(labelled.validation):,} to choose on" if labelled.validation else "in turns to choose on"
    tested = f", {len(labelled.test):,} for the test" if labelled.test is not None else ""
    kind = "several labels an image" if labelled.several else "one class an image"
    how = "the whole network" if options.how == "finetune" else "logistic regression on frozen features"
    say(
        f"Fitting {len(labelled.classes)} classes ({kind}) of {labelled.name}: {len(labelled.train):,} images to "
        f"train, {held}{tested}; {how} of {encoder.name} ({encoder.resolution} px)"
    )


def by_regression(encoder: Encoder, labelled: Labelled, options: Options, place: Path) -> Learned:
    """The protocol's penalties; where no validation part is there, every image is validation once."""
    cache, spec, count = options.cache or features.default_cache(), options.transfer, len(labelled.classes)
    train = features.of_part(encoder, labelled.train, cache, WHOLE)
    _check_readable(train.targets, labelled)
    values, targets = torch.from_numpy(train.values), torch.from_numpy(train.targets)
    if labelled.validation is not None:
        held = features.of_part(encoder, labelled.validation, cache, WHOLE)
        fitted = logistic.fit(values, targets, count, spec.penalties, max_iterations=spec.max_iterations)
        logits = logistic.scores(fitted.weights, torch.from_numpy(held.values)).numpy()
        names, known = _names(labelled.validation, held.left_out), held.targets
        both = features.of_both(encoder, labelled.train, labelled.validation, cache, WHOLE)
        values, targets = torch.from_numpy(both.values), torch.from_numpy(both.targets)
    else:
        logits, rows = _in_turns(values, targets, count, spec)
        names, known = [_names(labelled.train, train.left_out)[row] for row in rows], train.targets[rows]
    penalty, notes = _penalty(logits, known, labelled, spec)
    final = logistic.fit(values, targets, count, [penalty], max_iterations=spec.max_iterations).weights
    test: dict[str, float] = {}
    if labelled.test is not None:
        tested = features.of_part(encoder, labelled.test, cache, WHOLE)
        answers = logistic.scores(final, torch.from_numpy(tested.values))[0].numpy()
        test = score(labelled.metric, answers, tested.targets)
    chosen = logits[spec.penalties.index(penalty)] if len(known) else np.empty((0, count), np.float32)
    weights = final[0].float()
    return Learned(encoder.module, weights[:-1].T, weights[-1], chosen, known, names, {"penalty": penalty}, test, notes)


def _in_turns(values: Tensor, targets: Tensor, count: int, spec: Transfer) -> tuple[np.ndarray, np.ndarray]:
    """Logits (penalties, n, classes) of the rows that were validation in one of the turns, and which these are."""
    turns = folds(targets.numpy())
    logits = np.zeros((len(spec.penalties), len(values), count), np.float32)
    for turn in range(int(turns.max()) + 1):
        out = torch.from_numpy(turns == turn)
        fitted = logistic.fit(values[~out], targets[~out], count, spec.penalties, max_iterations=spec.max_iterations)
        logits[:, out.numpy()] = logistic.scores(fitted.weights, values[out]).numpy()
    rows = np.flatnonzero(turns >= 0)
    return logits[:, rows], rows


def _penalty(logits: np.ndarray, known: np.ndarray, labelled: Labelled, spec: Transfer) -> tuple[float, list[str]]:
    """The penalty with the best figure, of equal ones the strongest, which is the simplest classifier."""
    if not len(known):
        nearest = min(spec.penalties, key=lambda penalty: abs(np.log(penalty / ALONE)))
        return nearest, [
            "No class has two images, so nothing was chosen or measured: label more to know how good it is."
        ]
    trials = [
        Trial({"penalty": penalty}, METRICS[labelled.metric](scores, known))
        for penalty, scores in zip(spec.penalties, logits, strict=True)
    ]
    return best(sorted(trials, key=lambda trial: -trial.setting["penalty"])).setting["penalty"], []


def _check_readable(targets: np.ndarray, labelled: Labelled) -> None:
    present = (targets > 0).any(0) if labelled.several else np.isin(np.arange(len(labelled.classes)), targets)
    for number in np.flatnonzero(~present):
        raise BadData(
            f"No training image of the class {labelled.classes[number]} of {labelled.name} is there and can be read."
        )


def _names(part: Part, left_out: tuple[int, ...]) -> list[str]:
    gone = set(left_out)
    return [part.describe(position) for position in range(len(part)) if position not in gone]


def by_finetuning(encoder: Encoder, labelled: Labelled, options: Options, place: Path) -> Learned:
    """The protocol's sweep within the budget; what was tried is kept in the folder and not trained again."""
    task = labelled.task()
    _check_readable(task.train.targets, labelled)
    if not len(task.validation):
        raise UsageError(f"Fine-tuning chooses on validation images, and no class of {labelled.name} has two images.")
    session = Session(seconds=options.seconds, out=place)
    study = finetune.study(encoder, task, options.finetune, session)
    seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    last: list[str] = []

    def train(images: Images, setting: Setting, steps: int, title: str) -> nn.Module:
        last[:] = [json.dumps([setting, steps])]
        return study.train(images, setting, steps, title)

    def scored(model: nn.Module, held: Held) -> float:
        seen[last[0]] = held.predict(model)
        return METRICS[task.metric](*seen[last[0]])

    watched = replace(study, train=train, score=scored)
    chosen = choose(watched, session)
    key = json.dumps([chosen.setting, chosen.steps])
    if key not in seen:  # the only setting, or tried before a kill
        model = train(study.images, chosen.setting, chosen.steps, "Training to calibrate").eval()
        seen[key] = study.held.predict(model)
    everything = classifier.images_of(joined(task.train, task.validation), encoder)
    model = study.train(everything, chosen.setting, chosen.steps, "Final training").eval()
    assert isinstance(model, nn.Sequential)
    test: dict[str, float] = {}
    if labelled.test is not None:
        test = score(task.metric, *Held(labelled.test, encoder).predict(model))
    names = [task.validation.describe(position) for position in study.held.readable()]
    head: nn.Linear = model[1].float().cpu()  # type: ignore[assignment]
    weight, bias = head.weight.detach(), head.bias.detach()
    return Learned(model[0], weight, bias, *seen[key], names, dict(chosen.setting), test, chosen.notes)


def _write(place: Path, encoder: Encoder, labelled: Labelled, learned: Learned, begun: ModelRecord) -> None:
    """All files, then model.json, which says that they are there."""
    heat = calibrate.temperature(learned.logits, learned.targets)
    given = calibrate.probabilities(learned.logits, heat, labelled.several)
    limits, notes = _thresholds(given, learned.targets, begun.precision, labelled)
    figures = _figures(learned, given, heat, labelled) if len(learned.names) else {}
    done = replace(
        begun,
        status="done",
        temperature=heat,
        thresholds=limits,
        setting=learned.setting,
        validation=figures,
        test=learned.test,
        notes=[*learned.notes, *notes],
    )
    checkpoint.save_encoder(
        place / checkpoint.ENCODER, learned.encoder, encoder.config, {"step": 0, "origin": begun.encoder}
    )
    head = {"weight": learned.weight.contiguous(), "bias": learned.bias.contiguous()}
    write_atomically(place / HEAD, checkpoint.as_file(head, {"format": "pt"}))
    write_json(place / VALIDATION, _seen(learned, given))
    write_atomically(place / card.NAME, card.text(done, place.name).encode())
    record.write(place / NAME, done)


def _thresholds(
    given: np.ndarray, targets: np.ndarray, precision: float, labelled: Labelled
) -> tuple[list[float | None], list[str]]:
    if not len(given):
        return ([0.5] * len(labelled.classes) if labelled.several else [0.0]), []
    limits = [None if t is None else round(t - 5e-7, 6) for t in calibrate.thresholds(given, targets, precision)]
    never = [name for name, t in zip(labelled.classes, limits, strict=False) if t is None]
    if not never:
        return limits, []
    which = f" with {never[0]}" + (f" and {len(never) - 1} more" if len(never) > 1 else "")
    which = which if labelled.several else ""
    reached = f"No confidence gives a precision of {precision:.1%} on validation{which}"
    return limits, [f"{reached}: the model never answers{which}. Lower --abstain-below, or label more images."]


def _figures(learned: Learned, given: np.ndarray, heat: float, labelled: Labelled) -> dict[str, float]:
    confidence, right = calibrate.answers(given, learned.targets)
    found = score(labelled.metric, given, learned.targets)
    found |= {
        "log loss": calibrate.log_loss(learned.logits, learned.targets, heat),
        "calibration error": calibrate.calibration_error(confidence, right),
        "calibration error without temperature": calibrate.calibration_error(
            *calibrate.answers(calibrate.probabilities(learned.logits, 1.0, labelled.several), learned.targets)
        ),
    }
    return {name: round(float(value), 6) for name, value in found.items()}


def _seen(learned: Learned, given: np.ndarray) -> dict[str, Any]:
    """What the report draws: the validation images with their labels and probabilities."""
    return {"names": learned.names, "targets": learned.targets.tolist(), "probabilities": np.round(given, 5).tolist()}
