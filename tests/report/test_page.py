"""The report in a browser: what is shown, what answers, and nothing that it was not meant to do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byol.report import build, page
from tests.chaos.scale import often
from tests.report.test_report import HOSTILE, VERDICTS, copied, data_of, trained

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def written(run: Path) -> Path:
    return build.report([run], run.parent / "one.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window; ended with the tests."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives Chromium")
    with api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


class Watched:
    """A page in the browser, and everything that it should not do."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.page.on("dialog", lambda d: self.wrong.append(d.message))
        self.page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else self.wrong.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#environment")

    def place_of(self, image: int) -> tuple[float, float]:
        """Where on the screen an image of the map is."""
        self.page.eval_on_selector("#map", "node => node.scrollIntoView({behavior: 'instant'})")
        x, y = self.page.eval_on_selector("canvas.world", "(node, i) => [node.atlas.sx(i), node.atlas.sy(i)]", image)
        box = self.page.locator("canvas.world").bounding_box()
        return box["x"] + x, box["y"] + y

    def close(self) -> None:
        assert self.wrong == []
        self.context.close()


def test_the_page_in_a_browser(browser: Any, written: Path) -> None:
    """Breaks if the page reports an error, a name runs, or the map does not answer pointer and keys (G21)."""
    watched, model = Watched(browser, written), data_of(written)
    view, shown = watched.page, model["runs"][0]
    assert VERDICTS[shown["verdict"]["word"]] in view.locator("h1").inner_text()
    text = view.locator("main").inner_text()
    for literal in ("<u>images</u>", "cut </script> short", HOSTILE[0], "run <i>one &amp;", "62.50% ± 3.12", "0.500"):
        assert literal in text
    assert "\\u202e" in text  # the mark that would turn the line around is spelled out
    assert view.locator(".chart svg path.main").count() >= 8
    gallery_names = model["galleries"][0]["names"]
    view.mouse.move(*watched.place_of(5))
    assert gallery_names[5].split("/")[-1] in view.locator("#tip").inner_text()
    view.mouse.click(*watched.place_of(5))
    near = view.locator(".near button")
    assert near.count() == 8
    nearest = shown["map"]["nearest"][5][0]
    assert gallery_names[nearest].split("/")[-1] in near.first.get_attribute("aria-label")
    near.first.click()
    assert view.eval_on_selector("canvas.world", "node => node.atlas.chosen") == nearest
    view.focus("canvas.world")
    for key in ("ArrowLeft", "ArrowRight", "+", "-", "0"):
        view.keyboard.press(key)
    assert view.eval_on_selector("canvas.world", "node => node.atlas.chosen !== null")
    view.keyboard.press("Escape")
    assert view.eval_on_selector("canvas.world", "node => node.atlas.chosen === null")
    pixels = "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, node.height).data).size"
    assert view.eval_on_selector("canvas.world", pixels) > 10
    assert view.locator(".views canvas").first.evaluate(pixels) > 10
    watched.close()


PIECES = [
    *(
        '"><img src=x onerror=alert(1)>',
        "</script><script>alert(2)</script>",
        "<!--",
        "-->",
        "]]>",
        "<svg/onload=alert(3)>",
    ),
    *(
        "javascript:alert(4)",
        "${alert(5)}",
        "{{7*7}}",
        "&lt;b&gt;",
        "&#60;",
        "\\u003cb",
        "'",
        '"',
        "`",
        "\\",
        "%SCRIPT%",
        "\0",
    ),
    *("\u202e", "\u2028", "\ud800", "\x1b[31m", "\n", "<base href=//x>", "<meta http-equiv=refresh content=0;url=//x>"),
    *('" style="background:url(//x)', "<iframe srcdoc='<script>alert(6)</script>'>", "\ufeff", "ﷺ", "🙂"),
]


INERT = {"word", "state", "kind", "pages", "created"}  # of the model's own words, and pictures


def poisoned(value: Any, random: np.random.Generator, key: str = "") -> Any:
    """The model of a page with something hostile after every text that comes from outside."""
    if isinstance(value, dict):
        return {name: poisoned(item, random, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, random, key) for item in value]
    if not isinstance(value, str) or key in INERT:
        return value
    return value + "".join(PIECES[i] for i in random.integers(len(PIECES), size=int(random.integers(1, 5))))


def test_the_map_opens_with_pictures_and_moves_to_what_is_found(browser: Any, written: Path) -> None:
    """Breaks if the map stands below the curves, opens with bare points, or a search leaves what it finds far away."""
    watched = Watched(browser, written)
    order = watched.page.eval_on_selector_all("main section", "nodes => nodes.map(node => node.id)")
    assert order.index("map") < order.index("curves")
    state = "node => [node.atlas.pictures, node.atlas.scale, node.atlas.cx, node.atlas.cy]"
    before = watched.page.eval_on_selector("canvas.world", state)
    assert before[0] is True
    assert watched.page.locator("#map button[aria-pressed=true]", has_text="Images").count() == 1
    name = watched.page.eval_on_selector("canvas.world", "node => node.atlas.gallery.names[3]")
    watched.page.fill("#map input", name)
    pictures, scale, x, y = watched.page.eval_on_selector("canvas.world", state)
    own = watched.page.eval_on_selector("canvas.world", "node => [node.atlas.px(3), node.atlas.py(3)]")
    assert pictures is True
    assert scale > before[1]
    assert (x, y) == pytest.approx(own)
    watched.page.fill("#map input", "")
    assert watched.page.eval_on_selector("canvas.world", state) == before
    watched.close()


def test_hostile_texts_in_every_place(browser: Any, written: Path, tmp_path: Path) -> None:
    """Breaks if any text of the user's, at any place of the page, runs, loads, or is not shown as it is (G21)."""
    model = data_of(written)
    for number in range(often(2, 40)):
        random = np.random.default_rng(number)
        hostile = {n: v if n in ("help", "paper") else poisoned(v, random, n) for n, v in model.items()}
        path = tmp_path / "hostile.html"
        path.write_bytes(page.render(hostile))
        watched = Watched(browser, path)
        assert watched.page.locator("img, iframe, base, meta[http-equiv=refresh]").count() == 0
        assert watched.page.locator("script").count() == 2
        text = watched.page.locator("main").inner_text()
        assert sum(text.count(piece) for piece in PIECES[:3]) > 5  # as they are
        watched.close()


def test_curves_answer_pointer_and_keys(browser: Any, written: Path) -> None:
    """Breaks if a curve cannot be read off, with the mouse or without."""
    watched = Watched(browser, written)
    chart = watched.page.locator(".chart svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    watched.page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    assert "Loss after step 6" in watched.page.locator("#tip").inner_text()
    watched.page.mouse.move(2, 2)
    chart.focus()
    watched.page.keyboard.press("ArrowRight")
    assert "Loss after step 1," in watched.page.locator("#tip").inner_text()
    watched.close()


def test_phone_and_dark(browser: Any, written: Path) -> None:
    """Breaks if the page is wider than a phone, or the theme follows neither the system nor the button."""
    watched = Watched(browser, written, 390, "dark")
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    about = "nodes => nodes.map(node => node.getBoundingClientRect().width)"  # of the protocols, which have sentences
    widths = watched.page.eval_on_selector_all(".stacked td:nth-child(2)", about)
    assert min(widths) >= 200
    right = "nodes => nodes.map(node => node.getBoundingClientRect().right)"  # of the figures themselves
    assert max(watched.page.eval_on_selector_all(".stacked td.number", right)) <= 390
    background = "getComputedStyle(document.body).backgroundColor"
    dark = watched.page.evaluate(background)
    watched.page.click("#theme")
    light = watched.page.evaluate(background)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150 < 600 < sum(map(int, re.findall(r"\d+", light)))
    watched.close()


def test_several_runs_side_by_side(browser: Any, run: Path, tmp_path: Path) -> None:
    """Breaks if the fields that differ are not shown, curves are not overlaid, or one gallery is written twice."""
    copy = copied(run, tmp_path)
    record = json.loads((copy / "run.json").read_text())
    record["config"]["optim.lr"] = 0.123
    record["request"]["data"] = str(run.parent / "images")
    (copy / "run.json").write_text(json.dumps(record))
    out = build.report([run, copy], tmp_path / "two.html", images=12)
    assert len(data_of(out)["galleries"]) == 1
    watched = Watched(browser, out)
    rows = watched.page.locator("#differences tbody tr")
    assert rows.count() == 1
    assert "optim.lr" in rows.first.inner_text()
    assert "0.123" in rows.first.inner_text()
    assert watched.page.locator(".chart").first.locator("path.main").count() == 2
    watched.page.locator("#map .segments button", has_text="copy").click()
    assert watched.page.eval_on_selector("canvas.world", "node => node.atlas.run.name") == "copy"
    watched.close()
