"""From the stored numbers of a grey DICOM frame to the units of its modality, and through its window."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from byol.data.source import BadImage


class Window(NamedTuple):
    centre: float
    width: float
    function: str = "LINEAR"


def shown(pixels: np.ndarray, header: Any, frame: int, window: str) -> np.ndarray:
    """float32 (H, W). `none`: in units of the modality; else a window's 0 (black) to 1, whose centre and width are
    given or the file's own; a file without one is shown from its smallest to its largest value.

    Padding takes the smallest value of the other pixels. MONOCHROME1, which shows large values dark, is inverted.
    """
    if pixels.ndim != 2:
        raise BadImage("a grey DICOM file of several channels", "damaged DICOM")
    values, padding = _units(pixels, header, frame), _padding(pixels, header)
    if padding.any() and not padding.all():
        values = np.where(padding, values[~padding].min(), values)
    inverted = str(header.PhotometricInterpretation) == "MONOCHROME1"
    if window == "none":
        return (_mirrored(values, header, frame) if inverted else values).astype(np.float32)
    values = _seen(values, header, frame, window)
    return (1 - values if inverted else values).astype(np.float32)


def _seen(values: np.ndarray, header: Any, frame: int, window: str) -> np.ndarray:
    if window != "file":
        centre, _, width = window.partition("/")
        return windowed(values, Window(float(centre), float(width)))
    module = _group(header, frame, "FrameVOILUTSequence")
    if module.get("VOILUTSequence"):
        from pydicom.pixels import apply_voi

        bits = int(module.VOILUTSequence[0].LUTDescriptor[2])
        looked = apply_voi(values.astype(np.int64) if values.dtype.kind == "f" else values, module)
        return np.asarray(np.clip(looked.astype(np.float64) / (2**bits - 1), 0, 1))
    own = _window(module)
    return windowed(values, own) if own else _stretched(values)


def _stretched(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros(values.shape)


def _window(module: Any) -> Window | None:
    """The first that the file names; None if it names none that can be."""
    centres, widths = (_numbers(module.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if not centres or not widths or not widths[0] > 0:
        return None
    return Window(centres[0], widths[0], str(module.get("VOILUTFunction") or "LINEAR"))


def _numbers(value: Any) -> list[float]:
    if value is None or value == "":
        return []
    try:
        found = [float(value)] if isinstance(value, (int, float, str)) else [float(each) for each in value]
    except (TypeError, ValueError):
        return []
    return found if np.isfinite(found).all() else []


def windowed(values: np.ndarray, window: Window) -> np.ndarray:
    """0 to 1, by the formulas of DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3."""
    values = values.astype(np.float64)
    centre, width, function = window
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
    if function == "LINEAR_EXACT":
        return np.clip((values - centre) / width + 0.5, 0, 1)
    if width <= 1:
        return (values > centre - 0.5).astype(np.float64)
    return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0, 1)


def _units(pixels: np.ndarray, header: Any, frame: int) -> np.ndarray:
    """Of the modality, such as Hounsfield's, in float64."""
    module = _group(header, frame, "PixelValueTransformationSequence")
    if module.get("ModalityLUTSequence"):
        from pydicom.pixels import apply_modality_lut

        return np.asarray(apply_modality_lut(pixels, module), np.float64)
    slope, intercept = _numbers(module.get("RescaleSlope")), _numbers(module.get("RescaleIntercept"))
    return pixels.astype(np.float64) * (slope[0] if slope else 1.0) + (intercept[0] if intercept else 0.0)


def _mirrored(values: np.ndarray, header: Any, frame: int) -> np.ndarray:
    """The largest value that can be stored becomes the smallest."""
    bits, signed = int(header.get("BitsStored", 16)), int(header.get("PixelRepresentation", 0))
    least = -(2 ** (bits - 1)) if signed else 0
    ends = _units(np.array([least, least + 2**bits - 1]), header, frame)
    return float(ends.sum()) - values


def _padding(pixels: np.ndarray, header: Any) -> np.ndarray:
    """Which pixels the file marks as outside the image, from a value up to a limit."""
    value, limit = (_numbers(header.get(name)) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit"))
    if not value:
        return np.zeros(pixels.shape, bool)
    low, high = sorted([value[0], limit[0] if limit else value[0]])
    return np.asarray((pixels >= low) & (pixels <= high))


def _group(header: Any, frame: int, name: str) -> Any:
    """Where a multi-frame file keeps this of one frame, of all frames, or, as other files do, at its top."""
    frames = header.get("PerFrameFunctionalGroupsSequence") or []
    for group in (frames[frame : frame + 1], header.get("SharedFunctionalGroupsSequence") or []):
        for each in group[:1]:
            if each.get(name):
                return each[name].value[0]
    return header
