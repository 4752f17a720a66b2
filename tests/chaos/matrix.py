"""The matrix of verbs and faults: which cases there are, and how they end as the table of docs/guarantees.md.

`BYOL_CHAOS=60 python -m tests.chaos.matrix` tries every case, writes results/guarantees-matrix.json and renders the
table between the markers of the page; `--render` renders alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.cases import FAMILIES, cases, tried
from tests.chaos.ground import build, prepare
from tests.chaos.scale import KILLS, LONG
from tests.zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "results" / "guarantees-matrix.json"
PAGE = ROOT / "docs" / "guarantees.md"
MARKERS = ("<!-- matrix -->", "<!-- /matrix -->")

Codes = dict[str, dict[str, list[int]]]  # fault → verb → exit codes


def rendered(codes: Mapping[str, Mapping[str, list[int]]]) -> str:
    """The matrix as a Markdown table: a row a fault, a column a verb; `·` where a verb does not meet a fault."""
    verbs = list(dict.fromkeys(verb for row in codes.values() for verb in row))
    lines = ["| fault | " + " | ".join(verbs) + " |", "|---" * (len(verbs) + 1) + "|"]
    for fault, row in codes.items():
        cells = ["/".join(map(str, row[verb])) if verb in row else "·" for verb in verbs]
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_matrix(page: str, codes: Mapping[str, Mapping[str, list[int]]]) -> str:
    begin, end = map(re.escape, MARKERS)
    table = f"{MARKERS[0]}\n{rendered(codes)}\n{MARKERS[1]}"
    return re.sub(f"{begin}.*{end}", lambda _: table, page, flags=re.DOTALL)


# The families of cases behind the figures of these guarantees
PROOFS = {
    "G26": ("outputs",),
    "G27": ("links",),
    "G28": ("overwriting",),
    "G33": ("files of runs", "files from outside"),
    "G34": ("headers",),
    "G37": ("streams",),
    "G38": ("run.json", "result.json"),
}


def with_figures(page: str, figures: Mapping[str, Mapping[str, str]]) -> str:
    """The page with what was reached in the rows of these guarantees."""
    lines = page.splitlines(keepends=True)
    for place, line in enumerate(lines):
        cells = line.split(" | ")
        number = cells[0].removeprefix("| ")
        if number in PROOFS and number in figures and len(cells) == 5:
            lines[place] = " | ".join([*cells[:3], figures[number]["reached"], cells[4]])
    return "".join(lines)


def _try_all(place: Path) -> Iterator[dict[str, Any]]:
    """Tries family after family, and gives after each how all cases so far ended and which not as promised."""
    os.environ["XDG_CACHE_HOME"] = str(place / "xdg")
    zygote = Zygote(place)
    (place / "base").mkdir()
    build(place / "base", zygote)
    codes: Codes = {}
    failures: list[str] = []
    counts: dict[str, int] = {}
    for family in FAMILIES:
        for case in cases(family):
            ground = prepare(place / "base", place / "case")
            end = tried(case, zygote, ground)
            shutil.rmtree(ground.place)
            known = codes.setdefault(case.fault, {}).setdefault(case.verb, [])
            known[:] = sorted({*known, end.code})
            if end.wrong:
                failures.append(case.name)
                print(f"{case.name}: {end.wrong}", file=sys.stderr)
        counts[family] = len(cases(family))
        yield {"cases": counts, "failures": failures, "codes": codes}
    zygote.close()


def _main() -> None:
    from byol.run.machine import versions
    from byol.run.record import commit

    if "--render" not in sys.argv:
        how = f"{f'BYOL_CHAOS={KILLS} ' * LONG}python -m tests.chaos.matrix"
        about = {"what": "how every verb ends with every fault; see docs/guarantees.md", "command": how}
        about |= {"commit": commit(), "versions": versions()}
        with tempfile.TemporaryDirectory() as place:
            for tried_so_far in _try_all(Path(place)):
                counts = tried_so_far["cases"]
                figures = {
                    number: {"reached": f"{sum(counts.get(family, 0) for family in families):,} cases"}
                    for number, families in PROOFS.items()
                }
                stored = about | {"figures": figures} | tried_so_far
                RECORD.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    stored = json.loads(RECORD.read_text())
    page = with_matrix(PAGE.read_text(encoding="utf-8"), stored["codes"])
    PAGE.write_text(with_figures(page, stored["figures"]), encoding="utf-8")


if __name__ == "__main__":
    _main()
