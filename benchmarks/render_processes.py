"""The part of docs/results.md about several processes and both views in one pass, for benchmarks/render.py."""

from __future__ import annotations

from typing import Any


def scaling(record: dict[str, Any]) -> str:
    """Ratios of one run, and the cost model beside measured steps."""
    planned, rounds = record["planned_over_measured"], max(map(len, record["rounds"].values()))
    lines = [
        f"Several processes and the features for large runs (`benchmarks/scaling.py`) on {record['cores']} CPU cores: "
        f"batch {record['batch']},",
        f"one thread a process, the best of up to {rounds} rounds in turns, with a load of "
        f"{record['load_before']:.1f} before.",
        "",
        "| variant | images/s | worst / best round | ratio |",
        "|---|---|---|---|",
    ]
    ratios = {each["of"]: f"{each['ratio']:.2f} of {each['to']}: {each['meaning']}" for each in record["ratios"]}
    for name, rate in record["best"].items():
        lines.append(f"| {name} | {rate:.0f} | {record['worst_over_best'][name]:.2f} | {ratios.get(name, '')} |")
    if planned:
        figures = ", ".join(f"{ratio:.2f} with {count}" for count, ratio in planned.items())
        lines += ["", f"`byol plan --device-type here` / measured step, by processes: {figures}."]
    if note := record.get("note"):
        lines += ["", f"{note[0].upper()}{note[1:]}."]
    return "\n".join(lines) + "\n"


def in_turns(record: dict[str, Any]) -> str:
    """Steps of one and two processes in turns: medians over neighbours."""
    lines = [
        f"One and two processes by steps in turns (`benchmarks/scaling.py --turns {record['cycles']}`): "
        f"{record['cores']} CPU cores, batch {record['batch']}, one thread a",
        f"process, a core each, synchronized statistics, a load of {record['load_before']:.1f} before. Medians of "
        "neighbours, with quartiles, flatter",
        "what waits often, as the kernel prefers such processes to others on a busy machine; the fastest steps are",
        "nearer to an idle one. Two processes apart exchange nothing: where they are not twice as fast as one, cores",
        "slow each other down, and no exchange could make two faster.",
        "",
        "| variant | fastest step | times as fast as 1 process | by the fastest steps | as torch's engine |",
        "|---|---|---|---|---|",
    ]
    alone = record["variants"]["1 process"]["fastest_seconds"]
    for name, found in record["variants"].items():
        ratios = []
        for base in ("1 process", "2 processes"):
            ratio = found["times_as_fast_as"][base]
            low, high = ratio["quartiles"]
            ratios.append(f"{ratio['median']:.2f} ({low:.2f} to {high:.2f})")
        fastest = found["fastest_seconds"]
        if not name.endswith("half the images"):
            lines.append(f"| {name} | {fastest:.3f} s | {ratios[0]} | {alone / fastest:.2f} | {ratios[1]} |")
    planned = ", ".join(f"{ratio:.2f} with {count}" for count, ratio in record["planned_over_measured"].items())
    lines += ["", f"The time of a step as planned from half the images / as measured, by processes: {planned}."]
    return "\n".join(lines) + "\n"


def together(record: dict[str, Any]) -> str:
    """Both views in one pass against one after the other, a line a case."""
    lines = [
        "Both views in one pass (`run.passes together`) against one after the other, on one core: processor seconds of",
        f"the fastest of {record['steps']} steps in turns, and what steps add to a process's memory "
        "(`benchmarks/together.py`, float32).",
        "",
        "| encoder | px | batch | seconds apart | together | speed | MB apart | together |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        network = row.get("network.encoder", "that of cifar10-cpu")
        times, memory = row["seconds"], row["megabytes"]
        lines.append(
            f"| {network} | {row.get('data.resolution', 32)} | {row['optim.batch']} | {times['apart']:.3f} | "
            f"{times['together']:.3f} | {row['speed']:.2f} | {memory['apart']:.0f} | {memory['together']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def beside(record: dict[str, Any]) -> str:
    """The views side by side against one after the other, a line a case."""
    lines = [
        "Two views side by side, a thread each (`run.passes side-by-side`), against one after the other: milliseconds",
        f"of a step of `cifar10-cpu` with 128 images on {record['cores']} idle cores, medians of {record['rounds']}",
        "rounds in turns (`benchmarks/beside.py`). How long threads that share work wait for each other differs",
        "from hour to hour on this virtual machine, which is why runs time both ways and choose.",
        "",
        "| when | px | stem | width | one thread | all threads | side by side | as fast as all threads |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for when, rows in (("one hour", record["rows"]), ("another", record["another_hour"]["rows"])):
        for row in rows:
            times = row["milliseconds"]
            stem = "3x3" if row.get("network.small_images", True) else "7x7"
            each = " | ".join(f"{times[name]:.0f}" for name in ("one thread", "all threads", "side by side"))
            faster = times["all threads"] / times["side by side"]
            shape = f"{row['data.resolution']} | {stem} | {row.get('network.width', 0.25):g}"
            lines.append(f"| {when} | {shape} | {each} | {faster:.2f} × |")
    return "\n".join(lines) + "\n"


def maps(record: dict[str, Any]) -> str:
    """Convolutions of small maps as products against torch's own, a line a shape."""
    lines = [
        "Convolutions of maps of few places as one matrix product, as encoders train with on a CPU, against",
        f"torch's own (`benchmarks/maps.py`): {record['what']}.",
        "",
        "| width | px | stem | precision | as products | torch's | as fast as torch's |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["lines"]:
        shape = f"{row['width']:g} | {row['side']} | {row['stem']} | {row['precision']}"
        times = f"{row['product']:.0f} | {row['convolution']:.0f}"
        lines.append(f"| {shape} | {times} | {row['gain']:.2f} × |")
    return "\n".join(lines) + "\n"
