"""What the run computes on: device, number type, memory layout, threads; and what that costs, measured."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import platform
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol import views
from byol.config import Config
from byol.crops import sent
from byol.errors import OutputBusy, UsageError
from byol.run.progress import say

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 32 * 2**20  # where glibc's own threshold ends up
MOST_AT_ONCE = 256
# Where Linux says how much memory the processes of a container may have, in its second and its first version.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_training = threading.Lock()  # held by the thread that trains
PASSES = IN_TURN, TOGETHER, SIDE_BY_SIDE = "in-turn", "together", "side-by-side"
DTYPES = {"bf16": torch.float32, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Machine:
    """Chosen once and stored, so that a resumed run computes exactly as it began."""

    device_name: str
    precision: str
    threads: int
    passes: str = IN_TURN  # how the two views pass the networks

    @property
    def at_a_time(self) -> int:
        """Threads that share an operation. Side by side, those of the process itself too: they would go on waiting for
        its next operation on the cores that the views need."""
        return max(1, self.threads // 2) if self.passes == SIDE_BY_SIDE else self.threads

    @property
    def device(self) -> torch.device:
        return torch.device(self.device_name)

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 for convolutions and matrix products; weights, statistics and losses stay float32."""
        on, alone = self.precision == "bf16", self.passes != SIDE_BY_SIDE
        return torch.autocast(self.device.type, torch.bfloat16, on, cache_enabled=alone)  # threads share the cache

    def placement(self, config: Config) -> dict[str, Any]:
        """Arguments of `Module.to`."""
        layout = torch.channels_last if config.run.channels_last else torch.contiguous_format
        return {"device": self.device, "dtype": DTYPES[self.precision], "memory_format": layout}

    def images(self, images: Tensor, config: Config) -> Tensor:
        return images.to(**self.placement(config))

    def at_once(self, images: Tensor) -> int:
        """How many of these (N, C, H, W) pass a network that is not trained: on a CPU fewer of the larger ones, whose
        activations would fill more memory than a step of training."""
        few = 2**20 // (images.shape[2] * images.shape[3]) if self.device.type == "cpu" else MOST_AT_ONCE
        return max(1, min(MOST_AT_ONCE, few))


@torch.inference_mode()
def represent(network: Callable[[Tensor], Tensor], pixels: Tensor, config: Config, place: Machine) -> Tensor:
    """What a network gives for images (N, C, S, S), uint8 or in [0, 1]: float32 on the CPU."""
    results = []
    for chunk in pixels.split(place.at_once(pixels)):
        unit = sent(chunk, place.device).float()
        unit = unit / 255 if chunk.dtype == torch.uint8 else unit
        scaled = views.normalize(unit, config.views.mean, config.views.std)
        with place.autocast():
            results.append(network(place.images(scaled, config)).float())
    return torch.cat(results).cpu() if results else torch.empty(0, 0)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Torch's number type, threads, flags and random numbers are one for the whole process: inside they are the run's,
    no other thread may train, and afterwards they are as they were."""
    if not _training.acquire(blocking=False):
        raise OutputBusy("Another thread of this process is training, and torch's settings are shared: use a process.")
    dtype, threads, fast = torch.get_default_dtype(), torch.get_num_threads(), torch.backends.cudnn.benchmark
    exact, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    python, numbers = random.getstate(), np.random.get_state()
    try:
        used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(used), torch.inference_mode(False), torch.enable_grad():
            torch.set_default_dtype(torch.float32)
            yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = fast
        torch.use_deterministic_algorithms(exact, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        random.setstate(python)
        np.random.set_state(numbers)
        _training.release()


def choose(config: Config) -> Machine:
    """Resolves every `auto`; a device that is not there is the user's mistake."""
    device = _device(config.run.device)
    precision = config.run.precision
    if precision == "auto":
        precision = "bf16" if fast_bf16(device) else "float32"
    elif precision == "bf16" and device == "cpu" and not bf16_survives():
        raise UsageError("run.precision bf16 would end this process: the CPU claims AMX but refuses it. Use float32.")
    if precision == "float64" and device == "mps":
        raise UsageError("run.precision float64 does not exist on mps. Use float32.")
    passes = IN_TURN if config.run.passes == "auto" else config.run.passes
    if passes == SIDE_BY_SIDE and device != "cpu":
        raise UsageError(f"run.passes {passes} is for threads of a CPU, and run.device is {device}. Use auto.")
    return Machine(device, precision, config.run.threads or torch.get_num_threads(), passes)


def _device(asked: str) -> str:
    """The one that is asked for, or the best that torch sees."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name, found in there.items() if found)
    if not there[asked]:
        raise UsageError(f"run.device is {asked}, but torch sees none here. Use --run.device cpu or auto.")
    return asked


def fast_bf16(device: str) -> bool:
    """Whether the hardware has instructions for it, not whether it can be emulated."""
    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device == "mps":
        return False
    flags = _cpu_flags()
    return ("avx512_bf16" in flags or "amx_bf16" in flags) and bf16_survives()


def _cpu_flags() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


@functools.cache
def bf16_survives() -> bool:
    """Whether a bf16 convolution can be trained on this CPU.

    Some virtual machines name AMX among the processor's features and end the process that uses it (SIGILL). There
    torch's convolutions are told to do without AMX, which they hear only before the first convolution of a process.
    """
    if "amx_bf16" not in _cpu_flags() or _survives_bf16_step():
        return True
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    return _survives_bf16_step()


def _survives_bf16_step() -> bool:
    """Tried in a child process, which may die of it."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # the parent's threads do not exist in a child
            image = torch.ones(2, 16, 8, 8, dtype=torch.bfloat16, requires_grad=True)
            weight = torch.ones(16, 16, 3, 3, dtype=torch.bfloat16)
            torch.nn.functional.conv2d(image, weight, stride=2, padding=1).sum().backward()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def use(place: Machine, deterministic: bool = False) -> None:
    """What holds for the whole process: threads, algorithms, and on a CPU memory that is kept.

    Sums are split by threads, so their last bits depend on the number.
    """
    wanted = place.at_a_time
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    if torch.get_num_threads() != wanted:
        found = torch.get_num_threads()
        say(f"Only {found} of {wanted} threads can be had here: the last bits of results will differ.")
    _use_deterministic(deterministic)
    if place.precision == "bf16" and place.device.type == "cpu" and not bf16_survives():
        raise UsageError("This run began at bf16, which would end this process: the CPU claims AMX but refuses it.")
    if place.device.type == "cpu":
        keep_memory()


def keep_memory() -> None:
    """Makes glibc keep what is freed below KEPT bytes: else it gives the end of its heap back and gets it anew.

    That is 85,000 page faults, a fifth of the time, in a step of `cifar10-cpu` with 256 images. Larger tensors are left
    to the system: in the heap an aligned one does not fit where the last one was, and memory would grow.
    """
    with contextlib.suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, -1)


def give_back() -> None:
    """What `keep_memory` has kept and nothing uses: among thousands of passes the gaps between tensors add up."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _use_deterministic(yes: bool) -> None:
    """Which algorithms are taken on a GPU; cuBLAS wants to hear of it before it is first used."""
    if yes:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    # Nothing of ours reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(yes)


def memory(machine: Machine) -> float:
    """GB that training can use: the GPU's, or this machine's as far as a container may fill it."""
    if machine.device.type == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory) / 1e9
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, *(_limit(file) for file in MEMORY_LIMITS)) / 1e9


def free_memory(machine: Machine) -> float:
    """GB that no program uses now; infinite where the system does not say."""
    if machine.device.type == "cuda":
        return float(torch.cuda.mem_get_info()[0]) / 1e9
    try:
        with open("/proc/meminfo", encoding="utf-8") as opened:
            found = re.search(r"MemAvailable: *(\d+) kB", opened.read())
    except OSError:
        found = None
    return int(found[1]) * 1024 / 1e9 if found else math.inf


def _limit(file: str) -> float:
    """The number in a file of the system; infinite where there is no such file, or where it says max."""
    try:
        with open(file, encoding="utf-8") as opened:
            return float(opened.read())
    except (OSError, ValueError):
        return math.inf


def versions() -> dict[str, str]:
    """What a result depends on besides the config."""
    packages = ("byol", "torch", "torchvision", "numpy", "pillow")
    return {name: version(name) for name in packages} | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
