"""What `auto` reaches in a time, beside the untrained network of the same shape.

    python benchmarks/auto.py FOLDER --budget 15m --seeds 0 1 2 --name auto-flowers

FOLDER holds train/<class>/ and test/<class>/ (or val/). On a machine that others use too, --cpu-time makes `auto` plan
by the CPU time of one thread instead of the clock: `--budget 8m --cpu-time` is then eight minutes of one core. One file
results/NAME-seedS.json a seed: `knn` with 20 neighbours, `linear` by logistic regression, both on the test images, and
`knn_all` of every image among all others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from fast import scores

from byol import data
from byol.config import flatten
from byol.evals.encoder import open_encoder, random_encoder
from byol.pretraining import pretrain
from byol.run.files import write_json
from byol.run.record import encode, read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--budget", default="15m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    asked = parser.parse_args()
    overrides = dict(item.split("=", 1) for item in asked.set) | {"run.budget": asked.budget}
    if asked.cpu_time:
        time.perf_counter = time.process_time  # by which steps are timed
        overrides["run.threads"] = "1"
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as out:
            began, computed = time.monotonic(), time.process_time()
            run = pretrain(asked.folder, Path(out) / "run", "auto", overrides | {"run.seed": seed})
            minutes, cpu = (time.monotonic() - began) / 60, (time.process_time() - computed) / 60
            encoder, record = open_encoder(run.out), read_run(run.out)
            task = data.open_task(asked.folder, run.config.data)
            both = {"byol": encoder, "untrained": random_encoder(encoder, seed)}
            found = {name: scores(each, task, linear=True) for name, each in both.items()}
        keep = ("step", "knn", "rank_representation", "rank_projection", "spread", "retrieval")
        result = {
            "what": f"auto on {run.plan.images} images of {Path(asked.folder).name}: accuracy on its test images",
            **found,
            "gain": {k: round(found["byol"][k] - found["untrained"][k], 4) for k in found["byol"]},
            "budget": asked.budget + (" of CPU time on one thread" if asked.cpu_time else ""),
            "minutes": round(minutes, 2),
            "cpu_minutes": round(cpu, 2),
            "steps": run.plan.steps,
            "images_seen": run.plan.steps * run.plan.batch,
            "seed": seed,
            "verdict": run.verdict.sentence,
            "looks": [{k: round(m[k], 4) for k in keep if k in m} for m in run.metrics if "spread" in m],
            "reasons": [str(reason) for reason in record.reasons],
            "commit": record.commit,
            "machine": encode(record.machine),
            "versions": record.versions,
            "config": flatten(run.config),
        }
        write_json(Path("results") / f"{asked.name}-seed{seed}.json", result)
        print(asked.name, seed, run.plan.steps, found, result["gain"], flush=True)


if __name__ == "__main__":
    main()
