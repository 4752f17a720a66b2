"""The verbs that bring weights in and out: import, export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from byol.cli.app import USE, app


@app.command(name="import", group=USE)
def import_(
    file: Path, *, out: Annotated[Path, Parameter(alias="-o")] = Path("encoder.safetensors"), resolution: int = 0
) -> None:
    """Turn an encoder of others into one of ours; runs nothing.

    Known are DeepMind's BYOL checkpoints (.pkl), lightly, solo-learn, mmselfsup, byol-pytorch, and plain ResNets of
    torchvision and timm (.pth, .pt, .ckpt, .safetensors). Depth and width are read from the weights.

    Parameters
    ----------
    file
        The file of weights.
    out
        The encoder file to write.
    resolution
        Side of the images it was trained on; 224, or 32 for a 3x3 stem, when left out.
    """
    from byol.checkpoint import encoder_header
    from byol.weights.imports import import_encoder

    found = import_encoder(file, out, resolution)
    header = encoder_header(out)
    network = header["network"]
    print(
        f"{out}: {network['encoder']} at width {network['width']:g} from {found.origin}, {len(found.tensors)} tensors, "
        f"{header['resolution']} px, padding {network['padding']}; loaded again with equal features"
    )
    if found.left_out:
        groups = Counter(name.replace("/", ".").split(".")[0] for name in found.left_out)
        print("Left out: " + ", ".join(f"{count} tensors of {name}" for name, count in groups.items()))
    for note in found.notes:
        print(f"Note: {note}")


@app.command(group=USE)
def export(
    run: Path,
    *,
    to: Literal["torchvision", "timm", "safetensors", "onnx", "huggingface"],
    out: Annotated[Path, Parameter(alias="-o")],
) -> None:
    """Write an encoder for torchvision, timm, ONNX or the hub.

    What was written is loaded again and compared before this succeeds.

    Parameters
    ----------
    run
        A run directory or an encoder.safetensors file.
    to
        torchvision (.pth), timm (.safetensors), safetensors (ours), onnx (extra: onnx), or huggingface (a folder with
        weights, config and model card).
    out
        The file or folder to write.
    """
    from byol.weights.exports import export as write

    done = write(run, to, out)
    what = "features equal" if not done.difference else f"features off by {done.difference:.1e} (relative)"
    print(f"{out}: written, loaded again, {what}. Use it so:\n")
    print("\n".join(done.lines))
