"""What holds for the whole process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from byol import machine
if {kept}:
    machine.keep_memory()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    big = torch.ones(20_000_000)  # 80 MB, 19,500 pages
    del big
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told to keep memory")
def test_large_memory_is_kept() -> None:
    """Breaks if malloc gives a freed tensor back to the system: the next one then costs a fault for every page."""
    found = {
        kept: int(subprocess.check_output([sys.executable, "-c", FAULTS.format(kept=kept)], text=True))
        for kept in (False, True)
    }
    assert found[True] < 100
    assert found[False] > 1000
