"""What a reader gives is, number for number, what another library reads from the same file."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from byol.data.formats import FORMATS, format_of
from byol.data.formats.format import STORED
from byol.data.source import BadImage
from tests.data.formats import files
from tests.data.formats.files import described, numbers, values_of

KINDS = ("bool", "u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8", ">u2", ">i2", ">f4")


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal, as far as the types that images are held in can say; that is all of 16 bits and of float32."""
    assert found.dtype.name in STORED
    assert found.flags.c_contiguous
    assert found.shape == expected.shape
    with np.errstate(over="ignore"):
        assert np.array_equal(found, expected.astype(found.dtype))
    if expected.dtype.itemsize <= 2 and expected.dtype.kind != "f":
        assert np.array_equal(found.astype(np.int64), expected.astype(np.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_arrays(kind: str) -> None:
    """Breaks if a byte order, a type or the order of axes is read wrongly, or the layout is guessed wrongly."""
    image = numbers((5, 11, 13), kind)
    for values in (image, np.asfortranarray(image), image.transpose(1, 2, 0)):
        for name, content in (("npy", files.npy(values)), ("npz", files.npz(x=values, labels=np.arange(4)))):
            same(values_of(name, content), image)
            assert described(name, content)[1:5] == (1, 5, 11, 13)
    stack = numbers((4, 11, 13, 5), kind)
    for number in range(4):
        same(values_of("npy", files.npy(stack), number), stack[number].transpose(2, 0, 1))
        same(values_of("npz", files.npz(x=stack), number), stack[number].transpose(2, 0, 1))
    same(values_of("npy", files.npy(image[0])), image[:1])
    same(values_of("npy", files.npy(image), 3, axes="NYX"), image[3:4])
    assert described("npy", files.npy(image), axes="NYX").images == 5


@pytest.mark.parametrize("kind", [*KINDS[1:10], "u8"])
@pytest.mark.parametrize("compression", [None, "deflate", "lzw", "zstd", "packbits"])
def test_tiff(kind: str, compression: str | None) -> None:
    """Breaks if planes, tiles, byte orders or predictors of a TIFF are put together wrongly."""
    import tifffile

    image = numbers((5, 37, 41), kind)
    for planar, tile, big, order in (("contig", None, False, "<"), ("separate", (16, 32), True, ">")):
        predictor = compression in ("deflate", "lzw") and kind not in ("f2", "u8")
        options: dict[str, Any] = {"planarconfig": planar, "tile": tile, "bigtiff": big, "byteorder": order}
        content = files.tiff(image, compression=compression, predictor=predictor, **options)
        again = tifffile.imread(io.BytesIO(content))
        same(values_of("tif", content), again if planar == "separate" else np.moveaxis(again, -1, 0))
        same(values_of("tif", content), image)
        assert described("tif", content)[1:5] == (1, 5, 37, 41)


def test_tiff_pages_and_what_is_no_page() -> None:
    """Breaks if a smaller copy counts as a page, or pages of other kinds are read with the first one's settings."""
    import tifffile

    content = io.BytesIO()
    first, second = numbers((9, 7), "u2"), numbers((3, 8, 6), "f4")
    with tifffile.TiffWriter(content) as writer:
        writer.write(first, photometric="minisblack", metadata=None)
        writer.write(first[::2, ::2], photometric="minisblack", subfiletype=1, metadata=None)
        writer.write(second, photometric="minisblack", planarconfig="separate", metadata=None)
    assert described("tif", content.getvalue())[1:] == (2, 1, 9, 7, "uint16")
    same(values_of("tif", content.getvalue()), first[None])
    same(values_of("tif", content.getvalue(), 1), second)
    with pytest.raises(BadImage, match="no number 2"):
        values_of("tif", content.getvalue(), 2)


def test_tiff_meanings() -> None:
    """Breaks if inverted grey, a palette, transparency or 12 packed bits are read as plain channels of 16."""
    import tifffile

    grey = numbers((1, 9, 7), "u2")
    same(values_of("tif", files.tiff(grey, photometric="miniswhite")), 65535 - grey)
    colours, chosen = numbers((3, 256), "u2"), numbers((1, 9, 7), "u1")
    content = files.tiff(chosen, photometric="palette", colormap=colours)
    same(values_of("tif", content), colours[:, chosen[0]])
    four = numbers((4, 9, 7), "u2")
    same(values_of("tif", files.tiff(four, photometric="rgb", extrasamples=["unassalpha"])), four[:3])
    same(values_of("tif", files.tiff(four, photometric="rgb", extrasamples=["unspecified"])), four)
    for number, turned in ((3, four[:, ::-1, ::-1]), (6, four.swapaxes(1, 2)[:, :, ::-1])):
        content = files.tiff(four, extratags=[(274, 3, 1, number, True)])
        same(values_of("tif", content), turned)
        assert described("tif", content)[3:5] == turned.shape[1:]
    twelve = io.BytesIO()
    tifffile.imwrite(twelve, grey[0] >> 4, bitspersample=12, photometric="minisblack", metadata=None)
    same(values_of("tif", twelve.getvalue()), grey >> 4)


@pytest.mark.parametrize(("kind", "marker"), [("f4", "-9999"), ("f4", "nan"), ("u2", "65535"), ("i2", "-32768")])
def test_no_data_is_filled_with_the_mean(kind: str, marker: str) -> None:
    """Breaks if GDAL's no-data value reaches the training as a number, or the other pixels change."""
    image = numbers((3, 9, 7), "u1").astype(kind)
    holes = np.random.default_rng(0).random(image.shape) < 0.3
    holes[2] = True
    written = np.where(holes, np.array(float(marker)).astype(kind), image)
    content = files.tiff(written, extratags=[(42113, "s", 0, marker, True)])
    found = values_of("tif", content)
    same(found[~holes], image[~holes])
    for band in range(2):
        mean = image[band][~holes[band]].astype(np.float64).mean()
        expected = np.float32(mean) if kind == "f4" else round(mean)
        assert (found[band][holes[band]] == expected).all()
    assert (found[2] == 0).all()
    # A marker that the type cannot hold marks nothing.
    same(
        values_of("tif", files.tiff(numbers((3, 9, 7), "u1") * 0 + 7, extratags=[(42113, "s", 0, "-1", True)])),
        np.full((3, 9, 7), 7, "u1"),
    )


def test_not_finite_numbers_never_reach_the_training() -> None:
    """Breaks if a NaN or an infinite number of any format is handed on."""
    image = numbers((2, 6, 5), "f8")
    image[0, 0, 0], image[1, 2, 3], image[0, 1, 1] = np.nan, np.inf, 1e300
    for name, content in (
        ("npy", files.npy(image)),
        ("nii", files.nifti(image)),
        ("h5", files.hdf5({"a": image[:, None]})),
    ):
        found = values_of(name, content)
        assert np.isfinite(found).all(), name
    found = values_of("npy", files.npy(image))
    rest = np.delete(image[0].reshape(-1), [0, 6]).astype(np.float32).astype(np.float64)
    assert found[0, 0, 0] == found[0, 1, 1] == np.float32(rest.mean())


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"])
def test_nifti_slices(kind: str) -> None:
    """Breaks if a slice is cut along another axis, turned or mirrored otherwise than nibabel's canonical volume."""
    import nibabel

    values = numbers((6, 7, 8), kind)
    turned = np.array([[0, 0, -2, 5], [3, 0, 0, -7], [0, -1, 0, 9], [0, 0, 0, 1]])
    for affine in (np.eye(4), turned, np.diag([-1.0, -1, 1, 1])):
        for second in (False, True):
            content = files.nifti(values, affine=affine, second=second)
            volume = np.asanyarray(nibabel.as_closest_canonical(_loaded(content, second)).dataobj)
            for slices, axis in (("sagittal", 0), ("coronal", 1), ("axial", 2)):
                assert described("nii", content, slices=slices).images == volume.shape[axis]
                for number in (0, volume.shape[axis] - 2):
                    expected = np.take(volume, number, axis).T[::-1]
                    same(values_of("nii", content, number, slices=slices), expected[None])
    packed = files.nifti(values, packed=True)
    for number in range(8):
        same(values_of("nii.gz", packed, number), values[:, :, number].T[::-1][None])


def _loaded(content: bytes, second: bool = False) -> Any:
    import nibabel

    return (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(content)


def test_nifti_scale_modalities_time_and_colours() -> None:
    """Breaks if the slope is left out, or four modalities are taken for time, or twenty times for bands."""
    image = _loaded(files.nifti(numbers((6, 7, 5), "i2")))
    image.header.set_slope_inter(0.25, -3)
    content = image.to_bytes()
    scaled = np.asanyarray(_loaded(content).dataobj)
    found = values_of("nii", content, 2)
    assert np.allclose(found, scaled[:, :, 2].T[::-1][None], rtol=1e-6)
    assert described("nii", content).values == "float32"
    four = numbers((6, 7, 5, 4), "i2")
    assert described("nii", files.nifti(four))[1:3] == (5, 4)
    same(values_of("nii", files.nifti(four), 3), four[:, :, 3].transpose(2, 1, 0)[:, ::-1])
    many = numbers((6, 7, 5, 20), "i2")
    assert described("nii", files.nifti(many))[1:3] == (100, 1)
    same(values_of("nii", files.nifti(many), 5 * 7 + 2), many[:, :, 2, 7].T[::-1][None])
    colours = numbers((6, 7, 5, 3), "u1")
    packed = np.ascontiguousarray(colours).view(np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]))[..., 0]
    same(values_of("nii", files.nifti(packed), 4), colours[:, :, 4].transpose(2, 1, 0)[:, ::-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (2, 3, 4, 2), "compression": "gzip", "shuffle": True, "fletcher32": True}]
)
def test_hdf5(kind: str, options: dict[str, Any]) -> None:
    """Breaks if chunks are unpacked or put together otherwise than HDF5's own library does it."""
    import h5py

    stack = numbers((5, 3, 11, 13), kind)
    content = files.hdf5({"images": stack, "labels": np.arange(5)}, **options)
    with h5py.File(io.BytesIO(content)) as file:
        again = file["images"][...]
    assert described("h5", content)[1:5] == (5, 3, 11, 13)
    for number in range(5):
        same(values_of("h5", content, number), again[number])
    last = files.hdf5({"images": stack.transpose(0, 2, 3, 1), "other": stack}, **options)
    same(values_of("h5", last, 4, array="images"), stack[4])
    with pytest.raises(BadImage, match=r"2 arrays of images \(images, other\): choose one with data\.array"):
        values_of("h5", last)
    same(values_of("h5", files.hdf5({"a/b": stack[:, 0]}), 2, array="a/b"), stack[2, :1])


def test_an_hdf5_chunk_that_was_never_written_holds_the_fill_value() -> None:
    """Breaks if a gap in the file is read as zeros, or as an error."""
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        array = file.create_dataset("a", (4, 6, 5), "i2", chunks=(1, 6, 5), fillvalue=-7)
        array[2] = 3
    assert (values_of("h5", content.getvalue(), 1) == -7).all()
    assert (values_of("h5", content.getvalue(), 2) == 3).all()


def test_every_ending_has_an_example_and_a_name() -> None:
    """Breaks if a format is added without the tests that run over all of them, or a name's case decides."""
    assert {FORMATS[name] for name in files.examples()} == set(FORMATS.values())
    assert format_of("a.b/Scan.NII.GZ") is FORMATS["nii.gz"]
    assert format_of(b"x.TIFF") is FORMATS["tiff"]
    assert format_of("x.gz") is format_of("npy") is format_of("photo.jpg") is None


def test_hdf5_of_the_newest_kind() -> None:
    """Breaks if an index of chunks that is not read is called damage, or arrays of one piece are refused with it."""
    import h5py

    stack = numbers((3, 6, 5), "u2")
    for options in ({}, {"chunks": (1, 6, 5)}):
        content = io.BytesIO()
        with h5py.File(content, "w", libver="latest") as file:
            file.create_dataset("a", data=stack, **options)
        if options:
            with pytest.raises(BadImage, match="without libver='latest'"):
                values_of("h5", content.getvalue())
        else:
            same(values_of("h5", content.getvalue(), 2), stack[2:])
