"""A pretended GPU: CPU tensors that behave as CUDA's do where it matters here, so that what was never run on a GPU is
run all the same.

`pretended()` makes torch say that there is a CUDA device. What goes to it stays a CPU tensor whose memory is noted as
the device's. Every operation of torch is then looked at: one that takes tensors of both places is `Mixed`, as CUDA
refuses it (a single number from the CPU may be used, as with CUDA), and one that makes the host wait for the device is
written down, with the line that asked. A copy waits unless it is asked not to and its memory on the host is pinned.
Memory that a stream of its own fills may not be used before that stream is waited for: that is `Race`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
BASE = torch._C.TensorBase
TENSOR, AS_TENSOR, DEEPCOPY, ARRAY = torch.tensor, torch.as_tensor, Tensor.__deepcopy__, Tensor.__array__
PACKAGE = Path(__file__).resolve().parents[1] / "byol"
# Operations that look at values on the device to know what to return.
LOOKS = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique", "_unique2",
    "unique_consecutive", "bincount", "_linalg_check_errors", "allclose", "repeat_interleave.Tensor", "histc",
}  # fmt: skip
QUEUE = 50  # operations after which the device is taken to have come this far


class Mixed(RuntimeError):
    """An operation on tensors of the CPU and of the device."""


class Race(RuntimeError):
    """Memory that another stream may not have filled yet."""


class Gpu:
    """Which memory is the device's, what was issued to it, and what waited for it."""

    def __init__(self) -> None:
        self.storages: dict[int, StorageWeakRef] = {}
        self.pinned: dict[int, StorageWeakRef] = {}
        self.filling: dict[int, object] = {}  # memory that a stream fills, and the stream
        self.stream: object = "main"
        self.issued = 0  # operations so far
        self.waits: list[tuple[str, str]] = []  # (what, where in our code)
        self.copies = Counter[str]()  # that nobody waited for, by direction

    def holds(self, tensor: Tensor) -> bool:
        return _held(self.storages, tensor)

    def take(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = StorageWeakRef(storage)
        if self.stream != "main":
            self.filling[storage._cdata] = self.stream
        return tensor

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.pinned[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def wait(self, what: str) -> None:
        self.waits.append((what, _line()))

    def copied(self, host: Tensor, direction: str, non_blocking: bool) -> None:
        if non_blocking and _held(self.pinned, host):
            self.copies[direction] += 1
        else:
            self.wait(f"{direction}{' of memory that is not pinned' * non_blocking}")


def _held(places: dict[int, StorageWeakRef], tensor: Tensor) -> bool:
    """By the memory itself, so that views, saved tensors and what torch makes anew count too."""
    number = tensor.untyped_storage()._cdata
    if number in places and places[number].expired():
        del places[number]
    return number in places


def _line() -> str:
    """The innermost line of ours that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            return f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside"


class Operations(TorchDispatchMode):
    """Every operation, below autograd: forward, backward and optimizers alike."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        full = f"{name}.{func._overloadname}"
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        here = [gpu.holds(tensor) for tensor in tensors]
        asked = kwargs.get("device")
        pins = bool(kwargs.pop("pin_memory", False))
        if asked is not None:
            kwargs["device"] = CPU
        gpu.issued += 1
        for tensor in tensors:
            stream = gpu.filling.get(tensor.untyped_storage()._cdata, gpu.stream)
            if stream is not gpu.stream and gpu.holds(tensor):
                raise Race(f"{name} uses what another stream fills")
        if name == "copy_" and here[0] != here[1]:
            gpu.copied(
                tensors[1 if here[0] else 0], "to the device" if here[0] else "to the host", _nonblocking(args, kwargs)
            )
            return func(*args, **kwargs)
        mixes = any(here) and any(not h and t.ndim > 0 for t, h in zip(tensors, here, strict=True))
        if mixes and not self._allowed(name, args):
            shapes = [(tuple(t.shape), "device" if h else "host") for t, h in zip(tensors, here, strict=True)]
            raise Mixed(f"{full} of tensors of both places, at {_line()}: {shapes}")
        if any(here) and (name in LOOKS or full in LOOKS or self._masked(name, args)):
            gpu.wait(name)
        result = func(*args, **kwargs)
        # What torch itself asks of the CPU here, in a backward pass for instance, is the place of what it is given.
        on_device = any(here) or (asked is not None and torch.device(asked).type == "cuda")
        for made in tree_flatten(result)[0]:
            if isinstance(made, Tensor) and not any(made is tensor for tensor in tensors):
                if pins:
                    gpu.pin(made)
                elif on_device:
                    gpu.take(made)
        return result

    def _masked(self, name: str, args: Any) -> bool:
        """Whether tensors are picked by a mask, which has to be counted first."""
        if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
            return False
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])

    def _allowed(self, name: str, args: Any) -> bool:
        """CUDA takes indices of the host too, by a copy of its own, which is waited for."""
        if name in ("index", "index_put", "index_put_", "_index_put_impl_") and self.gpu.holds(args[0]):
            self.gpu.wait("indices of the host")
            return True
        return False


def _nonblocking(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))


class Calls:
    """What Python asks of tensors, where torch would look at the real device; put in place of torch's own methods."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def device(self, tensor: Tensor) -> torch.device:
        real: torch.device = BASE.device.__get__(tensor)
        return CUDA if real == CPU and self.gpu.holds(tensor) else real

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copy = bool(kwargs.pop("copy", False))
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        how: dict[str, Any] = {"dtype": dtype or tensor.dtype, **({"memory_format": layout} if layout else {})}
        if device is None or device.type == tensor.device.type or "meta" in (device.type, tensor.device.type):
            how |= {} if device is None or device.type == "cuda" else {"device": device}
            same: Tensor = BASE.to(tensor, **how, copy=copy)
            return same
        moved: Tensor = BASE.to(tensor, **how, copy=True)
        arrives = device.type == "cuda"
        if arrives:
            self.gpu.take(moved)
        else:
            self.gpu.storages.pop(moved.untyped_storage()._cdata, None)
            if non_blocking:
                self.gpu.pin(moved)  # as torch allocates it
        self.gpu.copied(tensor if arrives else moved, "to the device" if arrives else "to the host", non_blocking)
        return moved

    def new_tensor(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", tensor.device)
        made: Tensor = BASE.new_tensor(tensor, *args, **kwargs)
        return made.to(device)

    def tensor(self, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        made: Tensor = TENSOR(*args, **kwargs)
        return made if device is None else made.to(device)

    def as_tensor(self, data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        if isinstance(data, Tensor):
            return data.to(device or data.device, dtype or data.dtype)
        made: Tensor = AS_TENSOR(data, dtype=dtype)
        return made if device is None else made.to(device)

    def deepcopy(self, tensor: Tensor, memo: Any) -> Tensor:
        copied: Tensor = DEEPCOPY(tensor, memo)
        return self.gpu.take(copied) if self.gpu.holds(tensor) else copied

    def tolist(self, tensor: Tensor) -> Any:
        if self.gpu.holds(tensor):
            self.gpu.wait("tolist")
        return BASE.tolist(tensor)

    def numpy(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.gpu.holds(tensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        return BASE.numpy(tensor, *args, **kwargs)

    def array(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.gpu.holds(tensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        return ARRAY(tensor, *args, **kwargs)

    def methods(self) -> dict[str, Any]:
        calls: dict[str, Any] = {
            name: functools.partialmethod(_second, getattr(self, name))
            for name in ("to", "new_tensor", "tolist", "numpy")
        }
        return calls | {
            "device": property(self.device),
            "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
            "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
            "cpu": lambda tensor: tensor.to("cpu"),
            "cuda": lambda tensor, *_: tensor.to("cuda"),
            "pin_memory": lambda tensor, *_: self.gpu.pin(tensor.clone()),
            "record_stream": lambda *_: None,
            "__deepcopy__": lambda tensor, memo: self.deepcopy(tensor, memo),
            "__array__": lambda tensor, *a, **k: self.array(tensor, *a, **k),
        }


def _second(tensor: Tensor, call: Any, *args: Any, **kwargs: Any) -> Any:
    return call(tensor, *args, **kwargs)


def grouped(gpu: Gpu, group: Any) -> Any:
    """torch's sorting of tensors by device, which reads the real one."""

    def by_place(lists: Any, *args: Any, **kwargs: Any) -> Any:
        found = group(lists, *args, **kwargs)
        return {(next(t.device for t in parts[0][0] if t is not None), kind[1]): parts for kind, parts in found.items()}

    return by_place


class Event:
    """Reached when the device has come to where it was recorded; asking for it before that waits."""

    def __init__(self, gpu: Gpu, *_: Any, **__: Any) -> None:
        self.gpu, self.at = gpu, -1

    def record(self, *_: Any) -> None:
        self.at = self.gpu.issued

    def query(self) -> bool:
        return self.gpu.issued > self.at + QUEUE

    def synchronize(self) -> None:
        if not self.query():
            self.gpu.wait("event")
            self.gpu.issued += QUEUE + 1

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


class Stream:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, other: object) -> None:
        self.gpu.filling = {place: by for place, by in self.gpu.filling.items() if by is not other}


@contextlib.contextmanager
def _inside(gpu: Gpu, stream: object) -> Iterator[None]:
    before, gpu.stream = gpu.stream, stream
    try:
        yield
    finally:
        gpu.stream = before


class _Properties:
    total_memory, name, major, minor, multi_processor_count = 16 * 10**9, "pretended", 8, 0, 1


@contextlib.contextmanager
def pretended() -> Iterator[Gpu]:
    """A CUDA device for whatever runs inside."""
    gpu, autocast, fork = Gpu(), torch.autocast, torch.random.fork_rng

    def on_cpu(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def without_devices(*_: Any, **__: Any) -> Any:
        return fork([])

    changes: dict[str, Any] = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "is_bf16_supported": lambda *_: True,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_properties": lambda *_: _Properties,
        "get_device_name": lambda *_: "pretended",
        "mem_get_info": lambda *_: (15 * 10**9, 16 * 10**9),
        "max_memory_allocated": lambda *_: 10**9,
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda *_: None,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
        "synchronize": lambda *_: gpu.wait("synchronize"),
        "Event": lambda *a, **k: Event(gpu, *a, **k),
        "Stream": lambda *_: Stream(gpu),
        "stream": lambda stream: _inside(gpu, stream),
        "current_stream": lambda *_: Stream(gpu),
    }
    with contextlib.ExitStack() as stack:
        for name, value in changes.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        calls = Calls(gpu)
        for name, value in calls.methods().items():
            stack.enter_context(mock.patch.object(Tensor, name, value))
        for name in ("tensor", "as_tensor"):
            stack.enter_context(mock.patch.object(torch, name, getattr(calls, name)))
        optimizers = importlib.import_module("torch.optim.optimizer")
        groups = optimizers._group_tensors_by_device_and_dtype
        clipping = importlib.import_module("torch.nn.utils.clip_grad")
        for module in (optimizers, clipping):
            stack.enter_context(mock.patch.object(module, "_group_tensors_by_device_and_dtype", grouped(gpu, groups)))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_device_index", return_value=0))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", return_value=Stream(gpu)))
        stack.enter_context(mock.patch.object(torch, "autocast", on_cpu))
        stack.enter_context(mock.patch.object(torch.random, "fork_rng", without_devices))
        stack.enter_context(Operations(gpu))
        yield gpu
