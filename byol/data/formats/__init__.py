"""Readers of files whose images are more than 8-bit colours, one module a format; libraries load when they are used."""

from __future__ import annotations

from byol.data.formats import dicom, hdf5, nifti, numpy_files, tiff
from byol.data.formats.format import Described, Format, Reading

__all__ = ["FORMATS", "Described", "Format", "Reading", "format_of"]


def format_of(name: str | bytes) -> Format | None:
    """The format of a file by its name; None if it is another."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    parts = text.lower().rpartition("/")[2].split(".")
    longest = ".".join(parts[-2:]) if len(parts) > 2 else ""
    return FORMATS.get(longest) or (FORMATS.get(parts[-1]) if len(parts) > 1 else None)


# By the ends of the files' names, without the dot.
FORMATS = {
    "npy": Format("NumPy", "", "numpy", numpy_files.describe_npy, numpy_files.read_npy),
    "npz": Format("NumPy", "", "numpy", numpy_files.describe_npz, numpy_files.read_npz),
    "tif": Format("TIFF", "tiff", "tifffile", tiff.describe, tiff.read),
    "tiff": Format("TIFF", "tiff", "tifffile", tiff.describe, tiff.read),
    "dcm": Format("DICOM", "dicom", "pydicom", dicom.describe, dicom.read),
    "dicom": Format("DICOM", "dicom", "pydicom", dicom.describe, dicom.read),
    "nii": Format("NIfTI", "nifti", "nibabel", nifti.describe, nifti.read),
    "nii.gz": Format("NIfTI", "nifti", "nibabel", nifti.describe_gz, nifti.read_gz),
    "h5": Format("HDF5", "hdf5", "pyfive", hdf5.describe, hdf5.read),
    "hdf5": Format("HDF5", "hdf5", "pyfive", hdf5.describe, hdf5.read),
}
