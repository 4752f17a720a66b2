"""DICOM with pydicom: frames of radiographs, scans and ultrasound, in the values that their modality defines."""

from __future__ import annotations

import logging
import struct
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from byol.data.formats.dicom_values import shown
from byol.data.formats.format import Bounded, Described, Reading, check_image, check_size, guarded, stored
from byol.data.source import BadImage

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

DEFLATED = "1.2.840.10008.1.2.1.99"
PIXELS = {0x7FE00010: "PixelData", 0x7FE00008: "FloatPixelData", 0x7FE00009: "DoubleFloatPixelData"}
UNKNOWN = 0xFFFFFFFF  # the length of compressed pixels, which come in items
LONG = ("OB", "OW", "OF", "OD", "UN")  # whose length takes four bytes after two that are empty
BITS = (1, 8, 16, 32, 64)
MOST_FRAMES = 1_000_000
GREY = ("MONOCHROME1", "MONOCHROME2")
# The elements that are kept; sequences among them are what frames have in common and of their own.
KEPT = (
    *("SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("RescaleIntercept", "RescaleSlope", "ModalityLUTSequence", "VOILUTSequence", "WindowCenter", "WindowWidth"),
    *("VOILUTFunction", "RedPaletteColorLookupTableDescriptor", "GreenPaletteColorLookupTableDescriptor"),
    *("BluePaletteColorLookupTableDescriptor", "RedPaletteColorLookupTableData", "BluePaletteColorLookupTableData"),
    *("GreenPaletteColorLookupTableData", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
)
SEQUENCES = tuple(name for name in KEPT if name.endswith("Sequence"))
ITEM = b"\xfe\xff\x00\xe0"


class Opened(NamedTuple):
    """A header that was looked at; the file is where the pixels begin."""

    header: Dataset
    syntax: Any  # pydicom's UID of how the pixels are written
    keyword: str
    vr: str
    start: int
    frames: int
    channels: int
    height: int
    width: int


@guarded("DICOM")
def describe(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    found = _open(Bounded(file), max_megapixels)
    photometric = str(found.header.PhotometricInterpretation)
    deep = int(found.header.BitsAllocated) > 8
    values = "float32" if photometric in GREY else "uint16" if deep else "uint8"
    channels = 3 if photometric == "PALETTE COLOR" else found.channels
    return Described("DICOM", found.frames, channels, found.height, found.width, values)


@guarded("DICOM")
def read(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    """A frame: colours as they are, grey as float32, in the window's 0 to 1 or in the units of the modality."""
    bounded = Bounded(file)
    found = _open(bounded, max_megapixels)
    check_image(image, found.frames)
    pixels = _decoded(bounded, found, image)
    photometric = str(found.header.PhotometricInterpretation)
    if photometric == "PALETTE COLOR":
        from pydicom.pixels import apply_color_lut

        colours = apply_color_lut(pixels, found.header)[..., :3]
        deep = int(found.header.BitsAllocated) > 8
        colours = colours.astype(np.uint16) if deep else (colours >> 8 * (colours.dtype.itemsize > 1)).astype(np.uint8)
        return stored(colours.transpose(2, 0, 1))
    if photometric not in GREY:
        return stored(pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None])
    return shown(pixels, found.header, image, reading.voi)[None]


def _open(file: Bounded, max_megapixels: float) -> Opened:
    from pydicom.filereader import read_dataset, read_partial, read_preamble
    from pydicom.tag import BaseTag, Tag

    warnings.filterwarnings("ignore", module="pydicom")
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    opened = cast(BinaryIO, file)
    if not file.size:
        raise BadImage("empty file")
    file.seek(0)
    if file.read(132)[128:] != b"DICM":
        raise BadImage("not a DICOM file", "no DICOM file")
    file.seek(0)
    read_preamble(opened, force=False)
    meta = read_dataset(opened, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
    if str(meta.get("TransferSyntaxUID", "")) == DEFLATED:
        # pydicom would unpack all of it at once, however much that is.
        raise BadImage(
            "a DICOM file that is deflated as a whole, not read here: save it uncompressed", "deflated DICOM"
        )
    seen: list[tuple[int, str, int]] = []

    def at_pixels(tag: BaseTag, vr: str | None, length: int) -> bool:
        seen[:] = [(int(tag), vr or "", int(length))]
        return int(tag) in PIXELS

    file.seek(0)
    header = read_partial(opened, at_pixels, force=False, specific_tags=[Tag(name) for name in KEPT])
    if not seen or seen[0][0] not in PIXELS:
        raise BadImage("a DICOM file without pixels", "DICOM without pixels")
    tag, vr, length = seen[0]
    start = file.tell() + (12 if vr in LONG else 8)
    return _checked(header, Place(PIXELS[tag], vr or "OW", start, length, file.size), max_megapixels)


class Place(NamedTuple):
    """Where the pixels are."""

    keyword: str
    vr: str
    start: int
    length: int
    size: int  # of the file


def _checked(header: Any, place: Place, max_megapixels: float) -> Opened:
    """Refuses what the file cannot hold, before memory is taken for it."""
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise BadImage("a DICOM file that does not say how its pixels are written", "damaged DICOM")
    height, width = int(header.Rows), int(header.Columns)
    channels, bits = int(header.get("SamplesPerPixel", 1)), int(header.BitsAllocated)
    frames = int(header.get("NumberOfFrames") or 1)
    if bits not in BITS or channels not in (1, 3, 4):
        raise BadImage(f"a DICOM file of {channels} channels of {bits} bits", "damaged DICOM")
    check_size("DICOM", channels, height, width, max(bits // 8, 1), max_megapixels)
    left = max(place.size - place.start, 0)
    if syntax.is_compressed:
        room = left // 8  # an item of any frame takes as many bytes
    else:
        left = min(left, place.length)
        subsampled = str(header.get("PhotometricInterpretation", "")) == "YBR_FULL_422"
        room = left * 8 // (height * width * bits * (2 if subsampled else channels))
    if frames < 1 or frames > MOST_FRAMES:
        raise BadImage(f"a DICOM file that claims {frames:,} frames", "a wrong number of frames")
    if room < frames:
        raise BadImage("truncated" if frames == 1 else f"truncated: {frames:,} frames are claimed", "truncated")
    _check_sequences(header, frames)
    return Opened(header, syntax, place.keyword, place.vr, place.start, frames, channels, height, width)


def _check_sequences(header: Any, frames: int) -> None:
    """Refuses sequences of more items than frames can want: they are taken apart one by one when they are used."""
    for name in SEQUENCES:
        value = getattr(header.get_item(name), "value", None) if name in header else None
        if isinstance(value, bytes) and value.count(ITEM) > 1000 + 100 * frames:
            raise BadImage(f"a DICOM file of {value.count(ITEM):,} items about its frames", "damaged DICOM")


def _decoded(file: Bounded, found: Opened, image: int) -> np.ndarray:
    """(H, W) or (H, W, C) as they are stored."""
    from pydicom.pixels import get_decoder

    try:
        decoder = get_decoder(found.syntax)
    except NotImplementedError:
        raise BadImage(f"a DICOM file of the unknown syntax {found.syntax!s:.40}", "unknown DICOM syntax") from None
    if not decoder.is_available:
        raise BadImage(
            f"a DICOM file in {found.syntax.name:.50}: install pylibjpeg and its plugins, or save it uncompressed",
            f"DICOM in {found.syntax.name:.50}, which needs a plugin",
        )
    header = found.header
    told = {
        "rows": found.height,
        "columns": found.width,
        "samples_per_pixel": found.channels,
        "photometric_interpretation": str(header.PhotometricInterpretation),
        "bits_allocated": int(header.BitsAllocated),
        "number_of_frames": found.frames,
        "pixel_keyword": found.keyword,
        "pixel_vr": found.vr,
    }
    if found.keyword == "PixelData":
        told |= {name: int(header[key].value) for name, key in NUMBERS.items()}
    if found.channels > 1:
        told["planar_configuration"] = int(header.get("PlanarConfiguration", 0))
    file.seek(found.start)
    if found.syntax.is_compressed:
        _check_frame(file, found, image)
        file.seek(found.start)
    return np.asarray(decoder.as_array(cast(BinaryIO, file), index=image, **told)[0])


NUMBERS = {"bits_stored": "BitsStored", "pixel_representation": "PixelRepresentation"}


def _check_frame(file: Bounded, found: Opened, image: int) -> None:
    """Refuses a compressed frame that is larger than the header says, which its codec would unpack unasked."""
    from pydicom.encaps import get_frame
    from pydicom.uid import RLELossless

    frame = get_frame(cast(BinaryIO, file), image, number_of_frames=found.frames)
    expected = found.height * found.width * found.channels * int(found.header.BitsAllocated) // 8
    if len(frame) > 2 * expected + 100_000:
        raise BadImage(f"a DICOM frame of {len(frame):,} bytes for {expected:,}", "damaged DICOM")
    if found.syntax != RLELossless and frame_size(frame) != (found.height, found.width):
        raise BadImage("a DICOM frame of another size than its header says", "damaged DICOM")


def frame_size(frame: bytes) -> tuple[int, int]:
    """(height, width) by the header of a JPEG, JPEG-LS or JPEG 2000 stream; (0, 0) if it has none."""
    if frame[:4] == b"\xff\x4f\xff\x51" and len(frame) >= 24:
        width, height, left, top = struct.unpack_from(">4I", frame, 8)
        return height - top, width - left
    place = 2 if frame[:2] == b"\xff\xd8" else len(frame)
    while place + 9 <= len(frame) and frame[place] == 0xFF:
        marker = frame[place + 1]
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            height, width = struct.unpack_from(">HH", frame, place + 5)
            return height, width
        place += 1 if marker == 0xFF else 2 + struct.unpack_from(">H", frame, place + 2)[0]
    return 0, 0
