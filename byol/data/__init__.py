"""From the name of a data set to its images: a folder, a torchvision set, or the embedded scenes."""

from __future__ import annotations

from pathlib import Path

from byol.config import Data
from byol.data.folder import folder, split_roots
from byol.data.named import torchvision_source
from byol.data.scenes import scenes
from byol.data.source import Source
from byol.errors import UsageError

SCENES = 5000


def open_source(spec: str, config: Data, split: str = "train") -> Source:
    """`scenes[:COUNT]`, `torchvision:NAME[:SPLIT]` or a folder; of a folder with train and test parts, one part."""
    if spec == "scenes" or spec.startswith("scenes:"):
        count = spec.removeprefix("scenes").removeprefix(":") or str(SCENES if split == "train" else SCENES // 5)
        if not count.isdecimal() or not int(count):
            raise UsageError(f"'{spec}' should be 'scenes' or 'scenes:COUNT', such as scenes:{SCENES}.")
        size = min(max(config.resolution, 32), 96)
        return scenes(int(count), size=size, split="train" if split == "train" else "test")
    if spec.startswith("torchvision:"):
        if split != "train" and spec.count(":") == 1:
            spec = f"{spec}:{split}"
        return torchvision_source(spec, Path(config.root))
    roots = split_roots(Path(spec)) if Path(spec).is_dir() else {}
    if not roots and split != "train":
        raise UsageError(f"{spec} has no {split} part: that would be a sub-folder beside one named train.")
    part = roots.get(split) or roots.get("val") or Path(spec)
    return folder(part, config.max_megapixels)
