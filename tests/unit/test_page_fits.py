"""Layout of report pages in a real browser: length, overlapping texts and overflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.report import TWELVE, write_example, write_page
from tests.unit.browser import Browser, opened

#: ten screens of 800 px
TEN_SCREENS = 8000
#: tolerated overlap of text boxes [px]; a box has space above its letters
TOUCH = 2

#: pairs of overlapping texts of one figure, and texts outside their card
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
#: per figure with marks, except the line figure: number of marks of the fullest panel
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
    results = tmp_path_factory.mktemp("twelve") / "out"
    write_page(write_example(results, events=400, shape=TWELVE, invalid=("r005",)))
    return results


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("browser")) as session:
        yield session


def show(browser: Browser, page: Path, width: int) -> None:
    screen: dict[str, Any] = {"deviceScaleFactor": 1, "mobile": False}
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, **screen)
    browser.open(page.as_uri())
    browser.awaits("location.protocol === 'file:' && document.readyState === 'complete'")


def height(browser: Browser) -> int:
    return int(browser.value("document.documentElement.scrollHeight"))


def overflow(browser: Browser) -> int:
    """Width of the page beyond the viewport [px]."""
    return int(
        browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def test_report_of_twelve_runs_fits_ten_screens(browser: Browser, out: Path) -> None:
    show(browser, out / "report.html", 1280)
    assert browser.value('document.querySelectorAll("details[open]").length') == 0
    assert browser.value('document.querySelectorAll("#tables details").length') >= 4
    assert 2000 < height(browser) < TEN_SCREENS
    browser.value(OPEN_ALL)
    assert height(browser) > TEN_SCREENS
    assert browser.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_no_overlap_and_no_overflow(browser: Browser, out: Path, width: int) -> None:
    show(browser, out / "report.html", width)
    assert overflow(browser) == 0
    assert browser.value(COLLISIONS) == []
    browser.value(OPEN_ALL)
    assert overflow(browser) == 0
    assert browser.value(COLLISIONS) == []


def test_figures_have_more_than_three_marks(browser: Browser, out: Path) -> None:
    show(browser, out / "report.html", 1280)
    browser.value(OPEN_ALL)
    marks = dict(browser.value(MARKS))
    assert marks
    assert min(marks.values()) > 3, marks
    # three predictions, costs, terms or means are in tables
    prefixes = ("predictions of", "costs of", "pareto of", "effects of")
    assert not [name for name in marks if name.startswith(prefixes)]
    text = browser.value("document.body.innerText")
    for phrase in ("Means at each level", "cost of DELETE", "disk × journal", "DELETE (basis)"):
        assert phrase in text
    assert "Not shown" not in text


def test_checks_detect_layout_errors(browser: Browser, out: Path) -> None:
    show(browser, out / "report.html", 390)
    browser.value('document.querySelector("main").style.minWidth = "500px"')
    assert overflow(browser) > 0
    show(browser, out / "report.html", 1280)
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


def test_treatment_tables_fit_at_1200_px(browser: Browser, tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=400)
    write_page(out)
    show(browser, out / "report.html", 1200)
    browser.value(OPEN_ALL)
    boxes = "[...document.querySelectorAll('#answer .scroll')]"
    assert browser.value(f"{boxes}.length") == 2
    assert set(browser.value(f"{boxes}.map(t => t.scrollWidth - t.clientWidth)")) == {0}
    # a wider table scrolls in its box, which indicates it, up to the last column
    browser.value(
        f"{boxes}[0].querySelectorAll('tr').forEach(row => {{"
        "for (let i = 0; i < 12; i++) row.append(row.lastElementChild.cloneNode(true));"
        "row.lastElementChild.textContent = 'the very last'; })"
    )
    assert browser.value(f"{boxes}[0].scrollWidth - {boxes}[0].clientWidth") > 100
    assert overflow(browser) == 0
    style = f"getComputedStyle({boxes}[0])"
    assert browser.value(f"{style}.overflowX") == "auto"
    assert browser.value(f"{style}.backgroundImage.split('gradient(').length") == 5
    browser.value(f"{boxes}[0].scrollLeft = 1e6")
    remaining = (
        f"{boxes}[0].getBoundingClientRect().right - "
        f"{boxes}[0].querySelector('tbody tr').lastElementChild.getBoundingClientRect().right"
    )
    assert browser.value(remaining) >= -1


@pytest.mark.parametrize("width", [1280, 390])
def test_table_of_files_is_not_truncated(browser: Browser, out: Path, width: int) -> None:
    show(browser, out / "runs" / "r001" / "report.html", width)
    assert overflow(browser) == 0
    if width == 1280:
        hidden = "[...document.querySelectorAll('#files .scroll')].map(t => t.scrollWidth - t.clientWidth)"
        assert set(browser.value(hidden)) == {0}
        row = "document.querySelector('#files tbody tr').getBoundingClientRect().height"
        assert browser.value(row) < 110
