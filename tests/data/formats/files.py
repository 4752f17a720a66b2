"""Small sound files of each format, made by the libraries that people make them with."""

from __future__ import annotations

import gzip
import io
from typing import Any

import numpy as np

from byol.data.formats import FORMATS
from byol.data.formats.format import Described, Reading


def described(name: str, content: bytes, **reading: Any) -> Described:
    return FORMATS[name].describe(io.BytesIO(content), 1.0, Reading(**reading))


def values_of(name: str, content: bytes, image: int = 0, **reading: Any) -> np.ndarray:
    """Image number `image` by our reader."""
    return FORMATS[name].read(io.BytesIO(content), image, 1.0, Reading(**reading))


def numbers(shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Of the whole range of a type; floats that are no fractions of 256."""
    dtype, rng = np.dtype(kind), np.random.default_rng([*shape, *kind.encode()])
    if dtype.kind == "f":
        return rng.normal(0, 1000, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(low, high, shape, dtype.newbyteorder("="), endpoint=True).astype(dtype)


def npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def tiff(values: np.ndarray, **options: Any) -> bytes:
    """(C, H, W), or pages of them, written by tifffile."""
    import tifffile

    content = io.BytesIO()
    settings: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "separate", "metadata": None} | options
    if settings["planarconfig"] == "contig":
        values = np.moveaxis(values, -3, -1)
    if values.shape[-3] == 1:  # of one channel there is nothing to arrange
        settings.pop("planarconfig")
        values = values[..., 0, :, :]
    tifffile.imwrite(content, values, **settings)
    return content.getvalue()


def dicom_header(pixels: np.ndarray, **elements: Any) -> Any:
    """A data set around stored numbers (H, W), (frames, H, W) or (H, W, 3)."""
    import pydicom
    from pydicom.dataset import FileMetaDataset

    header = pydicom.Dataset()
    header.file_meta = FileMetaDataset()
    header.file_meta.TransferSyntaxUID = elements.pop("syntax", pydicom.uid.ExplicitVRLittleEndian)
    header.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    header.file_meta.MediaStorageSOPInstanceUID = "1.2.3.4"
    header.SOPClassUID, header.SOPInstanceUID, header.PatientName = "1.2.840.10008.5.1.4.1.1.7", "1.2.3.4", "Nobody"
    colours = pixels.shape[-1] == 3 and pixels.dtype.itemsize == 1
    bits = 8 * pixels.dtype.itemsize
    header.SamplesPerPixel = 3 if colours else 1
    header.PhotometricInterpretation = "RGB" if colours else "MONOCHROME2"
    if colours:
        header.PlanarConfiguration = 0
    header.Rows, header.Columns = pixels.shape[-3:-1] if colours else pixels.shape[-2:]
    if pixels.ndim - colours == 3:
        header.NumberOfFrames = len(pixels)
    header.BitsAllocated = header.BitsStored = bits
    header.HighBit, header.PixelRepresentation = bits - 1, int(pixels.dtype.kind == "i")
    order = "<" if header.file_meta.TransferSyntaxUID.is_little_endian else ">"
    header.PixelData = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    header["PixelData"].VR = "OB" if bits == 8 else "OW"
    for name, value in elements.items():
        setattr(header, name, value)
    return header


def saved(header: Any) -> bytes:
    content = io.BytesIO()
    header.save_as(content, enforce_file_format=True)
    return content.getvalue()


def dicom(pixels: np.ndarray, **elements: Any) -> bytes:
    return saved(dicom_header(pixels, **elements))


def nifti(values: np.ndarray, packed: bool = False, affine: np.ndarray | None = None, **settings: Any) -> bytes:
    """(X, Y, Z) or (X, Y, Z, T), written by nibabel."""
    import nibabel

    kind = nibabel.Nifti2Image if settings.pop("second", False) else nibabel.Nifti1Image
    image = kind(values, np.eye(4) if affine is None else affine)
    for name, value in settings.items():
        image.header[name] = value
    content = image.to_bytes()
    return gzip.compress(content) if packed else content


def hdf5(arrays: dict[str, np.ndarray], **options: Any) -> bytes:
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **(options if values.ndim > 2 else {}))
    return content.getvalue()


def examples() -> dict[str, bytes]:
    """One file of each ending, with five channels or as many images where the format has them."""
    stack = numbers((5, 9, 7), "uint16")
    return {
        "npy": npy(stack),
        "npz": npz(image=stack),
        "tif": tiff(stack, compression="deflate", tile=(16, 16)),
        "dcm": dicom(
            numbers((9, 7), "int16"), RescaleSlope=2.5, RescaleIntercept=-1000, WindowCenter=40, WindowWidth=400
        ),
        "nii": nifti(numbers((9, 7, 5), "int16")),
        "nii.gz": nifti(numbers((9, 7, 5), "int16"), packed=True),
        "h5": hdf5({"images": np.stack([stack, stack[::-1]])}, chunks=(1, 5, 9, 7), compression="gzip", shuffle=True),
    }


def seeds(name: str) -> list[bytes]:
    """Sound files of one ending for fuzzing, which between them take every way through its reader."""
    import pydicom

    stack, volume = numbers((5, 9, 7), "uint16"), numbers((9, 7, 5), "int16")
    if name == "npy":
        return [npy(stack), npy(np.asfortranarray(stack[0])), npy(numbers((2, 9, 7, 3), "f4"))]
    if name == "npz":
        return [npz(image=stack), npz(images=numbers((2, 9, 7, 3), "u1"), labels=np.arange(2))]
    if name == "tif":
        grey = {"photometric": "miniswhite", "extratags": [(42113, "s", 0, "7", True)]}
        ways: list[dict[str, Any]] = [
            {"compression": "deflate", "tile": (16, 16)},
            {"compression": "lzw", "predictor": True},
        ]
        ways += [{"compression": "packbits", "planarconfig": "contig"}, {"compression": "zstd", "bigtiff": True}]
        pages = tiff(np.stack([stack[:1], stack[1:2]]), compression="lzma", byteorder=">")
        palette = tiff(numbers((1, 9, 7), "u1"), photometric="palette", colormap=numbers((3, 256), "u2"))
        return [*(tiff(stack, **way) for way in ways), pages, palette, tiff(stack[:1], **grey)]
    if name == "dcm":
        packed = dicom_header(numbers((9, 7), "u2"))
        packed.compress(pydicom.uid.RLELossless)
        scale, group = pydicom.Dataset(), pydicom.Dataset()
        scale.RescaleSlope, scale.RescaleIntercept, scale.RescaleType = 2, 10, "HU"
        group.PixelValueTransformationSequence = [scale]
        frames = dicom(numbers((2, 9, 7), "i2"), SharedFunctionalGroupsSequence=[group], PixelPaddingValue=3)
        implicit = {"syntax": pydicom.uid.ImplicitVRLittleEndian, "PhotometricInterpretation": "MONOCHROME1"}
        return [
            examples()["dcm"],
            saved(packed),
            frames,
            dicom(numbers((9, 7, 3), "u1")),
            dicom(numbers((9, 7), "u1"), **implicit),
        ]
    if name in ("nii", "nii.gz"):
        packed = name == "nii.gz"
        return [nifti(volume, packed), nifti(numbers((9, 7, 5, 2), "f4"), packed, second=True)]
    plain = hdf5({"images": numbers((2, 9, 7), "f4"), "labels": np.arange(2)})
    return [examples()["h5"], plain, hdf5({"a/b": numbers((2, 9, 7), "u1")}, fletcher32=True, chunks=(1, 4, 4))]
