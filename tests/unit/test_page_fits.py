"""The page of a first study in a real browser: how long it is, what collides, what is wider than a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.report import TWELVE, write_example, write_page
from tests.unit.browser import Browser, opened

#: ten screens of 800 px
TEN_SCREENS = 8000
#: two texts may touch by this much, px: a box of text has room above its letters
TOUCH = 2

#: pairs of texts of one figure that lie on each other; texts of figures that leave their card
COLLISIONS = """
(() => {
  const found = [];
  for (const plot of document.querySelectorAll("svg.plot")) {
    const texts = [...plot.querySelectorAll("text")].filter(t => t.getClientRects().length);
    const boxes = texts.map(t => t.getBoundingClientRect());
    const card = plot.closest("section").getBoundingClientRect();
    boxes.forEach((a, i) => {
      if (a.right > card.right || a.left < card.left) found.push([texts[i].textContent, "outside"]);
      boxes.slice(i + 1).forEach((b, k) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > TOUCH && high > TOUCH) found.push([texts[i].textContent, texts[i + 1 + k].textContent]);
      });
    });
  }
  return found;
})()
""".replace("TOUCH", str(TOUCH))
#: for each figure of marks (the one of lines aside, which rings some): how many the fullest panel has
MARKS = """
[...document.querySelectorAll("svg.plot")].filter(p => p.getClientRects().length).map(plot => [
  plot.getAttribute("aria-label"),
  Math.max(0, ...[...plot.querySelectorAll("g[id*='-axes_']")].map(
    panel => panel.querySelectorAll("[data-tip]").length)),
]).filter(([name, marks]) => marks && name !== "delivered")
"""
OPEN_ALL = 'document.querySelectorAll("details").forEach(d => { d.open = true; })'


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("twelve") / "out"
    write_page(write_example(place, events=400, shape=TWELVE, invalid=("r005",)))
    return place


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("browser")) as one:
        yield one


def shown(browser: Browser, page: Path, width: int) -> None:
    screen: dict[str, Any] = {"deviceScaleFactor": 1, "mobile": False}
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, **screen)
    browser.open(page.as_uri())
    browser.awaits("location.protocol === 'file:' && document.readyState === 'complete'")


def height(browser: Browser) -> int:
    return int(browser.value("document.documentElement.scrollHeight"))


def overhang(browser: Browser) -> int:
    """By how much the page is wider than what is seen of it [px]."""
    return int(
        browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def test_twelve_runs_are_told_in_ten_screens(browser: Browser, out: Path) -> None:
    shown(browser, out / "report.html", 1280)
    assert browser.value('document.querySelectorAll("details[open]").length') == 0
    assert browser.value('document.querySelectorAll("#tables details").length') >= 4
    assert 2000 < height(browser) < TEN_SCREENS
    browser.value(OPEN_ALL)
    assert height(browser) > TEN_SCREENS
    assert browser.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_collides_and_nothing_is_wider_than_the_screen(
    browser: Browser, out: Path, width: int
) -> None:
    shown(browser, out / "report.html", width)
    assert overhang(browser) == 0
    assert browser.value(COLLISIONS) == []
    browser.value(OPEN_ALL)
    assert overhang(browser) == 0
    assert browser.value(COLLISIONS) == []


def test_no_picture_of_three_marks(browser: Browser, out: Path) -> None:
    shown(browser, out / "report.html", 1280)
    browser.value(OPEN_ALL)
    marks = dict(browser.value(MARKS))
    assert marks
    assert min(marks.values()) > 3, marks
    # predictions of three treatments, three costs, three terms and means of three levels: in tables
    gone = ("predictions of", "costs of", "pareto of", "effects of")
    assert not [name for name in marks if name.startswith(gone)]
    text = browser.value("document.body.innerText")
    for told in ("Means at each level", "cost of DELETE", "disk × journal", "DELETE (basis)"):
        assert told in text
    assert "Not shown" not in text


def test_what_is_planted_is_found(browser: Browser, out: Path) -> None:
    shown(browser, out / "report.html", 390)
    browser.value('document.querySelector("main").style.minWidth = "500px"')
    assert overhang(browser) > 0
    shown(browser, out / "report.html", 1280)
    browser.value(
        """(() => {
          const plot = document.querySelector("#patterns svg.plot");
          const one = plot.querySelector("text"), other = one.cloneNode(true);
          other.setAttribute("y", Number(one.getAttribute("y") || 0) + 3);
          one.after(other);
        })()"""
    )
    assert browser.value(COLLISIONS)
    browser.value(
        'document.querySelector("#responses [data-tip]").closest("svg")'
        '.querySelectorAll("[data-tip]").forEach((m, i) => { if (i > 2) m.remove(); })'
    )
    assert min(dict(browser.value(MARKS)).values()) <= 3
    browser.value('document.querySelector("main").style.paddingTop = "8000px"')
    assert height(browser) > TEN_SCREENS


def test_the_treatments_of_four_factors_are_all_seen_at_1200_px(
    browser: Browser, tmp_path: Path
) -> None:
    out = write_example(tmp_path / "out", events=400)
    write_page(out)
    shown(browser, out / "report.html", 1200)
    browser.value(OPEN_ALL)
    boxes = "[...document.querySelectorAll('#answer .scroll')]"
    assert browser.value(f"{boxes}.length") == 2
    assert set(browser.value(f"{boxes}.map(t => t.scrollWidth - t.clientWidth)")) == {0}
    # a table that is wider scrolls in its box, which shows it, to the end of the last column
    browser.value(
        f"{boxes}[0].querySelectorAll('tr').forEach(row => {{"
        "for (let i = 0; i < 12; i++) row.append(row.lastElementChild.cloneNode(true));"
        "row.lastElementChild.textContent = 'the very last'; })"
    )
    assert browser.value(f"{boxes}[0].scrollWidth - {boxes}[0].clientWidth") > 100
    assert overhang(browser) == 0
    style = f"getComputedStyle({boxes}[0])"
    assert browser.value(f"{style}.overflowX") == "auto"
    assert browser.value(f"{style}.backgroundImage.split('gradient(').length") == 5
    browser.value(f"{boxes}[0].scrollLeft = 1e6")
    left = (
        f"{boxes}[0].getBoundingClientRect().right - "
        f"{boxes}[0].querySelector('tbody tr').lastElementChild.getBoundingClientRect().right"
    )
    assert browser.value(left) >= -1


@pytest.mark.parametrize("width", [1280, 390])
def test_a_trace_s_table_of_files_is_not_cut_off(browser: Browser, out: Path, width: int) -> None:
    shown(browser, out / "runs" / "r001" / "report.html", width)
    assert overhang(browser) == 0
    if width == 1280:
        cut = "[...document.querySelectorAll('#files .scroll')].map(t => t.scrollWidth - t.clientWidth)"
        assert set(browser.value(cut)) == {0}
        row = "document.querySelector('#files tbody tr').getBoundingClientRect().height"
        assert browser.value(row) < 110
