"""One HTML page about a model: figures, what it confuses, how far its confidence can be trusted, worst mistakes.

The page has no script and asks for nothing; every text of the user's is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from byol import data
from byol.data.source import BadImage, Source
from byol.errors import DiskError, UsageError
from byol.evals.encoder import open_encoder
from byol.evals.metrics import average_precision11, shown
from byol.models import calibrate
from byol.models.model import VALIDATION, ModelRecord, read_record
from byol.report.gallery import found_by_name
from byol.report.tiles import tile
from byol.run.files import placed, read_json, write_atomically
from byol.run.painting import painter
from byol.run.progress import tell

WRONG = 12  # images that are shown
MOST_CLASSES = 40  # of a matrix; beyond it the commonest confusions are listed
SIDE = 144  # px of a picture


class Seen(NamedTuple):
    """The validation images, their targets and the probabilities (N, classes) that they were given."""

    names: list[str]
    targets: np.ndarray
    given: np.ndarray


class Mistake(NamedTuple):
    """A confident wrong answer."""

    name: str
    label: str
    answer: str
    confidence: float


def report(folder: Path, out: Path, images: str = "") -> Path:
    """Writes the page; `images` says where the validation images are, so that mistakes can be shown."""
    facts = read_record(folder)
    if facts.status != "done":
        raise UsageError(f"The fit of {folder} was not finished: run the same `byol fit` again.")
    seen = read_seen(folder, facts)
    config = open_encoder(folder).config.data
    source = data.open_source(images, config) if images else None
    if source:
        paint, read = painter(source, config), source.read
        source = replace(source, read=lambda index: paint.stored(read(index)))
        facts = replace(facts, notes=facts.notes + [f"Colours of the pictures: {paint.words}."] * bool(paint.words))
    content = render(folder.resolve().name, facts, seen, source)
    out = placed(out)
    write_atomically(out, content)
    tell(f"{out}: {len(facts.classes)} classes, {len(content) / 1e6:.2f} MB")
    return out


def read_seen(folder: Path, facts: ModelRecord) -> Seen:
    """validation.json, if it fits the model."""
    path = folder / VALIDATION
    value: Any = read_json(path)
    try:
        names = [str(name) for name in value["names"]]
        shape = (len(names), len(facts.classes))
        targets = np.array(value["targets"], np.int64).reshape(shape if facts.several else (len(names),))
        given = np.array(value["probabilities"], np.float64).reshape(shape)
        low, high = (-1, 1) if facts.several else (0, len(facts.classes) - 1)
        sound = bool(((targets >= low) & (targets <= high)).all() and ((given >= 0) & (given <= 1)).all())
    except (KeyError, TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise DiskError(f"{path} is damaged or is not ours: it does not fit the model.")
    return Seen(names, targets, given)


def render(name: str, facts: ModelRecord, seen: Seen, source: Source | None) -> bytes:
    return document(name, "\n".join(sections(name, facts, seen, source)))


def document(title: str, body: str) -> bytes:
    """A whole page around its body, which is escaped already; nothing but its own style and pictures may load."""
    style = files("byol.report").joinpath("model.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
    return page.encode("utf-8")


def sections(name: str, facts: ModelRecord, seen: Seen, source: Source | None) -> Iterator[str]:
    kind = "labels, any number an image" if facts.several else "classes, one an image"
    how = "Logistic regression on a frozen encoder" if facts.how == "logistic" else "A fine-tuned encoder"
    yield f"<h1>{text(name)}</h1><p>{len(facts.classes)} {kind}. {how}; {facts.images.get('train', 0):,} images.</p>"
    yield "<h2>Figures</h2>" + table(
        ["figure", "validation", "test"],
        [
            [figure, _cell(facts.validation, figure), _cell(facts.test, figure)]
            for figure in dict.fromkeys([*facts.validation, *facts.test])
        ],
    )
    yield from (f"<p>{text(note)}</p>" for note in facts.notes)
    if not seen.names:
        yield "<p>No image could be spared to measure on: label more to know how good the model is.</p>"
        return
    yield "<h2>What it confuses</h2>" + (per_label(facts, seen) if facts.several else confusion(facts, seen))
    yield "<h2>How far its confidence can be trusted</h2>" + reliability(seen)
    yield "<h2>Most confidently wrong</h2>" + pictures(mistakes(facts, seen), source)


def confusion(facts: ModelRecord, seen: Seen) -> str:
    """Rows are the labels, columns the answers; a cell is the share of its row."""
    count = len(facts.classes)
    matrix = np.zeros((count, count), np.int64)
    np.add.at(matrix, (seen.targets, seen.given.argmax(1)), 1)
    if count > MOST_CLASSES:
        off = matrix.copy()
        np.fill_diagonal(off, 0)
        order = np.argsort(-off, axis=None, kind="stable")[:MOST_CLASSES]
        pairs = [divmod(int(place), count) for place in order if off.flat[place]]
        rows = [[facts.classes[a], facts.classes[b], str(off[a, b])] for a, b in pairs]
        return f"<p>The commonest of all confusions.</p>{table(['label', 'answer', 'images'], rows)}"
    side, left = 26, 150
    marks = []
    for row in range(count):
        total = max(int(matrix[row].sum()), 1)
        y = 24 + row * side
        label = f"{text(facts.classes[row][:20])} {row + 1}"
        marks.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{label}</text>')
        marks.append(f'<text x="{left + row * side + 13}" y="16" text-anchor="middle">{row + 1}</text>')
        for column in range(count):
            share = matrix[row, column] / total
            kind = "cell" if row == column else "off"
            x = left + column * side
            marks.append(
                f'<rect class="{kind}" x="{x}" y="{y}" width="{side - 2}" height="{side - 2}" '
                f'fill-opacity="{max(share, 0.04):.2f}"><title>{text(facts.classes[row])} answered '
                f"{text(facts.classes[column])}: {matrix[row, column]} of {total}</title></rect>"
            )
            if matrix[row, column]:
                marks.append(f'<text x="{x + 12}" y="{y + 17}" text-anchor="middle">{matrix[row, column]}</text>')
    width, height = left + count * side, 24 + count * side
    drawn = f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="Confusion matrix">'
    told = "<p>A row for each label, a column for each answer, by its number; in each cell, how many images.</p>"
    return f'{told}<div class="wide">{drawn}{"".join(marks)}</svg></div>'


def per_label(facts: ModelRecord, seen: Seen) -> str:
    rows = []
    for number, name in enumerate(facts.classes):
        known, limit = seen.targets[:, number] != 0, facts.thresholds[number]
        present, given = seen.targets[known, number] > 0, seen.given[known, number]
        said = given >= (2.0 if limit is None else limit)
        precision = f"{present[said].mean():.1%}" if said.any() else "–"
        recall = f"{said[present].mean():.1%}" if present.any() else "–"
        area = average_precision11(given, np.where(present, 1, -1))
        average = "–" if np.isnan(area) else f"{area:.1%}"
        rows.append([name, str(int(present.sum())), precision, recall, average])
    return table(["label", "images", "precision", "recall", "average precision"], rows)


def reliability(seen: Seen) -> str:
    """Accuracy over confidence; on the diagonal the two agree."""
    bins = calibrate.reliability(*calibrate.answers(seen.given, seen.targets))
    size, pad = 300, 40
    most = max(item.answers for item in bins)

    def place(confidence: float, accuracy: float) -> tuple[float, float]:
        return pad + confidence * size, 10 + (1 - accuracy) * size

    marks = [
        f'<line class="axis" x1="{pad}" y1="{10 + size}" x2="{pad + size}" y2="{10 + size}"/>',
        f'<line class="axis" x1="{pad}" y1="10" x2="{pad}" y2="{10 + size}"/>',
        f'<line class="axis" x1="{pad}" y1="{10 + size}" x2="{pad + size}" y2="10" stroke-dasharray="4 4"/>',
        f'<text x="{pad + size / 2}" y="{size + 44}" text-anchor="middle">confidence</text>',
        f'<text x="{pad}" y="{size + 28}">0</text><text x="{pad + size}" y="{size + 28}" text-anchor="end">1</text>',
        f'<text x="{pad - 8}" y="18" text-anchor="end">1</text><text x="4" y="{size / 2}">right</text>',
    ]
    for item in bins:
        x, y = place(item.confidence, item.accuracy)
        radius = 4 + 8 * (item.answers / most) ** 0.5
        told = f"{item.answers} answers, {item.confidence:.1%} sure, {item.accuracy:.1%} right"
        marks.append(
            f'<circle class="mark" fill-opacity="0.6" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
            f"<title>{told}</title></circle>"
        )
    drawn = f'<svg viewBox="0 0 {pad + size + 10} {size + 50}" width="{pad + size + 10}" role="img" '
    rows = [[f"{b.confidence:.1%}", f"{b.accuracy:.1%}", f"{b.answers:,}"] for b in bins]
    return f'{drawn}aria-label="Reliability">{"".join(marks)}</svg>' + table(["sure", "right", "answers"], rows)


def mistakes(facts: ModelRecord, seen: Seen) -> list[Mistake]:
    """The wrong answers of which the model was surest."""
    if not facts.several:
        answer = seen.given.argmax(1)
        sure = seen.given[np.arange(len(answer)), answer]
        order = [i for i in np.argsort(-sure, kind="stable") if answer[i] != seen.targets[i]][:WRONG]
        names = facts.classes
        return [Mistake(seen.names[i], names[seen.targets[i]], names[answer[i]], float(sure[i])) for i in order]
    wrong = (seen.targets != 0) & ((seen.given >= 0.5) != (seen.targets > 0))
    sure = np.where(wrong, np.maximum(seen.given, 1 - seen.given), -1.0)
    found = []
    for place in np.argsort(-sure, axis=None, kind="stable")[:WRONG]:
        image, label = divmod(int(place), len(facts.classes))
        if sure[image, label] >= 0:
            word = facts.classes[label]
            truth, said = (word, f"not {word}") if seen.targets[image, label] > 0 else (f"not {word}", word)
            found.append(Mistake(seen.names[image], truth, said, float(sure[image, label])))
    return found


def pictures(wrong: Sequence[Mistake], source: Source | None) -> str:
    if not wrong:
        return "<p>None of the validation images was answered wrongly.</p>"
    places = found_by_name(source, [item.name for item in wrong]) if source else {}
    shown_ones = []
    for item in wrong:
        picture = _picture(source, places[item.name]) if source and item.name in places else ""
        told = f"{text(item.name)}: {text(item.answer)} ({item.confidence:.0%} sure), labelled {text(item.label)}"
        shown_ones.append(f"<figure>{picture}<figcaption>{told}</figcaption></figure>")
    hint = "" if source else "<p>--data IMAGES shows the images themselves.</p>"
    return f'{hint}<div class="pictures">{"".join(shown_ones)}</div>'


def _picture(source: Source, index: int) -> str:
    from PIL import Image

    try:
        pixels = tile(source.read(index), SIDE)
    except BadImage:
        return ""
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(content, "JPEG", quality=80)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode("ascii")}">'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{text(cell)}</th>" for cell in header)
    lines = ["".join(f"<td>{text(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="wide"><table><tr>{top}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _cell(found: dict[str, float], name: str) -> str:
    if name not in found:
        return "–"
    return f"{found[name]:.3f}" if name == "log loss" else shown(name, found[name])


def text(value: str) -> str:
    """Escaped; characters that move, hide or reverse text are spelled out."""
    visible = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(value))
    return html.escape(visible)
