"""The data sets that torchvision knows by name as a `Source`, downloaded when they are not there yet."""

from __future__ import annotations

import difflib
import errno
import inspect
import socket
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol.config import Data
from byol.data.address import Address
from byol.data.decode import from_pil, printable
from byol.data.places import first_line
from byol.data.source import BadImage, Source
from byol.errors import ByolError, DiskError, UsageError, nearest

SPLIT_PARAMETERS = ("split", "image_set", "version", "classes")  # the names that torchvision's sets use for it
LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EEXIST}
UNSAFE = ("lsun", "lsunclass")  # torchvision checks the digest of whatever else it unpickles
PATIENCE = 20.0  # seconds without an answer before a download counts as failed


def open_source(address: Address, config: Data, split: str) -> Source:
    """`torchvision:NAME[:SPLIT]`, with its files in or downloaded to the root of data sets."""
    root, kind = Path(config.root), _find(address.place)
    split = address.split or (split if split != "train" else "")
    dataset = _build(kind, _arguments(kind, split, root), root)
    count = len(dataset)
    labels = _labels(dataset, count)
    title = f"torchvision:{kind.__name__}" + (f":{split}" if split else "")
    return Source(
        name=title,
        count=count,
        read=partial(_read, dataset),
        describe=f"{title} image {{}}".format,
        labels=labels,
        classes=() if labels is None else _classes(dataset, labels),
    )


def parts(address: Address) -> set[str]:
    """A split that is asked for by name is all that is used."""
    return set() if address.split else {"train", "test"}


def _find(name: str) -> Any:
    try:
        from torchvision import datasets
    except ImportError as error:
        raise UsageError(f"torchvision data sets need the package torchvision: {error}.") from None
    kinds = {n.lower(): getattr(datasets, n) for n in datasets.__all__ if inspect.isclass(getattr(datasets, n))}
    for left_out in ("visiondataset", *UNSAFE):
        kinds.pop(left_out, None)
    if name.lower() in UNSAFE:
        raise UsageError(f"torchvision's {name} is not used here: it unpickles a file that lies beside the images.")
    if name.lower() in kinds:
        return kinds[name.lower()]
    # Compared in lower case, so that the case of a misspelt name does not hide its neighbours.
    close = [kinds[match].__name__ for match in difflib.get_close_matches(name.lower(), kinds, n=3)]
    offer = f"Did you mean {' or '.join(close)}?" if close else nearest(name, (k.__name__ for k in kinds.values()))
    raise UsageError(f"torchvision has no data set '{name}'. {offer}")


def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """What the constructor accepts, with what it hands on to its base class as **kwargs."""
    own = inspect.signature(kind.__init__).parameters
    inherited = {}
    if any(p.kind is p.VAR_KEYWORD for p in own.values()):
        inherited = _parameters(kind.__mro__[1])
    named = {n: p for n, p in own.items() if n != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return {**inherited, **named}


def _arguments(kind: Any, split: str, root: Path) -> dict[str, Any]:
    name, parameters = kind.__name__, _parameters(kind)
    arguments: dict[str, Any] = {"root": str(root)} if "root" in parameters else {}
    by_name = next((p for p in SPLIT_PARAMETERS if p in parameters), None)
    if "train" in parameters and split in ("", "train", "test"):
        arguments["train"] = split != "test"
    elif by_name and split:
        arguments[by_name] = split
    elif split and "train" in parameters:
        raise UsageError(f"{name} of torchvision has no split '{split}'. {nearest(split, ('train', 'test'))}")
    elif split and split != "train":
        raise UsageError(f"{name} of torchvision has no splits; leave out ':{split}'.")
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in arguments]
    if by_name and missing == [by_name]:
        raise UsageError(f"{name} of torchvision needs a {by_name}: write torchvision:{name}:{by_name.upper()}.")
    if missing:
        raise UsageError(f"{name} of torchvision cannot be used by name alone: it needs {', '.join(missing)}.")
    return arguments


def _build(kind: Any, arguments: dict[str, Any], root: Path) -> Any:
    """The data set from what is on disk, or else from the network."""
    name, can_download = kind.__name__, "download" in _parameters(kind)
    try:
        # Explicit, because a few sets download by default.
        return kind(**arguments, **({"download": False} if can_download else {}))
    except (ValueError, ImportError) as error:
        raise _refused(name, error) from None
    except Exception as error:
        if not can_download:
            raise UsageError(
                f"{name} was not found in {printable(root)} and torchvision cannot download it ({first_line(error)})."
            ) from None
    waited = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision sets none, and a silent network would hang for minutes
    try:
        return kind(**arguments, download=True)
    except (ValueError, ImportError) as error:
        raise _refused(name, error) from None
    except Exception as error:
        raise _not_downloaded(name, root, error) from None
    finally:
        socket.setdefaulttimeout(waited)


def _refused(name: str, error: Exception) -> ByolError:
    if isinstance(error, ImportError):
        return UsageError(f"{name} of torchvision needs another package: {first_line(error)}.")
    return UsageError(f"torchvision refused {name}: {first_line(error)}.")


def _not_downloaded(name: str, root: Path, error: Exception) -> ByolError:
    if isinstance(error, OSError) and error.errno in DISK:
        return DiskError(f"{name} could not be downloaded to {printable(root)}: {first_line(error)}.")
    return UsageError(
        f"{name} was not found in {printable(root)} and could not be downloaded; is this machine offline? "
        f"({first_line(error)})"
    )


def _labels(dataset: Any, count: int) -> np.ndarray | None:
    """int64 (count,) when the set holds plain class numbers in memory; images are not decoded to find them."""
    for attribute in LABEL_ATTRIBUTES:
        labels = _class_numbers(getattr(dataset, attribute, None), count)
        if labels is not None:
            return labels
    samples = getattr(dataset, "samples", None) or getattr(dataset, "_samples", None)
    if isinstance(samples, list) and all(isinstance(s, tuple) and len(s) == 2 for s in samples):
        return _class_numbers([label for _, label in samples], count)
    return None


def _class_numbers(values: Any, count: int) -> np.ndarray | None:
    if not isinstance(values, (list, tuple, np.ndarray, torch.Tensor)) or len(values) != count:
        return None
    try:
        numbers = np.asarray(values)
    except (ValueError, TypeError):
        return None
    # Negative numbers mark unlabelled images, as in STL10.
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (count and numbers.min() < 0):
        return None
    return numbers.astype(np.int64)


def _classes(dataset: Any, labels: np.ndarray) -> tuple[str, ...]:
    names = getattr(dataset, "classes", None)
    if not isinstance(names, (list, tuple)) or (len(labels) and len(names) <= labels.max()):
        return tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
    # ImageNet has several words for a class.
    return tuple(name if isinstance(name, str) else ", ".join(map(str, name)) for name in names)


def _read(dataset: Any, index: int) -> torch.Tensor:
    if not 0 <= index < len(dataset):
        raise IndexError(f"image {index} of {len(dataset)}")
    try:
        item = dataset[index]
        return _to_tensor(item[0] if isinstance(item, (tuple, list)) else item)
    except BadImage:
        raise
    except Exception as error:
        reason = first_line(error)
    raise BadImage(reason)


def _to_tensor(image: Any) -> torch.Tensor:
    from PIL import Image

    if isinstance(image, Image.Image):
        return from_pil(image)
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        image = torch.from_numpy(image if image.ndim == 2 else image.transpose(2, 0, 1).copy())
    if not isinstance(image, torch.Tensor):
        raise BadImage(f"not an image but {type(image).__name__}")
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
        raise BadImage(f"not an image but a tensor of shape {tuple(image.shape)}")
    if image.is_floating_point() and image.max() <= 1:
        image = (image * 255).round()
    pixels: torch.Tensor = image.clamp(0, 255).to(torch.uint8)
    return pixels.expand(3, -1, -1).contiguous()
