"""Files of the new formats that were made to do harm: by name, what is in them."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.formats import files
from tests.data.formats.files import dicom_header, numbers, saved

PLANTED = "planted-by-a-pickle"


def _half(content: bytes, share: float = 0.5) -> bytes:
    return content[: int(len(content) * share)]


def _npy(header: bytes, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def _claims(shape: str, kind: str = "<u2") -> bytes:
    return _npy(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode(), bytes(100))


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.place), "w")


def _objects(place: Path) -> bytes:
    content = io.BytesIO()
    values = np.empty((4, 4), object)
    values[:] = Payload(place)
    np.save(content, values, allow_pickle=True)
    return content.getvalue()


def _zipped(name: str, content: bytes, claimed: int = 0) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    data = bytearray(packed.getvalue())
    if claimed:
        data[22:26] = struct.pack("<I", claimed)
        place = data.rindex(b"PK\x01\x02")
        data[place + 24 : place + 28] = struct.pack("<I", claimed)
    return bytes(data)


def numpy_files(place: Path) -> dict[str, bytes]:
    zeros = _claims("(1000000, 64, 64, 3)", "|u1")[:-100] + bytes(10_000_000)
    return {
        "half.npy": _half(files.npy(numbers((5, 30, 30), "u2"))),
        "half-header.npy": files.npy(numbers((5, 30, 30), "u2"))[:40],
        "terabytes.npy": _claims("(1000000, 1000000)"),
        "many.npy": _claims("(10000000000, 4, 4, 3)"),
        "overflow.npy": _claims("(4294967296, 4294967296, 3)"),
        "negative.npy": _claims("(-4, -4)"),
        "words.npy": _claims("(4, 4)", "<U9"),
        "records.npy": _claims("(4, 4)", "V8"),
        "complex.npy": _claims("(2, 2)", "<c8"),
        "flat.npy": files.npy(np.arange(9)),
        "nested.npy": _npy(b"(" * 9000),
        "program.npy": _npy(b"__import__('os').system('true')\n"),
        "objects.npy": _objects(place),
        "objects.npz": _zipped("a.npy", _objects(place)),
        "no-array.npz": _zipped("readme.txt", b"words"),
        "bomb.npz": _zipped("a.npy", zeros),
        "claimed.npz": _zipped("a.npy", zeros, claimed=2**32 - 2),
        "half.npz": _half(files.npz(a=numbers((5, 30, 30), "u2"))),
    }


def _directory(tags: list[tuple[int, int, int, int]], following: int = 0) -> bytes:
    """Of entries (tag, type, count, value)."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return struct.pack("<H", len(tags)) + entries + struct.pack("<I", following)


def _tiff(tags: dict[int, tuple[int, int, int]], body: bytes = b"", following: int = 0) -> bytes:
    entries = [(tag, *rest) for tag, rest in sorted(tags.items())]
    return b"II*\0" + struct.pack("<I", 8) + _directory(entries, following) + body


def _image(width: int, height: int, **more: int) -> dict[int, tuple[int, int, int]]:
    """16-bit grey in one strip that begins after the directory."""
    tags = {256: (4, 1, width), 257: (4, 1, height), 258: (3, 1, 16), 259: (3, 1, 1), 262: (3, 1, 1), 277: (3, 1, 1)}
    tags |= {273: (4, 1, 200), 278: (4, 1, height), 279: (4, 1, width * height * 2 % 2**32)}
    return tags | {int(name[1:]): (4, 1, value) for name, value in more.items()}


def tiffs() -> dict[str, bytes]:
    sound = files.tiff(numbers((5, 40, 40), "u2"), compression="deflate")
    place, chain = 8, b"II*\0" + struct.pack("<I", 8)
    for _ in range(100_000):
        place += 18
        chain += _directory([(256, 4, 1, 9)], place)
    bomb = zlib.compress(bytes(60_000_000), 1)
    packed = _image(20, 20, t259=8, t279=len(bomb))
    tiled = _image(20, 20, t259=8, t322=65536, t323=65536, t324=200, t325=len(bomb))
    return {
        "half.tif": _half(sound),
        "half-header.tif": sound[:12],
        "pages.tif": chain + bytes(2),
        "loop.tif": _tiff(_image(4, 4), bytes(400), following=8),
        "gigapixels.tif": _tiff(_image(2**31 - 1, 2**31 - 1), bytes(400)),
        "long-strip.tif": _tiff(_image(900, 900), bytes(400)),
        "strip-bomb.tif": _tiff(packed, bytes(200 - 8 - 2 - 4 - 12 * len(packed)) + bomb),
        "tile-bomb.tif": _tiff(tiled, bytes(200) + bomb),
        "samples.tif": _tiff(_image(20, 20, t277=65535), bytes(900)),
        "long-tag.tif": _tiff(_image(20, 20) | {270: (2, 2**32 - 1, 300), 273: (4, 2**31, 200)}, bytes(900)),
        "no-compression.tif": _tiff(_image(20, 20, t259=34712), bytes(900)),
        "complex.tif": files.tiff(numbers((1, 20, 20), "f4").astype("c8")),
        "bits.tif": _tiff(_image(20, 20, t258=77), bytes(900)),
        "big-half.tif": _half(files.tiff(numbers((5, 40, 40), "u2"), bigtiff=True)),
        "big-header.tif": b"II+\0\x08\0\0\0" + struct.pack("<Q", 2**63),
    }


def _nested(depth: int) -> bytes:
    """A DICOM data set of sequences in sequences, of unknown length each."""
    start = saved(dicom_header(numbers((4, 4), "u2")))
    place = start.index(b"\x08\x00\x16\x00UI")
    opened = struct.pack("<HH2sHI", 0x0008, 0x1111, b"SQ", 0, 0xFFFFFFFF) + struct.pack(
        "<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF
    )
    return start[:place] + opened * depth


def dicoms() -> dict[str, bytes]:
    import pydicom

    pixels = numbers((40, 40), "u2")
    sound = saved(dicom_header(pixels))
    items = struct.pack("<HHI", 0xFFFE, 0xE000, 0) * 1_000_000
    start = sound.index(b"\xe0\x7f\x10\x00OW")  # before the pixels
    shared = struct.pack("<HH2sHI", 0x5200, 0x9229, b"SQ", 0, len(items))
    deflated = dicom_header(pixels, syntax=pydicom.uid.DeflatedExplicitVRLittleEndian)
    coded = dicom_header(pixels, syntax=pydicom.uid.JPEGBaseline8Bit, NumberOfFrames=2**31 - 1)
    coded.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8" + bytes(100)])
    coded["PixelData"].is_undefined_length = True
    return {
        "half.dcm": _half(sound, 0.7),
        "half-header.dcm": sound[:200],
        "frames.dcm": saved(dicom_header(pixels, NumberOfFrames=2**31 - 1)),
        "coded-frames.dcm": saved(coded),
        "no-frames.dcm": saved(dicom_header(pixels, NumberOfFrames=-3)),
        "rows.dcm": saved(dicom_header(pixels, Rows=65535, Columns=65535)),
        "few-rows.dcm": saved(dicom_header(pixels, Rows=900, Columns=900)),
        "channels.dcm": saved(dicom_header(pixels, SamplesPerPixel=65535)),
        "nested.dcm": _nested(100_000),
        "items.dcm": sound[:start] + shared + items + sound[start:],
        "long.dcm": sound[: sound.index(b"OW") + 2] + struct.pack("<HI", 0, 2**32 - 2) + bytes(90),
        "deflated.dcm": saved(deflated),
    }


def _nifti_claims(shape: tuple[int, ...], kind: int = 4) -> bytes:
    header = bytearray(files.nifti(np.zeros((2, 2, 2), "i2")))
    struct.pack_into("<8h", header, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    struct.pack_into("<h", header, 70, kind)
    return bytes(header)


def niftis() -> dict[str, bytes]:
    sound = files.nifti(numbers((30, 30, 9), "i2"))
    far = bytearray(sound)
    struct.pack_into("<f", far, 108, 3e38)
    return {
        "half.nii": _half(sound, 0.9),
        "half-header.nii": sound[:300],
        "volume.nii": _nifti_claims((2**15 - 1,) * 7),
        "flat.nii": _nifti_claims((900, 900, 9)),
        "negative.nii": _nifti_claims((-5, 5, 5)),
        "complex.nii": _nifti_claims((2, 2, 2), kind=32),
        "unknown.nii": _nifti_claims((2, 2, 2), kind=4321),
        "far.nii": bytes(far),
        "volume.nii.gz": gzip.compress(_nifti_claims((2**15 - 1,) * 3)),
        "zeros.nii.gz": gzip.compress(bytes(100_000_000), 1),
        "short.nii.gz": gzip.compress(_nifti_claims((900, 900, 300))),
        "half.nii.gz": _half(gzip.compress(sound)),
        "plain.nii.gz": sound,
    }


def _hdf5(make: Any) -> bytes:
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        make(file)
    return content.getvalue()


def _chunk_bomb(file: Any) -> None:
    array = file.create_dataset("a", (4, 8, 8), "u2", chunks=(1, 8, 8), compression="gzip")
    bomb = zlib.compress(bytes(20_000_000), 1)  # 90 KB
    for number in range(4):
        array.id.write_direct_chunk((number, 0, 0), bomb)


def _virtual(file: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout((4, 8, 8), "u2")
    layout[:] = h5py.VirtualSource("/etc/passwd", "a", (4, 8, 8))
    file.create_virtual_dataset("a", layout)


def _external(file: Any) -> None:
    file.create_dataset("a", (4, 8, 8), "u2", external=[("/etc/passwd", 0, 4 * 64 * 2)])


def _link(file: Any) -> None:
    import h5py

    file["a"] = h5py.ExternalLink("/etc/passwd", "/a")
    file["b"] = h5py.SoftLink("/a")


def hdf5s() -> dict[str, bytes]:
    import h5py

    sound = files.hdf5({"a": numbers((4, 9, 9), "u2")})
    big = (2**31, 2**31)
    return {
        "half.h5": _half(sound),
        "half-header.h5": sound[:60],
        "huge.h5": _hdf5(lambda f: f.create_dataset("a", (10**6, *big), "u2", chunks=(1, 64, 64))),
        "many.h5": _hdf5(lambda f: f.create_dataset("a", (10**7, 64, 64), "u2", chunks=(1, 64, 64))),
        "chunks.h5": _hdf5(lambda f: f.create_dataset("a", (10**9, 64, 64), "u1", chunks=(10**6, 64, 64))),
        "chunk-bomb.h5": _hdf5(_chunk_bomb),
        "virtual.h5": _hdf5(_virtual),
        "external.h5": _hdf5(_external),
        "link.h5": _hdf5(_link),
        "lzf.h5": files.hdf5({"a": numbers((4, 9, 9), "u2")}, compression="lzf"),
        "words.h5": _hdf5(lambda f: f.create_dataset("a", (4, 4, 4), h5py.string_dtype())),
        "arrays.h5": _hdf5(lambda f: [f.create_dataset(str(i), (2, 2, 2), "u1") for i in range(1200)]),
        "empty.h5": _hdf5(lambda f: None),
        "null.h5": _hdf5(lambda f: f.create_dataset("a", data=h5py.Empty("u2"))),
    }


def build(folder: Path) -> Path:
    """All of them, and a file of no bytes of each ending."""
    made = numpy_files(folder.parent / PLANTED) | tiffs() | dicoms() | niftis() | hdf5s()
    made |= {f"no-bytes.{ending}": b"" for ending in files.examples()}
    made |= {f"words.{ending}": b"just some words, no picture at all\n" * 99 for ending in files.examples()}
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder
