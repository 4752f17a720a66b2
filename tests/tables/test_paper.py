"""The published figures of the tables against the paper's own LaTeX source.

The source is its authors' and not ours to copy: `fixtures/paper-figures.json` keeps the figures alone, by the label of
the table that prints them, and they are compared with the source again where it is: in ../shared/paper, or where
BYOL_PAPER_TEX says.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from byol.tables.catalog import TABLES
from byol.tables.table import Row

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "paper-figures.json"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "paper" / "byol-paper.tex"
Figures = dict[str, list[list[str]]]


class Layout(NamedTuple):
    """How a table of the paper becomes rows of ours."""

    tables: tuple[str, ...]
    count: int  # figures at the end of a line
    picks: tuple[tuple[int, ...], ...] = ()  # which of them each of our rows has; all, for one row, when left out
    skip: int = 0  # lines of numbers that are heads
    some: bool = False  # the paper prints these lines of ours in another table, too

    def rows(self, lines: list[list[str]]) -> list[list[str]]:
        return [[line[place] for place in pick] for line in lines for pick in self.picks or [tuple(range(self.count))]]


PAIRS = ((0, 2), (1, 3))  # BYOL and SimCLR: top-1 of both, then top-5 of both
LAYOUT = {
    "table:linear_classif_1": Layout(("linear-resnet50",), 2),
    "table:linear_classif_2": Layout(("linear-encoders",), 2),
    "table:few_labels": Layout(("semi-supervised",), 4),
    "tab:transfer_learning": Layout(("transfer-linear", "transfer-finetuned"), 12),
    "tab:detect_segment": Layout(("dense-voc",), 2, some=True),
    "table:depth": Layout(("dense-depth",), 5, some=True),
    "tab:ablation_bootstrap": Layout(("target-decay",), 1),
    "tab:simclr_to_pbl": Layout(("byol-to-simclr",), 1),
    "tab:recuit_enhanced": Layout(("linear-protocols",), 2),
    "tab:finetune100": Layout(("all-labels",), 4, ((0, 1), (2, 3))),
    "tab:large_resnet_perf": Layout(("larger-encoders",), 5),
    "tab:detect_segment_full": Layout(("dense-voc",), 2),
    "table:app_depth_full": Layout(("dense-depth",), 5),
    "tab:transfer_learning_from_places": Layout(("places365",), 13),
    "table:ablation-proj-depth": Layout(("depth",), 2),
    "table:ablation-proj-size": Layout(("projection-size",), 2),
    "tab:ablation-lr": Layout(("learning-rate",), 2),
    "table:ablation-weight-decay": Layout(("weight-decay",), 2),
    "tab:batchsize-all-ablations": Layout(("batch-size",), 4, PAIRS),
    "tab:im-transfo-all-ablations": Layout(("augmentations",), 4, PAIRS),
    "tab:app_neg_term_2": Layout(("temperature",), 2),
    "tab:app_neg_term_1": Layout(("byol-to-simclr-13",), 1),
    "tab:abla_norm": Layout(("normalization",), 2),
    "tab:pred_lr": Layout(("predictor-lr",), 1),
    "tab:pred_proj_lr": Layout(("predictor-projector-lr",), 5, tuple((place,) for place in range(5)), skip=1),
}
# Tables of settings and of data sets, and drawings of the method: nothing to run.
WITHOUT_RESULTS = {
    "tab:transformation_distributions",
    "tab:datasets_transfer",
    "alg:PBL",
    "fig:algo",
    "fig:BYOL_sketch",
}
# Figure → the table that draws it, and how that table names the figure.
FIGURES = {
    "fig:holygrail": ("larger-encoders", "Figures 1 and 6"),
    "fig:ablations": ("batch-size", "Figure 3"),
    "fig:batchsize": ("batch-size", "Figure 3a"),
    "fig:transfo": ("augmentations", "Figure 3b"),
    "fig:few_data": ("few-labels", "Figures 4a and 4b"),
    "fig:few_data_top1": ("few-labels", "4a"),
    "fig:few_data_top5": ("few-labels", "4b"),
    "fig:few_data_all_resnet": ("few-labels-encoders", "Figure 5"),
    "fig:byol_architectures": ("larger-encoders", "Figures 1 and 6"),
    "fig:l2_norm_normalization": ("normalization", "Figure 7"),
    "fig:l2_norm_embedding_1": ("normalization", "Figure 7"),
    "fig:l2_norm_embedding_2": ("normalization", "Figure 7"),
}
# Rows whose figure stands in a sentence: table, row → the words around it in the source.
SENTENCES = {
    ("target-decay", "random encoder"): r"only achieves $1.4\%$",
    ("optimal-predictor", "optimal linear predictor"): r"error through the network ($52.5\%$ top-1 accuracy)",
    ("simclr-baseline", "the original's loss and heads"): r"from $67.9\%$ (without the changes)",
    ("simclr-baseline", "loss times 2α, hidden and output sizes as BYOL's"): r"to $69.2\%$ (with the changes)",
    ("batch-512", "batch 4096"): r"\algo obtains $74.3\%$ top-$1$ accuracy",
    ("batch-512", "batch 512"): r"\algo achieves $73.7\%$ top-1 accuracy when trained over $1000$ epochs",
    ("initialization", "as it is"): r"$-13.1$ points from $72.5\%$",
    ("optimal-predictor", "baseline"): r"$-13.1$ points from $72.5\%$",
}
STATED = [r"did not impact the performance (higher than $72\%$", "removing the weight decay in either"]
# Figures that print no numbers: ours stand beside those of a table.
BORROWED = {
    "few-labels": "all-labels",
    "few-labels-encoders": "all-labels",
    "target-memory": "target-decay",
    "target-rate": "target-decay",
    "training-length": "byol-to-simclr",
}


def cleaned(cell: str) -> str:
    """A cell of a table as the declarations write it."""
    cell = re.sub(r"\\(cellcolor|color|vspace\*?|citep?)\s*\{[^}]*\}", "", cell)
    cell = re.sub(r"\\scriptstyle\s*\\pm\s*", "±", cell)
    return re.sub(r"\\bf\b|[{}$\s]", "", cell)


def figures(tex: str) -> Figures:
    """label → the lines of figures of its tables, in order."""
    found: Figures = {}
    for match in re.finditer(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", tex, re.DOTALL):
        label = re.search(r"\\label\{([^}]*)\}", tex[match.end() :])
        assert label
        lines = found.setdefault(label[1], [])
        layout = LAYOUT.get(label[1])
        for line in match[1].split(r"\\") if layout else []:
            cells = [cleaned(cell) for cell in line.split("&")]
            numbers = [cell for cell in cells if re.fullmatch(r"-|\d+(\.\d+)?(±\d+(\.\d+)?)?", cell)]
            if layout and len(numbers) >= layout.count:
                lines.append(numbers[-layout.count :])
    return {label: lines[LAYOUT[label].skip :] if label in LAYOUT else lines for label, lines in found.items()}


def kept() -> Figures:
    found: Figures = json.loads(FIXTURE.read_text("utf-8"))
    return found


def source() -> str:
    path = Path(os.environ.get("BYOL_PAPER_TEX", SHARED))
    if not path.is_file():
        pytest.skip("needs the LaTeX source of the paper (arxiv.org/e-print/2006.07733) in ../shared/paper")
    return path.read_text("utf-8")


def printed(names: tuple[str, ...]) -> list[list[str]]:
    """The lines of figures that our declarations have from tables, in their order."""
    rows = [(name, row) for name in names for row in TABLES[name].rows if any(row.published)]
    return [row.printed.split() for name, row in rows if (name, row.label) not in SENTENCES]


@pytest.mark.parametrize("label", LAYOUT)
def test_declared_figures_are_the_paper_s(label: str) -> None:
    """Breaks if a figure of a declaration is mistyped, or stands in another row, or a row of the paper is missing."""
    layout, declared = LAYOUT[label], printed(LAYOUT[label].tables)
    wanted = layout.rows(kept()[label])
    if layout.some:
        assert [line for line in declared if line in wanted] == wanted
    else:
        assert declared == wanted
    assert all(label in TABLES[name].source for name in layout.tables)


def test_every_declared_figure_has_a_source() -> None:
    """Breaks if a table is declared that is compared with nothing, or borrows a figure that its table has not."""
    from_tables = {name for layout in LAYOUT.values() for name in layout.tables}
    assert from_tables | {name for name, _ in SENTENCES} | set(BORROWED) == set(TABLES)
    for name, lender in BORROWED.items():
        own = {figure for row in TABLES[name].rows for figure in row.printed.split()} - {"-"}
        assert own <= {figure for row in TABLES[lender].rows for figure in row.printed.split()}
    for (name, label), words in SENTENCES.items():
        row: Row = next(row for row in TABLES[name].rows if row.label == label)
        assert f"${row.printed}" in words


def test_kept_figures_are_those_of_the_source() -> None:
    """Breaks if the fixture is not what the paper prints, or the paper has a table or a figure that nobody declared."""
    tex = source()
    found = figures(tex)
    assert {label: lines for label, lines in found.items() if label in LAYOUT} == kept()
    assert set(found) - set(LAYOUT) <= WITHOUT_RESULTS
    assert set(re.findall(r"\\label\{(fig:[^}]*)\}", tex)) - set(FIGURES) <= WITHOUT_RESULTS
    for name, words in FIGURES.values():
        assert words in TABLES[name].source
        assert TABLES[name].figure != "rows"
    spaced = " ".join(tex.split())
    for words in (*SENTENCES.values(), *STATED):
        assert " ".join(words.split()) in spaced, words
