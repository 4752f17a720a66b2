"""What Python serializes, as plain data; nothing in a file is ever run.

Such a file is a program for a small stack machine. The machine here knows containers, numbers, text and arrays. A class
or function that a file names is never imported: it is one of CALLS below, which stand for it with a few lines of our
own, or of a trainer's records, which become `Opaque`, or the whole file is refused.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from byol.errors import BadData


class Refused(BadData):
    """A file that would have run something, or is none of ours."""


class Name(NamedTuple):
    """A class or function that the file names; only a name."""

    module: str
    name: str


@dataclass
class Opaque:
    """An object of a trainer that is of no use here: its name, without its content."""

    name: Name


@dataclass
class Kind:
    """A number type of numpy, not yet told its byte order."""

    code: str
    order: str = "="


@dataclass
class Array:
    """An array of numpy on its way: `value` is there once its state has come."""

    value: np.ndarray | None = None


@dataclass
class Record:
    """A namedtuple class of the file's own; its instances become dictionaries."""

    fields: tuple[str, ...]


@dataclass
class Tree:
    """The machine: its stack, its memory, where PyTorch's storages are, and the bytes that it may still make."""

    storage: Callable[[Any], torch.Tensor]
    room: int
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def spend(self, made: Any) -> Any:
        """What was made, which counts: a short file can name one long thing many thousand times."""
        if isinstance(made, Array):
            self.room -= made.value.nbytes if made.value is not None else 0
        elif isinstance(made, list | tuple | dict | bytes):
            self.room -= len(made) * (1 if isinstance(made, bytes) else 8)
        if self.room < 0:
            raise Refused("would unpack to far more than it holds.")
        return made

    def to_mark(self) -> list[Any]:
        place = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is MARK)
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items


MARK = object()
GROWTH, ROOM = 16, 1 << 24  # what comes out may be so many times the file and these bytes
KEYS = (str, int, float, bytes, type(None))  # of dictionaries; the hash of nested tuples can take for ever
LITERALS = {  # instructions that put their own argument on the stack
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "BINBYTES", "BINBYTES8"),
    *("SHORT_BINBYTES", "BYTEARRAY8", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": MARK, "EMPTY_TUPLE": ()}
EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
GROUPS: dict[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple,
    "LIST": list,
    "FROZENSET": list,
    "DICT": lambda items: _dictionary(zip(items[::2], items[1::2], strict=True)),
}


def number_type(kind: Any) -> torch.dtype:
    found = STORAGES.get(kind.name) if isinstance(kind, Name) and kind.module == "torch" else None
    if found is None:
        raise Refused(f"has numbers of an unknown kind ({kind}).")
    return found


def as_key(value: Any) -> Any:
    """As the key of a dictionary."""
    if not isinstance(value, KEYS) and not (isinstance(value, tuple) and all(isinstance(v, KEYS) for v in value)):
        raise ValueError("a key is neither text nor number")
    return value


def _pairs(given: Any) -> Iterable[Any]:
    """Of a dictionary or a list; anything else, such as a type of values, has none."""
    return given.items() if isinstance(given, dict) else given if isinstance(given, list) else ()


def _dictionary(pairs: Iterable[Any]) -> dict[Any, Any]:
    return {as_key(key): value for key, value in pairs}


def run(file: BinaryIO, storage: Callable[[Any], torch.Tensor], length: int | None = None) -> Any:
    """Carries out one program of the file (of `length` bytes, when it is only a part) and returns what it leaves."""
    if length is None:
        place = file.tell()
        length = file.seek(0, io.SEEK_END)
        file.seek(place)
    tree = Tree(storage, GROWTH * length + ROOM)
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        if name == "STOP":
            return _finished(tree.stack.pop())
        if name in LITERALS:
            tree.stack.append(argument)
        elif name in CONSTANTS:
            tree.stack.append(CONSTANTS[name])
        elif name in EMPTY:
            tree.stack.append(EMPTY[name]())
        elif name in GROUPS:
            tree.stack.append(GROUPS[name](tree.to_mark()))
        elif name in INSTRUCTIONS:
            INSTRUCTIONS[name](tree, argument)
        else:
            raise Refused(f"holds the instruction {name}, which no file of weights needs. Nothing of it was run.")
    raise ValueError("truncated")


def _finished(value: Any) -> Any:
    """Arrays in their place, in copies of the containers around them."""
    done: dict[int, Any] = {}

    def walk(item: Any, depth: int) -> Any:
        if isinstance(item, Array):
            return item.value
        if not isinstance(item, dict | list | tuple):
            return item
        if depth > 100:
            raise ValueError("too deeply nested")
        if id(item) not in done:
            if isinstance(item, dict):
                done[id(item)] = {key: walk(content, depth + 1) for key, content in item.items()}
            else:
                done[id(item)] = type(item)(walk(content, depth + 1) for content in item)
        return done[id(item)]

    return walk(value, 0)


def _named(tree: Tree, module: str, name: str) -> None:
    known = (
        (module, name) in CALLS or (module == "torch" and name in STORAGES) or (module == "torch" and name in DTYPES)
    )
    if not known and module.partition(".")[0] not in IGNORED and name not in MAPPINGS:
        raise Refused(f"names {module}.{name}, which no file of weights needs. It was not run and the file is refused.")
    tree.stack.append(Name(module, name))


def _global(tree: Tree, argument: str) -> None:
    module, _, name = argument.partition(" ")
    _named(tree, module, name)


def _stack_global(tree: Tree, _: Any) -> None:
    name, module = tree.stack.pop(), tree.stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise ValueError("a name is not text")
    _named(tree, module, name)


def _reduce(tree: Tree, _: Any) -> None:
    arguments, function = tree.stack.pop(), tree.stack.pop()
    tree.stack.append(tree.spend(call(function, arguments)))


def _new_with_keywords(tree: Tree, _: Any) -> None:
    tree.stack.pop()
    _reduce(tree, None)


def call(function: Any, arguments: Any) -> Any:
    """What the named function would give, by our own stand-in for it."""
    if isinstance(function, Record):
        return _dictionary(zip(function.fields, arguments, strict=True))
    if not isinstance(function, Name):
        raise Refused("calls what is no function. Nothing of it was run.")
    if function in CALLS:
        return CALLS[function](*arguments)
    if function.name in MAPPINGS:
        return _dictionary(_pairs(arguments[0] if arguments else ()))
    if function.module.partition(".")[0] in IGNORED:
        return Opaque(function)
    raise Refused(f"calls {function.module}.{function.name}, which no file of weights needs. It was not run.")


def _build(tree: Tree, _: Any) -> None:
    state = tree.stack.pop()
    set_state(tree.stack[-1], state)
    tree.spend(tree.stack[-1] if isinstance(tree.stack[-1], Array) else state)


def set_state(target: Any, state: Any) -> None:
    """What `__setstate__` would do for the few kinds that have a state worth reading."""
    if isinstance(target, Array):
        _, shape, kind, fortran, content = state
        target.value = _array(kind, shape, content, "F" if fortran else "C")
    elif isinstance(target, Kind):
        target.order = state[1] if state[1] in ("<", ">", "|", "=") else "="
    elif isinstance(target, dict) and isinstance(state, dict) and isinstance(state.get("_storage"), dict):
        target.update(_dictionary(state["_storage"].items()))  # Haiku's first mappings


def _array(kind: Any, shape: Sequence[int], content: Any, order: str = "C") -> np.ndarray:
    """Of numbers only: objects would be programs again."""
    if not isinstance(kind, Kind):
        raise ValueError("an array without a number type")
    raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
    dtype = np.dtype(kind.code).newbyteorder(kind.order)  # type: ignore[arg-type]
    shape = tuple(shape)
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError("an array has another length than it says")
    return np.frombuffer(raw, dtype).reshape(shape, order=order).astype(dtype.newbyteorder("="))  # type: ignore[call-overload,no-any-return]


def _kind(code: Any, *_: Any) -> Kind:
    if isinstance(code, str) and re.fullmatch(r"[<>|=]?[biufc]\d{1,2}", code):
        return Kind(code.lstrip("<>|="), code[0] if code[0] in "<>|=" else "=")
    raise Refused(f"has arrays of the kind {code!r}, which are no numbers.")


def _dill_array(function: Any, arguments: Any, state: Any, *_: Any) -> Any:
    made = call(function, arguments)
    set_state(made, state)
    return made


def _scalar(kind: Any, content: Any) -> Any:
    return _array(kind, (), content).item()


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError("text in an unknown encoding")
    return text.encode("latin1")


def _tensor(storage: torch.Tensor, offset: int, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    if math.prod(size) > len(storage):  # a stride of 0 would make any number of them
        raise ValueError("a tensor is larger than its storage")
    return torch.as_strided(storage, tuple(size), tuple(stride), offset)


def _reconstructed(kind: Any, base: Any, state: Any) -> Any:
    return call(kind, ())


def _append(tree: Tree, items: list[Any]) -> None:
    if isinstance(tree.stack[-1], list):
        tree.stack[-1].extend(items)
    elif not isinstance(tree.stack[-1], Opaque):
        raise ValueError("a list that is none")


def _set(tree: Tree, items: list[Any]) -> None:
    target = tree.stack[-1]
    if isinstance(target, dict):
        target.update(_dictionary(zip(items[::2], items[1::2], strict=True)))
    elif not isinstance(target, Opaque):
        raise ValueError("a dictionary that is none")


def _tuple(count: int) -> Callable[[Tree, Any], None]:
    def make(tree: Tree, _: Any) -> None:
        items = tuple(tree.stack[-count:])
        del tree.stack[-count:]
        tree.stack.append(items)

    return make


def _pair(tree: Tree) -> list[Any]:
    value = tree.stack.pop()
    return [tree.stack.pop(), value]


def _put(tree: Tree, place: Any) -> None:
    tree.memo[len(tree.memo) if place is None else int(place)] = tree.stack[-1]


def _get(tree: Tree, place: Any) -> None:
    tree.stack.append(tree.memo[int(place)])


def _nothing(tree: Tree, _: Any) -> None:
    """The protocol's number and the frames need no answer."""


INSTRUCTIONS: dict[str, Callable[[Tree, Any], Any]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "POP": lambda tree, _: tree.stack.pop(),
    "POP_MARK": lambda tree, _: tree.to_mark(),
    "DUP": lambda tree, _: tree.stack.append(tree.stack[-1]),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": lambda tree, _: _append(tree, [tree.stack.pop()]),
    "APPENDS": lambda tree, _: _append(tree, tree.to_mark()),
    "ADDITEMS": lambda tree, _: _append(tree, tree.to_mark()),
    "SETITEM": lambda tree, _: _set(tree, _pair(tree)),
    "SETITEMS": lambda tree, _: _set(tree, tree.to_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _get),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_with_keywords,
    "BUILD": _build,
    "BINPERSID": lambda tree, _: tree.stack.append(tree.storage(tree.stack.pop())),
}
NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
BUILTINS = ("builtins", "__builtin__")
CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(module, "_reconstruct"): lambda *_: Array() for module in NUMPY},
    **{(module, "scalar"): _scalar for module in NUMPY},
    **{(m, "_frombuffer"): lambda raw, kind, shape, order: Array(_array(kind, shape, raw, order)) for m in NUMPY},
    ("numpy", "dtype"): _kind,
    ("numpy", "ndarray"): lambda *_: Array(),
    ("_codecs", "encode"): _encoded,
    ("copyreg", "_reconstructor"): _reconstructed,
    ("copy_reg", "_reconstructor"): _reconstructed,
    ("dill._dill", "_create_array"): _dill_array,
    ("dill._dill", "_create_namedtuple"): lambda name, fields, module: Record(tuple(fields)),
    ("jax._src.array", "_reconstruct_array"): _dill_array,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda value, *_: value,
    ("torch", "Size"): lambda sizes: tuple(sizes),
    ("torch", "device"): lambda *names: ":".join(map(str, names)),
    **{(m, kind): lambda items=(): list(items) for m in BUILTINS for kind in ("set", "frozenset", "list", "tuple")},
    **{(m, "dict"): lambda items=(): _dictionary(_pairs(items)) for m in BUILTINS},
    **{(m, "bytes"): lambda *a: bytes(a[0]) if a and isinstance(a[0], list) else b"" for m in BUILTINS},
    **{(m, kind): lambda *_: None for m in BUILTINS for kind in ("int", "float", "str", "bool", "object")},
}
# Mappings by any module's name: Haiku has moved and renamed its own several times.
MAPPINGS = {"FlatMapping", "FlatMap", "frozendict", "FrozenDict", "OrderedDict", "defaultdict", "immutabledict"}
# Trainers that keep objects of their own beside the weights; of these only the names are read.
IGNORED = {"mmengine", "mmcv", "omegaconf", "pytorch_lightning", "lightning", "lightning_fabric", "argparse", "pathlib"}
IGNORED |= {"optax", "typing", "datetime"}
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
DTYPES = {"float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}
