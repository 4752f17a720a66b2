"""TIFF of any numbers, classic and BigTIFF, in strips or tiles, with tifffile; GeoTIFF bands are its channels."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from byol.data.decode import ORIENTATION, STRAIGHT, TURNS
from byol.data.formats.format import Bounded, Described, Reading, check_image, check_size, guarded, stored, stored_type
from byol.data.source import BadImage

if TYPE_CHECKING:
    from tifffile import TiffPage

# magic: order of bytes, forms of the directory's place and count, bytes of an entry
KINDS = {
    b"II*\0": ("<", "I", "H", 12),
    b"MM\0*": (">", "I", "H", 12),
    b"II+\0": ("<", "Q", "Q", 20),
    b"MM\0+": (">", "Q", "Q", 20),
}
SUBFILE = 254  # the tag that tells smaller copies and masks from pages
MOST_PAGES, MOST_TAGS, MOST_SEGMENTS = 50_000, 1000, 1_000_000
# Codecs of plain bytes, whose output is cut at the size of a tile. A codec of images, such as JPEG, makes what its own
# header says; those of 8-bit images are read elsewhere, by Pillow.
COMPRESSIONS = {1, 5, 8, 32946, 32773, 34925, 50000}
NODATA = 42113  # GDAL's tag
WHITE_IS_ZERO, PALETTE = 0, 3  # photometric interpretations
TRANSPARENCY = (1, 2)  # of extra samples


def directories(file: BinaryIO) -> Iterator[int]:
    """Where the directories of pages are, in order, without those of masks and of smaller copies."""
    file.seek(0)
    magic = file.read(4)
    if not magic:
        raise BadImage("empty file")
    if magic not in KINDS:
        raise BadImage("not a TIFF file")
    order, place_form, count_form, entry = KINDS[magic]
    place_size, count_size = struct.calcsize(place_form), struct.calcsize(count_form)
    file.seek(8 if place_size == 8 else 4)
    (place,) = struct.unpack(order + place_form, file.read(place_size))
    seen = set[int]()
    while place:
        if place in seen:
            raise BadImage("a TIFF file whose pages lead back to each other", "damaged TIFF")
        if len(seen) >= MOST_PAGES:
            raise BadImage(f"a TIFF file of more than {MOST_PAGES:,} pages", "too many pages")
        seen.add(place)
        file.seek(place)
        (count,) = struct.unpack(order + count_form, file.read(count_size))
        if count > MOST_TAGS:
            raise BadImage(f"a TIFF directory of {count:,} entries", "damaged TIFF")
        content = file.read(count * entry + place_size)
        (following,) = struct.unpack_from(order + place_form, content, count * entry)
        if not _subfile(content, order, count, entry) & 0b101:
            yield place
        place = following


def _subfile(content: bytes, order: str, count: int, entry: int) -> int:
    """Bit 0: a smaller copy of a page; bit 2: a mask of one."""
    for start in range(0, count * entry, entry):
        tag, _ = struct.unpack_from(order + "HH", content, start)
        if tag == SUBFILE:
            (value,) = struct.unpack_from(order + "I", content, start + entry - (4 if entry == 12 else 8))
            return int(value)
    return 0


def _page(file: Bounded, place: int, max_megapixels: float) -> TiffPage:
    """A directory that was looked at before memory is taken for its pixels."""
    from tifffile import TiffFile, TiffPage

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what is wrong is said by us
    others: dict[str, Any] = {
        f"is_{name}": False for name in ("ome", "lsm", "scanimage", "ndpi", "imagej", "nih", "stk", "mmstack")
    }
    file.seek(0)  # tifffile takes the place of a file for its beginning
    opened = TiffFile(cast(BinaryIO, file), _multifile=False, **others)
    opened.filehandle.seek(place)
    page = TiffPage(opened, index=0)
    if page.compression not in COMPRESSIONS:
        name = getattr(page.compression, "name", str(page.compression)).lower()
        raise BadImage(
            f"a TIFF compressed as {name:.20}, not read here: save it with deflate", "a compression not read"
        )
    if page.dtype is None or page.imagedepth != 1 or page.tiledepth != 1:
        depth = f"{page.bitspersample!s:.20} bits of sample format {page.sampleformat!s:.20}"
        raise BadImage(f"a TIFF of {depth}, not read here: save it as 8 or 16 bits or as float32", "values not read")
    samples, itemsize = page.samplesperpixel, page.dtype.itemsize
    check_size("TIFF", samples, page.imagelength, page.imagewidth, itemsize, max_megapixels)
    height, width = (page.tilelength, page.tilewidth) if page.is_tiled else (1, page.imagewidth)
    room = max(4 * max_megapixels * 1e6, 1e6)  # tiles reach over the edges
    segments = math.prod(page.chunked)
    if height * width * samples * itemsize > 2 * room or min(height, width) < 1 or segments > MOST_SEGMENTS:
        raise BadImage(f"a TIFF in {segments:,} tiles of {height} x {width} pixels", "damaged TIFF")
    return page


def _kept(page: TiffPage) -> list[int]:
    """The samples that are no transparency, if there are others."""
    extras = [int(extra) for extra in page.extrasamples]
    first = page.samplesperpixel - len(extras)
    kept = [i for i in range(page.samplesperpixel) if i < first or extras[i - first] not in TRANSPARENCY]
    return kept or list(range(page.samplesperpixel))


def _palette(page: TiffPage) -> np.ndarray | None:
    """Its colours (3, count), if the samples are numbers of a palette."""
    if page.photometric != PALETTE or page.samplesperpixel != 1 or page.dtype is None or page.dtype.kind != "u":
        return None
    colours = page.colormap
    return colours if colours is not None and colours.shape == (3, 2**page.bitspersample) else None


@guarded("TIFF")
def describe(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    bounded = Bounded(file)
    places = list(directories(cast(BinaryIO, bounded)))
    if not places:
        raise BadImage("a TIFF file without pages", "no pages")
    page = _page(bounded, places[0], max_megapixels)
    coloured = _palette(page) is not None
    values = "uint16" if coloured else stored_type(cast(np.dtype, page.dtype))
    channels = 3 if coloured else len(_kept(page))
    sides = (page.imagelength, page.imagewidth)
    height, width = sides[::-1] if _turn(page)[0] else sides
    return Described("TIFF", len(places), channels, height, width, values)


def _turn(page: TiffPage) -> tuple[bool, bool, bool]:
    """Whether rows and columns are to be swapped, then rows flipped, then columns, for the image to stand upright."""
    tag: Any = page.tags.get(ORIENTATION)
    return TURNS.get(tag.value, STRAIGHT) if tag is not None and isinstance(tag.value, int) else STRAIGHT


def _upright(planes: np.ndarray, page: TiffPage) -> np.ndarray:
    swap, rows, columns = _turn(page)
    planes = planes.swapaxes(1, 2) if swap else planes
    return planes[:, :: -1 if rows else 1, :: -1 if columns else 1]


@guarded("TIFF")
def read(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    """A page; what the file marks as no data is filled as `stored` says, and a channel of transparency left out."""
    bounded = Bounded(file)
    number = -1
    for number, place in enumerate(directories(cast(BinaryIO, bounded))):  # noqa: B007
        if number == image:
            break
    else:
        check_image(image, number + 1)
    page = _page(bounded, place, max_megapixels)
    kept, palette = _kept(page), _palette(page)
    stored_type(cast(np.dtype, page.dtype))
    separate, _, height, width, samples = page.shaped
    values = page.asarray(maxworkers=1).reshape(separate, height, width, samples)
    planes = _upright(values[..., 0] if separate > 1 else values[0].transpose(2, 0, 1), page)
    if palette is not None:
        return stored(palette[:, planes[0]])
    planes = planes[kept]
    if page.photometric == WHITE_IS_ZERO and planes.dtype.kind in "ub":
        planes = ~planes if planes.dtype.kind == "b" else 2**page.bitspersample - 1 - planes.astype(np.uint32)
        planes = planes.astype(stored_type(values.dtype))
    return stored(planes, _missing(page, planes))


def _missing(page: TiffPage, planes: np.ndarray) -> np.ndarray | None:
    tag: Any = page.tags.get(NODATA)
    if tag is None:
        return None
    try:
        marker = float(str(tag.value).strip(" \0"))
    except ValueError:
        return None
    if not math.isfinite(marker):
        return None  # what is not finite is filled in any case
    return cast(np.ndarray, planes == np.array(marker).astype(planes.dtype)) if _fits(marker, planes.dtype) else None


def _fits(marker: float, kind: np.dtype) -> bool:
    """Whether a number of this type can be the marker: -9999 is none of uint16."""
    if kind.kind == "f":
        return True
    return marker.is_integer() and np.iinfo(kind).min <= marker <= np.iinfo(kind).max
