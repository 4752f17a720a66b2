"""`python -m tests.fuzz [NAME …] [--seconds N] [--found FOLDER]`: parsers under coverage-guided fuzzing (extra: fuzz).

Each ends with a line of executions and seconds; what breaks a parser is left in the folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import atheris
import torch  # noqa: F401 (before: watching its import takes minutes)

# Only what is imported inside is watched; the compiled libraries below are not.
with atheris.instrument_imports(
    include=["byol", "PIL", "tifffile", "pydicom", "nibabel", "yaml", "zipfile", "pickletools", "json", "xml"]
):
    from tests.fuzz import targets


def fuzz(name: str, seconds: int, found: Path) -> None:
    """Ends the process."""
    target = targets.TARGETS[name]
    corpus = Path(tempfile.mkdtemp(prefix=f"byol-corpus-{name}-"))
    for number, seed in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(seed)
    output = os.open(found / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    options = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=2500", "-print_final_stats=1"]
    options += ["-reload=0", f"-artifact_prefix={found}/{name}-", "-max_len=20000"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: targets.refuses(target, data))
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--found", type=Path, default=Path("found"))
    asked = parser.parse_args()
    found = asked.found.absolute()
    found.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in asked.names or targets.TARGETS:
        child = os.fork()  # libFuzzer ends its process, and imports take long
        if not child:
            fuzz(name, asked.seconds, found)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = [line for line in (found / f"{name}.log").read_text(errors="replace").splitlines() if "executed" in line]
        print(f"{name}: {'ok' if code == 0 else 'BROKEN'}, {done[-1] if done else 'no count'}", flush=True)
        failed += [name] * (code != 0)
    targets.clear()
    sys.exit(bool(failed))


main()
