"""The parts of the report by themselves: map, neighbours, clusters, tiles, curves, and text that stays text."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from byol.report import build, collect, embedding, gallery, page, tiles


def test_the_slope_of_the_map_is_that_of_t_sne() -> None:
    """Breaks if grid, kernels or weights are wrong: against the whole sum over pairs in float64."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(6, 16, generator=random)[torch.arange(400) % 6] + torch.randn(400, 16, generator=random)
    edges = embedding.pairs(embedding.neighbours(features, 10))
    shares = torch.zeros(400, 400, dtype=torch.float64)
    ones = torch.full((len(edges.start),), 1 / len(edges.start), dtype=torch.float64)
    shares.index_put_((edges.start, edges.end), ones, accumulate=True)
    for width, accuracy in ((1e-3, 1e-4), (1.0, 2e-3), (8.0, 3e-2)):
        place = torch.randn(400, 2, generator=random) * width
        apart = place.double()[:, None] - place.double()
        kernel = 1 / (1 + apart.square().sum(-1))
        kernel.fill_diagonal_(0)
        exact = 4 * ((3 * shares - kernel / kernel.sum()) * kernel)[..., None] * apart
        found = embedding.gradient(place, edges, exaggeration=3.0).double()
        assert (found - exact.sum(1)).norm() < accuracy * exact.sum(1).norm()


def test_alike_images_are_near_on_the_map() -> None:
    """Breaks if map or clusters mix what the representations keep apart."""
    random = torch.Generator().manual_seed(1)
    kinds = torch.arange(240) % 6
    features = 3 * torch.randn(6, 32, generator=random)[kinds] + torch.randn(240, 32, generator=random)
    place = embedding.layout(features)
    nearest = torch.cdist(place, place).fill_diagonal_(torch.inf).topk(5, largest=False).indices
    assert (kinds[nearest] == kinds[:, None]).float().mean() > 0.98
    groups = embedding.clusters(features, 6)
    assert len(set(zip(groups.tolist(), kinds.tolist(), strict=True))) == 6


@pytest.mark.parametrize("count", [2, 3, 7, 9])
def test_a_few_images_have_a_map_too(count: int) -> None:
    """Breaks if more neighbours or directions are asked for than there are, or the map changes from call to call."""
    features = torch.randn(count, 5, generator=torch.Generator().manual_seed(0))
    drawn = gallery.drawn_map(features, 0)
    assert drawn == gallery.drawn_map(features, 0)
    assert len(drawn["places"]) == 2 * count
    assert np.isfinite(drawn["places"]).all()
    assert all(len(row) == min(8, count - 1) for row in drawn["nearest"])


def test_neighbours_are_exact() -> None:
    """Breaks if the chunks of the search are put together wrongly: against numpy's full sort."""
    features = np.random.default_rng(0).normal(size=(1203, 7))  # two chunks, the second short
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    found = embedding.neighbours(torch.from_numpy(features), 4)
    assert np.allclose(found.cosines.numpy(), -np.sort(-cosines, axis=1)[:, :4], atol=1e-5)
    assert np.allclose(np.take_along_axis(cosines, found.rows.numpy(), 1), found.cosines.numpy(), atol=1e-5)


def test_clusters_are_numbered_by_size() -> None:
    """Breaks if cluster 1 on the page is not the largest."""
    centres = torch.eye(3)[torch.tensor([0] * 5 + [1] * 30 + [2] * 12)]
    groups = embedding.clusters(centres + 0.01, 3)
    assert groups.tolist() == [2] * 5 + [0] * 30 + [1] * 12


def test_sheets_give_every_tile_back_and_keep_their_budget() -> None:
    """Breaks if a tile lands elsewhere than the page's script looks for it, or a noisy folder makes a huge page."""
    random = np.random.default_rng(0)
    colours = random.integers(0, 255, (700, 3, 1, 1), dtype=np.uint8)
    made = [torch.from_numpy(np.broadcast_to(c, (3, 32, 32)).copy()) for c in colours]
    sheet = tiles.sheets(made, 10**7)
    for index in (0, 23, 24, 575, 576, 699):  # ends of rows and pages
        with Image.open(io.BytesIO(base64.b64decode(sheet["pages"][index // sheet["each"]]))) as image:
            row, column = divmod(index % sheet["each"], sheet["columns"])
            middle = image.convert("RGB").getpixel((column * 32 + 16, row * 32 + 16))
        assert np.abs(np.array(middle) - colours[index, :, 0, 0].astype(int)).max() <= 6
    noise = [torch.from_numpy(random.integers(0, 255, (3, 64, 64), dtype=np.uint8)) for _ in range(300)]
    budget = build.CHARACTERS * 300 // 5000
    assert sum(map(len, tiles.sheets(noise, budget)["pages"])) <= budget
    smaller = tiles.sheets(noise, budget // 8)
    assert sum(map(len, smaller["pages"])) <= budget // 8
    assert smaller["side"] < 64  # noise does not compress: size had to give way


def test_a_tile_is_the_middle_of_its_image() -> None:
    """Breaks if thumbnails are squeezed instead of cut, or shifted."""
    image = torch.zeros(3, 40, 80, dtype=torch.uint8)
    image[:, :, 20:60] = 200
    assert (tiles.tile(image, 32) == 200).all()
    assert [tiles.side_for(pixels, 64) for pixels in (500, 64, 63, 40, 8)] == [64, 64, 48, 32, 32]


def test_long_curves_keep_their_spikes() -> None:
    """Breaks if thinning drops the one bad step that explains a run."""
    values = [1.0] * 50_000
    values[31_337], values[44_444] = 99.0, -5.0
    steps, kept = collect.thinned(list(range(50_000)), values)
    assert len(kept) <= collect.MOST_POINTS
    assert {(31_337, 99.0), (44_444, -5.0)} <= set(zip(steps, kept, strict=True))
    assert (steps[0], steps[-1]) == (0, 49_999)
    assert steps == sorted(steps)


LEAVES = st.text() | st.floats() | st.integers() | st.none()
NESTED = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@settings(max_examples=80, deadline=None)
@given(NESTED)
def test_no_text_escapes_from_the_data(value: Any) -> None:
    """Breaks if some text could end the script element, open a comment in it, or be no JSON."""
    made = page.embedded({"value": value, "again": ["</script><script>", "<!--", "]]>"]})
    assert not set(made) & set("<>&")
    assert made.isascii()
    assert json.loads(made)["again"] == ["</script><script>", "<!--", "]]>"]

    def plain(item: Any) -> Any:
        if isinstance(item, float):
            return item if np.isfinite(item) else None
        if isinstance(item, dict):
            return {name: plain(part) for name, part in item.items()}
        return [plain(part) for part in item] if isinstance(item, list) else item

    assert json.loads(made)["value"] == plain(value)
