"""The report: records of runs to one HTML page. The package itself is what `byol.report(RUN)` calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

IMAGES = 5000  # on the map


class _Report(ModuleType):
    """A package that can be called: its name is also the name of what it does."""

    def __call__(
        self,
        runs: str | Path | Sequence[str | Path],
        out: str | Path | None = None,
        images: int = IMAGES,
        data: str = "",
    ) -> Path:
        """Writes one HTML page about a run, or about several side by side, and returns where it is."""
        from byol.errors import UsageError
        from byol.report.build import report

        paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
        if absent := [path for path in paths if not path.is_dir()]:
            raise UsageError(f"There is no run directory {absent[0]}: byol.report takes one, or a list of them.")
        if not paths:
            raise UsageError("byol.report takes a run directory, or a list of them.")
        place = Path(out) if out else paths[0] / "report.html" if len(paths) == 1 else Path("report.html")
        return report(paths, place, images, data)


sys.modules[__name__].__class__ = _Report
