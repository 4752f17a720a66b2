"""The verbs for other machines than a desk's: plan, check-gpu, launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from byol.cli.app import LOOK, TRAIN, ConfigFlags, app, given_values
from byol.errors import UsageError, nearest
from byol.run.progress import tell


@app.command(group=LOOK)
def plan(
    preset: str,
    *,
    devices: int = 1,
    device_type: str = "here",
    images: int = 0,
    side: int = 0,
    data: str = "",
    encoders: Annotated[bool, Parameter(negative=())] = False,
    scale: Literal["paper", "night", "cpu"] = "paper",
    seeds: int = 0,
    jobs: str = "",
    out: Annotated[Path, Parameter(alias="-o")] = Path("tables"),
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> object:
    """Show what a run or table would cost: operations, memory, time.

    Parameters
    ----------
    preset
        Any preset; config flags change it. auto needs --data, or --images and --side. Or a table of byol table --list,
        whose missing cells are summed up.
    devices
        How many devices share the batch.
    device_type
        rtx-3060, rtx-3090, rtx-4060-ti, rtx-4090, t4, v100, a100, h100, tpu-v3-core, or here: this machine, timed for
        a few seconds.
    images
        Images of the data set; ImageNet's when left out.
    side
        For auto: how many pixels the short side of the images typically has.
    data
        The images themselves, as for pretrain, to be counted and measured.
    encoders
        A row for every encoder of the paper instead.
    scale
        Of a table.
    seeds
        Of a table: the paper's number when left out.
    jobs
        Of a table, as for byol table: slurm:PARTITION:GPUS:NODES is as many devices.
    out
        Of a table: where cells that are done already would be.
    """
    values = given_values(given) if given else {}
    if devices < 1 or min(images, side) < 0:
        raise UsageError("--devices must be at least 1, and --images and --side not less than 0.")
    from byol.tables import catalog

    if preset in catalog.TABLES:
        from byol.tables.run import preview

        asked = catalog.Request(preset, scale, seeds, data, out, (), values, planned=True)
        return preview(catalog.plan(asked), jobs, (device_type, devices))
    return _plan_run(preset, values, (device_type, devices), (data, images, side), encoders)


def _plan_run(
    preset: str, values: dict[str, Any], device: tuple[str, int], seen: tuple[str, int, int], encoders: bool
) -> object:
    from byol.config import flatten
    from byol.presets import KINDS, PRESETS, chooses, compose
    from byol.tables.catalog import TABLES

    if not chooses(preset) and preset not in PRESETS:
        known = nearest(preset, ["auto", *KINDS, *PRESETS, *TABLES])
        raise UsageError(f"There is no preset or table '{preset}'. {known}")
    compose(preset, values, {})
    device_type, devices = device
    if chooses(preset) and not (seen[0] or (seen[1] and seen[2])):
        raise UsageError(
            "auto looks at images: add --data ./images, or --images 5000 --side 300 for as many of that size."
        )
    from byol.run import devices as reckoned

    chosen = reckoned.composed(preset, values, reckoned.Seen(*seen), device_type, devices)
    config, images = chosen.config, chosen.images
    if encoders:
        head = ["encoder", "M parameters", "GFLOPs/view", "GFLOPs/image", "GB weights", "GB activations", "time"]
        rows = reckoned.encoder_rows(config, device_type, devices, images)
        tell("\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)))
        return {"columns": head, "rows": rows}
    found = reckoned.reckoned(config, device_type, devices, images)
    lines = reckoned.device_lines(config, found, device_type, devices)
    tell("\n".join([f"{preset} on {devices} x {device_type}", *(f"  auto: {r}" for r in chosen.reasons), *lines]))
    return {**found._asdict(), "devices": devices, "images": images, "config": flatten(config)}


@app.command(name="check-gpu", group=LOOK)
def check_gpu(
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("gpu-report.json"),
    encoder: str = "resnet50",
    resolution: int = 224,
    batch: int = 64,
    steps: int = 20,
    compile: bool = True,
) -> None:
    """Check this machine's GPU once, and write a report to send back.

    Steps on CPU and GPU are compared; waits, speed with and without compiling, and memory are measured.

    Parameters
    ----------
    out
        The report, a JSON file.
    encoder
        Of the steps that are timed.
    resolution
        Their images' side in pixels.
    batch
        Their images.
    steps
        How many are timed.
    compile
        Also time compiled steps, which takes minutes.
    """
    if steps < 1:
        raise UsageError("--steps must be at least 1.")
    from byol.config import Config, apply

    settings: dict[str, str | int | float] = {
        "network.encoder": encoder,
        "data.resolution": resolution,
        "optim.batch": batch,
    }
    apply(Config(), settings, "flags")
    from byol.explore import gpu

    gpu.check(out, settings, steps, compile)


@app.command(group=TRAIN)
def launch(
    data: str,
    *,
    preset: str,
    out: Annotated[Path, Parameter(alias="-o")],
    nodes: int = 1,
    gpus: int = 8,
    processes: int = 0,
    partition: str = "",
    hours: float = 24.0,
    cpus: int = 8,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    given: Annotated[ConfigFlags | None, Parameter(name="*")] = None,
) -> None:
    """Pretrain on several machines of a Slurm cluster.

    Preempted or out of time, the job is queued again and goes on.

    Parameters
    ----------
    data
        As for pretrain, seen by all machines.
    preset
        As for pretrain.
    out
        The run directory, seen by all machines; scripts and logs go to OUT-jobs.
    nodes
        Machines.
    gpus
        GPUs of each machine.
    processes
        Processes of each machine; one a GPU when left out, or one on its CPU.
    partition
        Slurm's partition; its default when left out.
    hours
        The longest a job may take before it is queued again.
    cpus
        Cores of each process.
    dry_run
        Show the script and submit nothing.
    """
    overrides = given_values(given) if given else {}
    from byol.presets import compose

    compose(preset, overrides, {})
    if nodes < 1 or min(gpus, processes) < 0 or cpus < 1 or hours <= 0:
        raise UsageError("--nodes and --cpus must be at least 1, --gpus at least 0 and --hours more than 0.")
    if gpus and processes not in (0, gpus):
        raise UsageError(f"--processes {processes} with --gpus {gpus}: every process has a GPU of its own.")
    from byol import plugins
    from byol.parallel.launching import Request, Tasks
    from byol.parallel.launching import launch as submit

    tasks = Tasks(nodes, gpus, processes or max(1, gpus), partition, hours, cpus)
    submit(Request(data, preset, out, overrides, tasks, plugins.path()), dry_run)
