"""Hosts that lose each other: needs root and network namespaces, and minutes for every fault."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from byol.run import files
from tests.chaos import hosts
from tests.chaos.scale import LONG
from tests.chaos.several import ROOT

pytestmark = pytest.mark.timeout(14400)


def can_make_hosts() -> bool:
    if os.getuid() or not shutil.which("ip"):
        return False
    made = subprocess.run(["ip", "netns", "add", "byol-try"], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", "byol-try"], capture_output=True)
    return made


@pytest.mark.skipif(not LONG, reason="40 faults between hosts take an hour: needs BYOL_CHAOS")
def test_faults_between_hosts(tmp_path: Path) -> None:
    """Breaks if a killed process, a dead link or a partition leaves a host hanging, ends it with another code than 75
    or later than promised, or if the same command then ends with other bits, latency and loss on the way or not."""
    if not can_make_hosts():
        pytest.skip("needs root and network namespaces")
    found = hosts.run(40, tmp_path)
    files.write_json(ROOT / "results" / "hosts.json", found)
    for row in found["rows"]:
        assert row["right"], row
        assert row["in_time"], row
        assert row["same"], row
