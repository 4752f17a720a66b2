"""What the benchmarks make of their records: the pages, the verdict's hits and misses, and goals beside the peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byol.run.files import write_json


def test_the_pages_say_what_results_hold() -> None:
    """Breaks if a figure in the README or in docs/ was typed, or a result was committed and not rendered."""
    from benchmarks import render as readme

    pages = readme.rendered(readme.ROOT / "results")
    assert len(pages) == 9
    for path, text in pages.items():
        assert path.read_text("utf-8") == text, f"{path.name} is not what python benchmarks/render.py writes"


def test_misses_and_false_alarms_of_the_verdict_are_counted() -> None:
    """Breaks if a cell that labels find worse and the verdict calls learning does not count, or is not rendered."""
    from benchmarks import render as readme
    from benchmarks import verdicts

    look = {"step": 0, "images": 100, "spread": 0.05}

    def cell(name: str, change: float, word: str, seed: int) -> dict[str, Any]:
        found = {"name": name, "data": "cifar10", "seed": seed, "status": "finished", "looks": [look]}
        known = {"untrained": {"knn": 0.3, "linear": 0.4}, "trained": {"knn": 0.3 + change, "linear": 0.4 + change}}
        return {**verdicts.judged(found | known), "word": word, "word_without_labels": word}

    cells = [
        cell("no predictor", -0.05, "learning", 0),
        cell("no predictor", -0.05, "stalled", 2),
        cell("byol", -0.05, "too early", 0),
        cell("byol", 0.05, "collapsing", 2),
        cell("byol", 0.05, "learning", 2),
        cell("byol", 0.01, "worse", 0),
        cell("no predictor", 0.05, "collapsing", 2),
    ]
    counts = verdicts.summary(cells)
    every = {"collapsed": 2, "collapsed_missed": 1, "worse": 3, "worse_missed": 2, "better": 3, "false_alarms": 2}
    assert counts["all"]["all"] == every | {"made_to_collapse": 1, "better_called_learning": 1, "level": 1}
    assert counts["all"]["held out"]["better"] == 3
    text = readme.verdicts({"counts": counts, "cells": cells})
    assert "| all | 2, 1 | 3, 2 | 3, 2 | 1 of 3 |" in text
    assert "False alarms: byol (seed 2, 45.0 % against 40.0 %, called collapsing with a spread of 0.05);" in text
    assert "1 of these 2 are runs made to collapse" in text
    assert "1 alarms in 2 healthy runs" in text


def test_time_to_accuracy_is_compared_seed_by_seed() -> None:
    """Breaks if a peer that never reached a level counts as reaching it, or seeds are mixed. By hand: byol has 45 %
    after 20 and 40 s, lightly after 100 s and never in 120 s: 5 and at least 3 times sooner, 4 in the middle."""
    from benchmarks import time_to_accuracy

    runs = [
        {"who": "byol", "seed": 0, "looks": [(10.0, 0.3), (20.0, 0.46), (30.0, 0.44)]},
        {"who": "byol", "seed": 1, "looks": [(20.0, 0.4), (40.0, 0.45)]},
        {"who": "lightly", "seed": 0, "looks": [(50.0, 0.3), (100.0, 0.47)]},
        {"who": "lightly", "seed": 1, "looks": [(60.0, 0.3), (120.0, 0.41)]},
    ]
    seconds, ratio = time_to_accuracy.goals(runs, [0.45, 0.5])
    assert (seconds["figure"], seconds["low"], seconds["high"]) == (30.0, 20.0, 40.0)
    assert (ratio["figure"], ratio["low"], ratio["high"], ratio["reached"]) == (4.0, 3.0, 5.0, True)
    assert "41 % at best when its time was over: at least" in ratio["what"]


def test_speed_of_a_busy_machine_is_not_rendered(tmp_path: Path) -> None:
    """Breaks if figures taken while others computed reach a page, or a missed goal is called reached."""
    from benchmarks import render_speed

    goal = {"what": "views", "figure": 3.2, "goal": 5.0, "least": True, "unit": "×", "reached": False}
    about = {"entry": "views-32", "versions": {"cores": "2", "torch": "2"}, "goals": [goal], "figures": {}}
    write_json(tmp_path / "speed-views-32.json", about | {"idle": False})
    assert "3.2" not in render_speed.section(tmp_path)
    write_json(tmp_path / "speed-views-32.json", about | {"idle": True})
    found = render_speed.section(tmp_path)
    assert "| views | 3.2 × | ≥ 5 × | no |" in found
    assert render_speed.BOUNDS["views-32"] in found
