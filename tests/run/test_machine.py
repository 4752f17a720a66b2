"""What holds for the whole process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from byol.run import machine
if {kept}:
    machine.keep_memory()
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(5_000_000) for _ in range(5)]  # 100 MB, 24,400 pages
    del held
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(faults[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose malloc is told to keep memory")
def test_large_memory_is_kept() -> None:
    """Breaks if malloc gives freed tensors back to the system: the next ones then cost a fault for every page."""
    found = {
        kept: int(subprocess.check_output([sys.executable, "-c", FAULTS.format(kept=kept)], text=True))
        for kept in (False, True)
    }
    assert found[True] < found[False] / 3
