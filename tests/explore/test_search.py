"""Search, twins, strangers and picks by an encoder: against loops over all pairs, and from files to files."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from byol import neighbours, networks
from byol.checkpoint import save_encoder
from byol.config import Config, apply
from byol.errors import BadData, UsageError
from byol.evals import features
from byol.explore import search
from tests.conftest import TINY, write_images


def quiet(_: int) -> None:
    """In the place of a progress bar."""


def unit(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(count, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def npz(path: Path, values: np.ndarray) -> str:
    np.savez(path, features=values.astype(np.float32), names=np.array([f"{i}.jpg" for i in range(len(values))]))
    return str(path)


def cosines(values: np.ndarray) -> np.ndarray:
    """In float64, of centred vectors."""
    centred = values - values.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    return centred @ centred.T


def test_a_sheet_says_what_it_shows() -> None:
    """Breaks if the names and figures below the images of a sheet belong to others."""
    far = [(1, "a/one.jpg", 0.5, "x"), (2, "two.jpg", 0.25, "y")]
    ranks = search.Answer(("rank", "name", "distance", "nearest"), far, "", [[7, 3]], None)
    assert search.captions(ranks) == [["one.jpg\n0.5", "two.jpg\n0.25"]]
    rows = [(1, "a", "", 1.0), (1, "b", "a", 0.99), (2, "a-very-long-name.jpg", "", 1.0), (2, "d", "c", 0.98)]
    groups = search.Answer(("group", "name", "same_as", "similarity"), rows, "", [[0, 4], [2, 9]], None)
    assert search.captions(groups) == [["a\n1.0", "b\n0.99"], ["y-long-name.jpg\n1.0", "d\n0.98"]]


def test_other_neighbours_by_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a block's own place is wrong, so that an image is its own neighbour or a nearer one is lost.

    Small blocks make the bank several parts, so that a query's own row is in another part than the first.
    """
    monkeypatch.setattr(neighbours, "COSINES", 300 * neighbours.ASKED)
    vectors = unit(1100, 8)
    near, rows = neighbours.nearest(vectors, vectors, 5, torch.arange(1100), quiet)
    every = (vectors.double() @ vectors.double().T).numpy()
    np.fill_diagonal(every, -2)
    np.testing.assert_allclose(near.numpy(), -np.sort(-every, axis=1)[:, :5], atol=1e-6)
    assert (rows != torch.arange(1100)[:, None]).all()


@pytest.mark.parametrize(("rows", "k"), [(7, 20), (319, 20), (321, 20), (5003, 20), (5003, 313), (70_000, 3)])
def test_nearest_by_sorting(rows: int, k: int) -> None:
    """Breaks if the best of a group, of the rows beyond the last whole group or of a later part of the bank is lost."""
    bank, queries = unit(rows, 512 if rows == 70_000 else 8), unit(33, 512 if rows == 70_000 else 8, seed=1)
    values, found = neighbours.nearest(bank, queries, k)
    every = queries @ bank.T
    np.testing.assert_allclose(values.numpy(), -np.sort(-every.numpy(), axis=1)[:, :k], atol=1e-6)
    np.testing.assert_allclose(every.gather(1, found).numpy(), values.numpy(), atol=1e-6)
    assert all(len(set(row)) == min(k, rows) for row in found.tolist())


def test_pairs_are_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a pair across blocks, or on either side of the diagonal, is lost or counted twice."""
    monkeypatch.setattr(neighbours, "ASKED", 256)
    monkeypatch.setattr(neighbours, "COSINES", 300 * 256)  # parts of 300 rows, which end in the middle of a block
    vectors = unit(1100, 4)
    blocks = list(neighbours.pairs(vectors, 0.99, quiet))
    listed = [(int(a), int(b)) for lower, higher, _ in blocks for a, b in zip(lower, higher, strict=True)]
    found = set(listed)
    assert len(listed) == len(found)
    every = (vectors @ vectors.T).numpy()
    assert found == {(a, b) for a, b in zip(*np.where(every >= 0.99), strict=True) if a < b}
    assert len(found) > 100


def test_joined_groups_are_connected_components() -> None:
    """Breaks if a long chain, or two groups that meet late, are not one: against scipy."""
    sparse = pytest.importorskip("scipy.sparse", reason="needs scipy, of the extra eval")
    random = np.random.default_rng(0)
    one, two = random.integers(0, 500, (2, 300))
    chain = np.arange(400, 499)
    one, two = np.concatenate([one, chain[::-1]]), np.concatenate([two, chain[::-1] + 1])
    lowest = np.arange(500)
    for part in np.array_split(np.arange(len(one)), 7):
        neighbours.join(lowest, one[part], two[part])
    graph = sparse.coo_matrix((np.ones(len(one)), (one, two)), shape=(500, 500))
    labels = sparse.csgraph.connected_components(graph, directed=False)[1]
    for row in range(500):
        assert lowest[row] == np.flatnonzero(labels == labels[row])[0]


def test_search_finds_what_a_loop_finds(tmp_path: Path) -> None:
    """Breaks if the mean is not subtracted from both sides, the order is wrong, or a file's ranks differ."""
    values = np.random.default_rng(0).random((200, 12)) + 3
    answer = search.search(Path("17.jpg"), npz(tmp_path / "f.npz", values), count=5)
    order = np.argsort(-cosines(values)[17], kind="stable")[:5]
    assert [row[1] for row in answer.rows] == [f"{i}.jpg" for i in order]
    assert answer.rows[0] == (1, "17.jpg", 1.0)
    np.testing.assert_allclose([row[2] for row in answer.rows], cosines(values)[17][order], atol=1e-4)
    with pytest.raises(UsageError, match=r"no file nothing\.jpg"):
        search.search(Path("nothing.jpg"), str(tmp_path / "f.npz"))


def test_outliers_by_hand(tmp_path: Path) -> None:
    """Breaks if the distance is not the mean over the k nearest others, or the planted stranger is not first."""
    random = np.random.default_rng(1)
    values = random.normal(0, 0.1, (60, 6)) + np.repeat(np.eye(6)[:3] * 4, 20, axis=0)
    values[33] = [0, 0, 0, 0, 0, 5]
    answer = search.outliers(npz(tmp_path / "f.npz", values), k=4)
    assert answer.rows[0][1] == "33.jpg"
    every = cosines(values)
    np.fill_diagonal(every, -2)
    far = 1 - np.sort(every, axis=1)[:, -4:].mean(1)
    assert [row[1] for row in answer.rows[:5]] == [f"{i}.jpg" for i in np.argsort(-far)[:5]]
    np.testing.assert_allclose([row[2] for row in answer.rows], np.sort(far)[::-1], atol=1e-4)
    assert len(search.outliers(str(tmp_path / "f.npz"), count=7).rows) == 7


def test_dedupe_groups_by_the_threshold(tmp_path: Path) -> None:
    """Breaks if twins are missed, strangers are joined, or another than the first is kept."""
    values = np.random.default_rng(2).normal(size=(50, 16))
    values[40] = values[3]
    values[41] = values[3] + 0.01
    values[20] = values[8] * 1.5
    answer = search.dedupe(npz(tmp_path / "f.npz", values), threshold=0.98)
    assert [row[:3] for row in answer.rows] == [
        (1, "3.jpg", ""),
        (1, "40.jpg", "3.jpg"),
        (1, "41.jpg", "3.jpg"),
        (2, "8.jpg", ""),
        (2, "20.jpg", "8.jpg"),
    ]
    search.write(answer, tmp_path / "list.txt")
    assert [line.split("\t")[0] for line in (tmp_path / "list.txt").read_text().splitlines()] == [
        "40.jpg",
        "41.jpg",
        "20.jpg",
    ]


def kept_by_a_loop(every: np.ndarray, threshold: float) -> list[int]:
    """For each row the first earlier row that is kept and that similar, or itself: two plain loops."""
    kept: list[int] = []
    for row in range(len(every)):
        near = [other for other in range(row) if kept[other] == other and every[other, row] >= threshold]
        kept.append(near[0] if near else row)
    return kept


def test_members_are_compared_with_the_one_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if groups are chained, or a row keeps others before it has met every lower row: against two loops."""
    monkeypatch.setattr(neighbours, "ASKED", 64)
    monkeypatch.setattr(neighbours, "COSINES", 100 * 64)  # parts of 100 rows, which end in the middle of a block
    vectors = unit(400, 3)
    kept = np.arange(400)
    for lower, higher, cosines in neighbours.pairs(vectors, 0.9, quiet):
        assert (cosines >= 0.9).all()
        neighbours.keep_first(kept, lower, higher)
    assert kept.tolist() == kept_by_a_loop((vectors @ vectors.T).numpy(), 0.9)
    assert 10 < len(set(kept.tolist())) < 200


def test_dedupe_does_not_chain(tmp_path: Path) -> None:
    """Breaks if a row of images, each near the next, becomes one group whose ends are unlike."""
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    circle = npz(tmp_path / "f.npz", np.stack([np.cos(angles), np.sin(angles), 0 * angles], 1))
    answer = search.dedupe(circle, threshold=0.98, yes=True)
    assert len(answer.rows) > 30
    assert min(row[3] for row in answer.rows) >= 0.98


def test_dedupe_shows_the_nearest_pairs_that_it_leaves_out(tmp_path: Path) -> None:
    """Breaks if the pairs shown are not the most similar ones below the threshold."""
    values = np.random.default_rng(3).normal(size=(40, 16))
    for row, noise in ((30, 0.05), (31, 0.15), (32, 0.2)):
        values[row] = values[row - 20] + noise * np.random.default_rng(row).normal(size=16)
    every = cosines(values)
    answer = search.dedupe(npz(tmp_path / "f.npz", values), threshold=0.995)
    assert [row[1] for row in answer.rows] == ["10.jpg", "30.jpg"]
    assert "threshold of 0.995" in answer.notes[0]
    assert answer.notes[1:] == (
        f"11.jpg and 31.jpg: {every[11, 31]:.4f}",
        f"12.jpg and 32.jpg: {every[12, 32]:.4f}",
    )


def test_dedupe_refuses_to_call_most_images_repeats(tmp_path: Path) -> None:
    """Breaks if the encoder of a collapsed run can have a folder emptied without a second word."""
    values = np.random.default_rng(4).normal(size=(100, 16))
    values[60:] = values[:40]
    file = npz(tmp_path / "f.npz", values)
    with pytest.raises(UsageError, match=r"40 of 100 images .* 30% .*--yes"):
        search.dedupe(file)
    assert len(search.dedupe(file, yes=True).rows) == 80
    values[70:] = np.random.default_rng(5).normal(size=(30, 16))
    assert len(search.dedupe(npz(tmp_path / "g.npz", values)).rows) == 20


def test_similarities_of_a_degenerate_encoder_are_called_so(tmp_path: Path) -> None:
    """Breaks if ten rows of 1.0 stand there without a word, or an encoder of ten directions is called degenerate."""
    random = np.random.default_rng(6)
    line = random.normal(size=(300, 1)) * np.ones(16) + 0.01 * random.normal(size=(300, 16))
    flat = search.search(Path("3.jpg"), npz(tmp_path / "flat.npz", line))
    assert flat.rows[-1][2] > 0.99
    assert "look alike to this encoder, which tells 1.0 directions apart" in flat.notes[0]
    uneven = np.concatenate([np.ones((270, 16)), -9 * np.ones((30, 16))]) + 0.01 * random.normal(size=(300, 16))
    assert search.search(Path("3.jpg"), npz(tmp_path / "uneven.npz", uneven)).notes  # two points of unlike weight
    full = npz(tmp_path / "full.npz", random.normal(size=(300, 10)))
    assert search.search(Path("3.jpg"), full).notes == ()


def test_coverage_is_near_the_best_possible() -> None:
    """Breaks if a pick is not the farthest, the figure is not the distance left, or the choice can change."""
    vectors = unit(14, 3)
    rows, radii = neighbours.covering(vectors, 4, quiet)
    distance = (2 - 2 * (vectors.double() @ vectors.double().T)).clamp_min(0).sqrt().numpy()
    for count in range(1, 5):
        left = distance[:, rows[:count]].min(1)
        assert abs(left.max() - radii[count - 1]) < 1e-3
        if count < 4:
            assert left[rows[count]] >= left.max() - 1e-6
    best = min(distance[:, list(group)].min(1).max() for group in combinations(range(14), 4))
    assert radii[-1] <= 2 * best + 1e-6
    assert neighbours.covering(vectors, 14, quiet)[0].tolist() == neighbours.covering(vectors, 14, quiet)[0].tolist()
    assert sorted(neighbours.covering(vectors, 14, quiet)[0]) == list(range(14))


def test_typical_picks_have_the_largest_gain_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if an old gain is taken for a new one: against greedy that looks at every gain again."""
    monkeypatch.setattr(neighbours, "LAZY", 7)
    vectors = unit(120, 5)
    rows, means = neighbours.representing(vectors, 15, quiet)
    similarity = (vectors.double() @ vectors.double().T).numpy()
    best, chosen = np.full(120, -1.0), list[int]()
    for place in range(15):
        gains = np.maximum(similarity - best, 0).sum(1)
        gains[chosen] = -1
        assert gains[rows[place]] >= gains.max() - 1e-4
        chosen.append(int(rows[place]))
        best = np.maximum(best, similarity[rows[place]])
        assert abs(means[place] - best.mean()) < 1e-5


def test_picks_leave_out_what_is_labelled_already(tmp_path: Path) -> None:
    """Breaks if an excluded image is picked or a count that is impossible is accepted."""
    file = npz(tmp_path / "f.npz", np.random.default_rng(3).normal(size=(40, 8)))
    first = search.pick(5, file)
    again = search.pick(5, file, exclude=[row[1] for row in first.rows])
    assert not {row[1] for row in first.rows} & {row[1] for row in again.rows}
    for count in (0, 41):
        with pytest.raises(UsageError, match="between 1 and 40"):
            search.pick(count, file)
    assert len({row[1] for row in search.pick(40, file, by="typical").rows}) == 40


def test_faiss_finds_most_of_them(tmp_path: Path) -> None:
    """Breaks if the approximate index is asked or read wrongly: nine in ten of the exact neighbours."""
    pytest.importorskip("faiss", reason="needs faiss, of the extra faiss")
    values = np.random.default_rng(4).normal(size=(600, 16))
    values[500] = values[7]
    file = npz(tmp_path / "f.npz", values)
    exact, rough = (search.outliers(file, k=3, approximate=flag).rows for flag in (False, True))
    assert np.mean([a[1] == b[1] for a, b in zip(exact[:50], rough[:50], strict=True)]) > 0.9
    assert search.dedupe(file, approximate=True).rows == search.dedupe(file).rows
    assert search.search(Path("7.jpg"), file, approximate=True).rows[1][1] in ("7.jpg", "500.jpg")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    values = {"network.encoder": "resnet18", "network.width": 0.05, "network.small_images": True, "data.resolution": 32}
    config = apply(Config(), values)
    torch.manual_seed(0)
    save_encoder(tmp_path / "encoder.safetensors", networks.encoder(config.network), config, {"step": 0})
    return tmp_path / "encoder.safetensors"


def test_from_images_to_files(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if names and features slip against each other, or a file's rows are not what was found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = write_images(tmp_path / "images", 24)
    (images / "class0" / "cut.jpg").write_bytes((images / "class0" / "000.jpg").read_bytes()[:300])
    with Image.open(images / "class0" / "004.jpg") as image:
        image.save(tmp_path / "copy.png")
    answer = search.search(tmp_path / "copy.png", str(encoder), str(images), count=3)
    assert answer.rows[0][1] == "class0/004.jpg"
    assert answer.rows[0][2] > 0.999
    assert not any("cut" in name for name in search.open_space(str(encoder), str(images)).names)
    search.write(answer, tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [row[1] for row in answer.rows]
    search.write(answer, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())[0] == dict(zip(answer.columns, answer.rows[0], strict=True))
    search.write(answer, tmp_path / "out.json", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as shown, Image.open(images / "class0" / "004.jpg") as first:
        tile = np.array(shown.crop((2, 2, 98, 98)), dtype=int)
        assert np.abs(tile - np.array(first.resize((96, 96), Image.Resampling.NEAREST), dtype=int)).max() <= 1
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(BadData):
        search.search(tmp_path / "text.jpg", str(encoder), str(images))
    with pytest.raises(UsageError, match="does not say which images"):
        search.dedupe(str(encoder))


def test_wrong_feature_files(tmp_path: Path) -> None:
    """Breaks if a file that is not of `embed` is a traceback, or objects in it are unpickled."""
    (tmp_path / "a.npz").write_text("no")
    np.savez(tmp_path / "b.npz", other=np.ones(3))
    np.savez(tmp_path / "c.npz", features=np.ones((2, 3)), names=np.array(["x", object()], dtype=object))
    for name in ("a", "b", "c", "missing"):
        with pytest.raises(UsageError):
            search.open_space(str(tmp_path / f"{name}.npz"))
    np.savez(tmp_path / "d.npz", features=np.ones((2, 3)), names=np.array(["x"]))
    with pytest.raises(BadData, match="do not belong"):
        search.open_space(str(tmp_path / "d.npz"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_features_that_are_not_finite_are_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: float
) -> None:
    """Breaks if one such row reaches a comparison: all distances would be NaN, and pick would repeat images."""
    values = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    values[7, 2] = bad
    names = np.array([f"{i}.png" for i in range(39)] + ["\x1b[2J.png"])
    np.savez(tmp_path / "f.npz", features=values, names=names)
    file = str(tmp_path / "f.npz")
    assert "Left out: 7.png (its features are not finite)" in (search.outliers(file), capsys.readouterr().err)[1]
    picked = [row[1] for row in search.pick(39, file).rows]
    assert sorted(picked) == sorted({*map(str, names[:39]), "\\x1b[2J.png"} - {"7.png"})
    every = search.dedupe(file, threshold=-1.0, yes=True)
    for answer in (every, search.outliers(file), search.pick(5, file, by="typical")):
        assert all(np.isfinite(value) for row in answer.rows for value in row if isinstance(value, float))
    np.savez(tmp_path / "f.npz", features=np.full((3, 4), bad, np.float32), names=names[:3])
    with pytest.raises(BadData, match="all 3 images are not finite"):
        search.outliers(file)


def test_an_encoder_whose_features_overflow_is_refused(folder: Path, tmp_path: Path) -> None:
    """Breaks if finite weights whose features are not finite give distances, scores or a map."""
    config = apply(Config(), TINY)
    module = networks.encoder(config.network)
    with torch.no_grad():
        module.bn1.weight.fill_(3e38)  # type: ignore[union-attr]
    save_encoder(tmp_path / "e.safetensors", module, config, {"step": 1})
    for use in (search.dedupe, search.outliers, features.embed):
        with pytest.raises(BadData, match="gives no usable features"):
            use(str(tmp_path / "e.safetensors"), str(folder))  # type: ignore[operator]
