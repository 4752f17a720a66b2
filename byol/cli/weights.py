"""The verbs that read and write weights of other code bases: import, export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from byol.cli.app import USE, app
from byol.run import output
from byol.run.progress import tell


@app.command(name="import", group=USE)
def import_(
    file: Path, *, out: Annotated[Path, Parameter(alias="-o")] = Path("encoder.safetensors"), resolution: int = 0
) -> object:
    """Convert weights of another code base into an encoder file.

    Reads DeepMind's BYOL checkpoints (.pkl), files of lightly, solo-learn, mmselfsup and byol-pytorch, and plain
    ResNets of torchvision and timm (.pth, .pt, .ckpt, .safetensors). Depth and width are read from the weights. No code
    in the file is ever run. `evaluate`, `embed` and `search` also take such a file as it is.

    Parameters
    ----------
    file
        The file of weights.
    out
        The encoder file to write.
    resolution
        Side in pixels of the images that the encoder was trained on; 224, or 32 for a 3x3 stem, when left out.
    """
    output.check_file(out)
    from byol.checkpoint import encoder_header
    from byol.weights.imports import import_encoder

    found = import_encoder(file, out, resolution)
    header = encoder_header(out)
    network = header["network"]
    tell(
        f"{out}: {network['encoder']} at width {network['width']:g} from {found.origin}, {len(found.tensors)} tensors, "
        f"{header['resolution']} px, padding {network['padding']}; loaded again, features equal"
    )
    if found.left_out:
        groups = Counter(name.replace("/", ".").split(".")[0] for name in found.left_out)
        tell("Left out: " + ", ".join(f"{count} tensors of {name}" for name, count in groups.items()))
    for note in found.notes:
        tell(f"Note: {note}")
    return {"out": out, "origin": found.origin, "network": network, "left_out": found.left_out, "notes": found.notes}


@app.command(group=USE)
def export(
    run: Path,
    *,
    to: Literal["torchvision", "timm", "safetensors", "onnx", "huggingface", "torch-export"],
    out: Annotated[Path, Parameter(alias="-o")],
) -> object:
    """Write an encoder or a model for other libraries.

    The written file is loaded again, and its features or answers are compared, before the command succeeds.

    Parameters
    ----------
    run
        A run directory, an encoder.safetensors file, or a model of `byol fit`.
    to
        torchvision (.pth), timm (.safetensors), onnx (extra: onnx); of an encoder also safetensors (byol's own) and
        huggingface (a folder with weights, config and model card), of a model also torch-export (.pt2).
    out
        The file or folder to write.
    """
    (output.check_folder if to == "huggingface" else output.check_file)(out)
    if (run / "model.json").is_file():
        from byol.models.exports import export as write

        what = "answers"
    else:
        from byol.weights.exports import export as write

        what = "features"
    done = write(run, to, out)
    what += " equal" if not done.difference else f" off by {done.difference:.1e}"
    tell(f"{out}: written, loaded again, {what}. To use it:\n")
    tell("\n".join(done.lines))
    return done
