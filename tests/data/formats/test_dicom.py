"""DICOM frames in their modality's units and windows, against pydicom's own arithmetic."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi, apply_windowing
from pydicom.uid import (
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLSLossless,
    RLELossless,
)

from byol.data.source import BadImage
from tests.data.formats import files
from tests.data.formats.files import described, dicom, dicom_header, numbers, saved, values_of

RESCALED: dict[str, Any] = {"RescaleSlope": 2.5, "RescaleIntercept": -1024}


def pydicoms(content: bytes) -> np.ndarray:
    """Units of the modality by pydicom."""
    header = pydicom.dcmread(io.BytesIO(content))
    return np.asarray(apply_modality_lut(header.pixel_array, header), np.float64)


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4"])
@pytest.mark.parametrize("syntax", [None, ImplicitVRLittleEndian, ExplicitVRBigEndian])
def test_units_of_the_modality(kind: str, syntax: Any) -> None:
    """Breaks if slope, intercept, sign, byte order or the kind of header changes a value."""
    options = {"syntax": syntax} if syntax else {}
    content = dicom(numbers((9, 7), kind), **RESCALED, **options)
    found = values_of("dcm", content, voi="none")
    assert found.dtype == np.float32
    assert np.array_equal(found[0], pydicoms(content).astype(np.float32))
    assert described("dcm", content) == ("DICOM", 1, 1, 9, 7, "float32")


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize(("centre", "width"), [(40, 400), (-600.5, 1500), (0, 60)])
def test_windows(function: str, centre: float, width: float) -> None:
    """Breaks if a window's formula differs from pydicom's, or the file's window is not the one that is used."""
    pixels = np.arange(63, dtype="i2").reshape(9, 7) * 32
    content = dicom(pixels, **RESCALED, WindowCenter=centre, WindowWidth=width, VOILUTFunction=function)
    header = pydicom.dcmread(io.BytesIO(content))
    seen = apply_windowing(pydicoms(content), header)
    low, high = -(2**15) * 2.5 - 1024, (2**15 - 1) * 2.5 - 1024  # what pydicom spreads a window over
    expected = (seen - low) / (high - low)
    assert np.allclose(values_of("dcm", content)[0], expected, atol=1e-6)
    given = dicom(pixels, **RESCALED, WindowCenter=1, WindowWidth=3)
    if function == "LINEAR":
        assert np.allclose(values_of("dcm", given, voi=f"{centre}/{width}")[0], expected, atol=1e-6)


def test_inverted_grey_is_dark_where_values_are_large() -> None:
    """Breaks if MONOCHROME1 is not inverted, in a window or in units."""
    pixels = numbers((9, 7), "u2") >> 4
    plain = dicom(pixels, BitsStored=12, HighBit=11, WindowCenter=2000, WindowWidth=3000)
    dark = dicom(
        pixels, BitsStored=12, HighBit=11, WindowCenter=2000, WindowWidth=3000, PhotometricInterpretation="MONOCHROME1"
    )
    assert np.allclose(values_of("dcm", dark), 1 - values_of("dcm", plain), atol=1e-6)
    assert np.array_equal(values_of("dcm", dark, voi="none")[0], 4095 - pixels.astype(np.float32))


def test_without_a_window_and_with_padding() -> None:
    """Breaks if padding stretches the values that are looked at, or a file without a window is not stretched."""
    pixels = numbers((9, 7), "i2") >> 6
    pixels[0], pixels[1] = -2000, -1999
    found = values_of("dcm", dicom(pixels, PixelPaddingValue=-2000, PixelPaddingRangeLimit=-1999))[0]
    low, high = pixels[2:].min(), pixels[2:].max()
    assert np.allclose(found[2:], (pixels[2:] - float(low)) / (high - low), atol=1e-6)
    assert (found[:2] == 0).all()
    assert (values_of("dcm", dicom(np.full((4, 5), 7, "u2"))) == 0).all()


def test_look_up_tables() -> None:
    """Breaks if a table of the modality, of values of interest or of colours is passed over."""
    pixels = numbers((9, 7), "u1")
    table = pydicom.Dataset()
    table.LUTDescriptor, table.LUTData, table.ModalityLUTType = (
        [256, 0, 16],
        (np.arange(256, dtype="<u2")[::-1] * 3).tobytes(),
        "US",
    )
    content = dicom(pixels, ModalityLUTSequence=[table])
    assert np.array_equal(values_of("dcm", content, voi="none")[0], pydicoms(content).astype(np.float32))
    assert not np.array_equal(pydicoms(content), pixels)
    voi = pydicom.Dataset()
    voi.LUTDescriptor, voi.LUTData = [256, 0, 12], (np.arange(256, dtype="<u2") * 16).tobytes()
    content = dicom(pixels, VOILUTSequence=[voi])
    header = pydicom.dcmread(io.BytesIO(content))
    assert np.allclose(values_of("dcm", content)[0], apply_voi(header.pixel_array, header) / 4095, atol=1e-6)
    names = [f"{colour}PaletteColorLookupTable" for colour in ("Red", "Green", "Blue")]
    tables = {f"{name}Descriptor": [256, 0, 16] for name in names}
    tables |= {f"{name}Data": numbers((256, 1 + i), "u2")[:, 0].tobytes() for i, name in enumerate(names)}
    content = dicom(pixels, PhotometricInterpretation="PALETTE COLOR", **tables)
    header = pydicom.dcmread(io.BytesIO(content))
    colours = apply_color_lut(header.pixel_array, header)
    assert np.array_equal(values_of("dcm", content), (colours >> 8).transpose(2, 0, 1))
    assert described("dcm", content)[2:] == (3, 9, 7, "uint8")


def test_frames_and_what_they_have_of_their_own() -> None:
    """Breaks if a frame is taken from another place, or with another frame's scale."""
    pixels = numbers((4, 9, 7), "i2")
    content = dicom(pixels, **RESCALED)
    assert described("dcm", content).images == 4
    for number in range(4):
        expected = (pixels[number] * 2.5 - 1024).astype(np.float32)
        assert np.array_equal(values_of("dcm", content, number, voi="none")[0], expected)
    groups = []
    for number in range(4):
        scale, group = pydicom.Dataset(), pydicom.Dataset()
        scale.RescaleSlope, scale.RescaleIntercept, scale.RescaleType = number + 1, 10 * number, "HU"
        group.PixelValueTransformationSequence = [scale]
        groups.append(group)
    content = dicom(pixels, PerFrameFunctionalGroupsSequence=groups)
    for number in range(4):
        expected = (pixels[number].astype(float) * (number + 1) + 10 * number).astype(np.float32)
        assert np.array_equal(values_of("dcm", content, number, voi="none")[0], expected)


def test_colours_and_compressed_frames() -> None:
    """Breaks if colours are turned or scaled, or run lengths, JPEG or JPEG 2000 are read otherwise than by pydicom."""
    from PIL import Image

    pixels = numbers((2, 9, 7, 3), "u1")
    for number in range(2):
        assert np.array_equal(values_of("dcm", dicom(pixels), number), pixels[number].transpose(2, 0, 1))
    grey = dicom_header(numbers((9, 7), "u2"))
    grey.compress(RLELossless)
    assert np.array_equal(values_of("dcm", saved(grey), voi="none")[0], numbers((9, 7), "u2").astype(np.float32))
    smooth = (np.add.outer(np.arange(32), np.arange(24)) * 4).astype("u1")
    for name, syntax in (("JPEG", JPEGBaseline8Bit), ("JPEG2000", JPEG2000Lossless)):
        frame = io.BytesIO()
        Image.fromarray(smooth).save(frame, name, **({"no_jp2": True} if name == "JPEG2000" else {}))
        header = dicom_header(smooth)
        header.file_meta.TransferSyntaxUID = syntax
        header.PixelData = encapsulate([frame.getvalue()])
        header["PixelData"].is_undefined_length = True
        found = values_of("dcm", saved(header), voi="none")[0]
        assert np.array_equal(found, pydicoms(saved(header)).astype(np.float32))
        header.Rows = 16  # the frame unpacks to more than the header says
        with pytest.raises(BadImage, match="another size"):
            values_of("dcm", saved(header))
    header.Rows, header.file_meta.TransferSyntaxUID = 32, JPEGLSLossless
    with pytest.raises(BadImage, match=r"^a DICOM file in JPEG-LS Lossless .*install pylibjpeg"):
        values_of("dcm", saved(header))


def test_headers_that_are_refused() -> None:
    """Breaks if a file that names no picture ends in anything but a sentence."""
    header = dicom_header(numbers((9, 7), "u2"))
    del header.PixelData
    with pytest.raises(BadImage, match="without pixels"):
        described("dcm", saved(header))
    deflated = dicom(numbers((9, 7), "u2"), syntax=pydicom.uid.DeflatedExplicitVRLittleEndian)
    with pytest.raises(BadImage, match="deflated as a whole"):
        described("dcm", deflated)
    with pytest.raises(BadImage, match="not a DICOM file"):
        described("dcm", files.npy(np.ones((3, 3))) + bytes(200))
