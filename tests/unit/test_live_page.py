"""The live page in Chromium: sizes, colour schemes, keyboard, accessibility, server restarts."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.host.journal.announce import Announcement
from penstock.host.journal.journal import Journal
from penstock.parts import server
from tests.support import commands

sync_api = pytest.importorskip("playwright.sync_api")

TOKEN = "a-token-of-many-letters"
SIZES = {"desktop": (1280, 900), "phone": (360, 740)}

#: number of texts, and those with a contrast below 4.5 (WCAG 2.2, 1.4.3), or 3 if large
FAINT = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = rgba(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
      if (found[3] > 0) return null;
    }
    return rgba(getComputedStyle(document.documentElement).colorScheme === "dark" ? "black" : "white");
  };
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || element.closest("script,style")) continue;
    if (!element.checkVisibility()) continue;
    const under = ground(element);
    if (!under) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(rgba(style.color)), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    looked += 1;
    const text = walk.currentNode.data.trim().slice(0, 40);
    if (ratio < (large ? 3 : 4.5)) faint.push([text, ratio.toFixed(2)]);
  }
  return [looked, faint];
}
"""


class Served:
    """`penstock serve` with its own state directory. It can be restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(folder / "state"),
            "PENSTOCK_RUNTIME": str(folder / "run"),
        }
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        self._log = folder / "log"
        self.port = 0
        self.begin()

    def begin(self) -> None:
        argv = ["serve", "--token-file", str(self._token), "--port", str(self.port)]
        self.process = commands.popen(
            [sys.executable, "-m", "penstock", *argv],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self._log.open("a"),
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, self._log.read_text()
        self.port = int(self.url.rsplit(":", 1)[1])

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("live"))
    yield server
    server.end()


@pytest.fixture(scope="module")
def announcement(served: Served) -> Iterator[Announcement]:
    """Announcement of a study, as written by `penstock run`."""
    runtime_before = os.environ.get("PENSTOCK_RUNTIME")
    os.environ["PENSTOCK_RUNTIME"] = served.environment["PENSTOCK_RUNTIME"]
    run = {"run_id": "r003", "attempt": 1, "levels": {"disk": "hdd"}, "phase": "workload"}
    try:
        with Announcement(
            "study",
            "wal-depth",
            question="How deep?",
            planned=8,
            done_before=0,
            left=6,
            left_s=75,
            made=2,
            failed=1,
            invalid=0,
            runs=[{**run, "began_utc_ns": time.time_ns()}],
        ) as announcement:
            yield announcement
    finally:
        os.environ.pop("PENSTOCK_RUNTIME")
        if runtime_before is not None:
            os.environ["PENSTOCK_RUNTIME"] = runtime_before


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(params=[(s, c) for s in SIZES for c in ("light", "dark")], ids="-".join)
def page(
    request: pytest.FixtureRequest, chromium: Any, served: Served, announcement: Announcement
) -> Iterator[Any]:
    size, scheme = request.param
    width, height = SIZES[size]
    yield from shown(chromium, served, width, height, scheme)


@pytest.fixture
def desktop(chromium: Any, served: Served, announcement: Announcement) -> Iterator[Any]:
    yield from shown(chromium, served, *SIZES["desktop"], "light")


def until(page: Any, expression: str, within_s: float = 60) -> None:
    """Wait until an expression is true in the page.

    Playwright's `wait_for_function` violates the page's content security policy.
    """
    deadline = time.monotonic() + within_s
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, (expression, page.inner_text("body")[:800])
        page.wait_for_timeout(50)


def shown(chromium: Any, served: Served, width: int, height: int, scheme: str) -> Iterator[Any]:
    """Yield the page after its first sample. `page.complaints` are errors of its console."""
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda m: page.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(f"{served.url}/live#token={TOKEN}")
    until(page, "document.getElementById('sampled').dataset.utcMs")
    page.wait_for_selector("#running-cards article")
    yield page
    context.close()


def test_page_fits_and_is_readable(page: Any) -> None:
    """Fails if content is wider than the screen, too faint, or blocked by the page's policy."""
    wide, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner
    looked, faint = page.evaluate(FAINT)
    assert looked > 30
    assert faint == []
    assert page.complaints == []
    # positive control: a grey with too little contrast on both backgrounds
    page.evaluate("document.querySelector('.facts').style.color = 'rgb(127 127 127 / 60%)'")
    assert page.evaluate(FAINT)[1]
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_announced_study_is_updated_in_place(desktop: Any, announcement: Announcement) -> None:
    card = desktop.locator("#running-cards article").first
    assert card.locator("h3 .name").inner_text() == "wal-depth"
    desktop.evaluate("document.querySelector('#running-cards article').mark = 1")
    assert "2 of 8 runs made, 1 failed, 6 left, about 1 min 15 s to go" in card.inner_text()
    assert "r003: workload" in card.inner_text()
    announcement.say(made=3, left=5, left_s=60, runs=[])
    try:
        until(
            desktop,
            "document.querySelector('#running-cards').innerText.includes('3 of 8 runs made')",
        )
        # the element is the same: focus and reading position stay
        assert desktop.evaluate("document.querySelector('#running-cards article').mark") == 1
    finally:
        announcement.say(made=2, left=6, left_s=75)


def test_alert_appears_in_a_live_region(desktop: Any, announcement: Announcement) -> None:
    row = {"rule": "disk_busy > 90%", "entity": "vda", "since_ns": time.time_ns()}
    message = "disk_busy > 90%: disk_busy of vda was 97 %"
    announcement.add("alerts", {**row, "action": "abort", "words": message, "run_id": "r003"})
    item = desktop.locator("[role=log] li", has_text=message).first
    item.wait_for()
    assert "error: " in item.inner_text()
    assert "wal-depth r003" in item.inner_text()


def test_keyboard_navigation(desktop: Any) -> None:
    """Fails if the focus order differs from the page's order, or the focus is invisible."""
    focused = []
    for _ in range(4):
        desktop.keyboard.press("Tab")
        focused.append(
            desktop.evaluate(
                "[document.activeElement.textContent.trim(), "
                "parseFloat(getComputedStyle(document.activeElement).outlineWidth)]"
            )
        )
    assert [text for text, _ in focused] == ["Skip to Running", "Running", "Use", "Patterns"]
    assert all(width >= 2 for _, width in focused)
    desktop.keyboard.press("Shift+Tab")
    desktop.keyboard.press("Enter")
    assert desktop.evaluate("document.activeElement.id") == "use"


def test_accessibility_tree(desktop: Any) -> None:
    session = desktop.context.new_cdp_session(desktop)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    elements = [
        (n["role"]["value"], (n.get("name") or {}).get("value", ""), n)
        for n in nodes
        if not n.get("ignored") and "role" in n
    ]
    named = {(role, name) for role, name, _ in elements}
    assert ("main", "") in named
    assert ("navigation", "Parts of this page") in named
    for part in ("Running", "Use", "Patterns", "Ended runs", "Findings", "Nodes and disks"):
        assert ("region", part) in named
    assert ("log", "Findings") in named
    assert any(role == "status" for role, _, _ in elements)
    (bar,) = (
        n for role, name, n in elements if role == "progressbar" and name == "Runs of wal-depth"
    )
    assert float(bar["value"]["value"]) in (2, 0.25)
    levels = [
        int(p["value"]["value"])
        for role, _, n in elements
        if role == "heading"
        for p in n["properties"]
        if p["name"] == "level"
    ]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    unnamed = [
        role for role, name, _ in elements if role in ("link", "button", "textbox") and not name
    ]
    assert unnamed == []


def test_page_reconnects_after_a_server_restart(desktop: Any, served: Served) -> None:
    before = desktop.evaluate("BigInt(document.getElementById('sampled').dataset.tNs).toString()")
    served.end()
    until(desktop, "document.getElementById('state').textContent.includes('does not answer')")
    served.begin()
    until(desktop, "document.getElementById('state').textContent === 'Live.'")
    until(desktop, f"BigInt(document.getElementById('sampled').dataset.tNs) > {before}n")
    assert desktop.locator("#running-cards article").count() == 1


def test_wrong_token_shows_the_login_form(chromium: Any, served: Served) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{served.url}/live#token=something-else-entirely")
    page.wait_for_selector("#login:not([hidden])")
    assert page.locator("#token").get_attribute("type") == "password"
    assert "Invalid token" in page.locator("#state").inner_text()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    until(page, "document.getElementById('state').textContent === 'Live.'")
    assert TOKEN not in page.url
    context.close()


def test_user_token_shows_only_visible_experiments(
    chromium: Any, served: Served, announcement: Announcement
) -> None:
    def monitor(*arguments: str) -> str:
        argv = [sys.executable, "-m", "penstock", "monitor", *arguments]
        environment = {**served.environment, "PENSTOCK_SERVER": served.url}
        result = commands.run(
            argv, env=environment, check=True, capture_output=True, text=True, timeout=60
        )
        return result.stdout.strip()

    token = monitor("token", "ada")
    monitor("start", "hidden-one")
    monitor("start", "shared-one", "--shared")
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.goto(f"{served.url}/live#token={token}")
        until(page, "document.querySelectorAll('#experiments-rows tr').length === 1")
        assert page.locator("#state").inner_text() == "Live: experiments of ada, and shared ones."
        text = page.locator("main").inner_text()
        assert "shared-one#1" in text
        # neither experiments of other users nor activity of the host
        assert "hidden-one" not in text
        assert "wal-depth" not in text
        assert not page.locator("#use").is_visible()
    finally:
        context.close()
        for name in ("hidden-one", "shared-one"):
            monitor("rm", name)


def test_shares_and_times_are_formatted_as_in_reports(desktop: Any) -> None:
    script = (Path(server.__file__).parent / "templates" / "live.js").read_text()
    functions = script[: script.index("\nsetInterval(")]

    def value(expression: str) -> Any:
        return desktop.evaluate(f"(() => {{{functions}\nreturn {expression};}})()")

    chips = "diskFeatures({bad_space: {share: 0.07}}).map((c) => c.textContent)"
    assert value(chips) == ["7 % bad"]
    assert value("[0.00125, 0.125, 1].map(percent)") == ["0.125 %", "12.5 %", "100 %"]
    assert value("clock(new Date(2026, 10, 30, 14, 5, 9).getTime())") == "14:05:09"


def test_line_of_few_samples_is_visible(desktop: Any) -> None:
    """Fails if the first samples occupy only some pixels at the right edge."""
    lines = "[...document.querySelectorAll('.spark polyline')].map((e) => e.getAttribute('points'))"
    until(desktop, f"({lines}).some((points) => points.split(' ').length > 1)")
    wide = [p.split(" ") for p in desktop.evaluate(lines) if len(p.split(" ")) > 1]
    assert all(float(points[0].split(",")[0]) <= 12 for points in wide)
    assert desktop.locator("nav a", has_text="Dashboards of experiments").count() == 1


def test_dashboards_shade_phases_and_zoom(chromium: Any, served: Served, tmp_path: Path) -> None:
    begin = 1_700_000_000
    rows = [f"{(begin + k) * 10**9},{k + 1}" for k in range(60)]
    (tmp_path / "load.csv").write_text("\n".join(["t,v", *rows]) + "\n")

    def monitor(*arguments: str) -> None:
        argv = [sys.executable, "-m", "penstock", "monitor", *arguments]
        environment = {**served.environment, "PENSTOCK_SERVER": served.url}
        commands.run(argv, env=environment, check=True, capture_output=True, timeout=60)

    monitor("start", "phased", "--at", str(begin))
    for at, kind, phase in (
        (5, "begin", "load"),
        (20, "end", "load"),
        (20, "begin", "read"),
        (40, "end", "read"),
    ):
        monitor("mark", "phased", f"--{kind}", phase, "--at", str(begin + at))
    monitor(
        "push", "phased", str(tmp_path / "load.csv"), "-c", "v", "--time", "t", "-m", "node_load1"
    )
    monitor("stop", "phased", "--at", str(begin + 60))
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC")
    complaints: list[str] = []
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{served.url}/dashboards?experiment=phased%231#token={TOKEN}")
        until(page, "document.querySelectorAll('.plots svg').length > 0")
        shades = (
            "[...document.querySelector('.plots svg').querySelectorAll('.phase')]"
            ".map((e) => [e.className.baseVal, +e.getAttribute('width')])"
        )
        (load, read) = page.evaluate(shades)
        assert [load[0], read[0]] == ["phase", "phase other"]
        assert load[1] / read[1] == pytest.approx(15 / 20)
        # the panel Network used needs the capacity of the link
        assert "link_bps" in page.locator(".plots .none", has_text="capacity").first.inner_text()
        times = (
            "[...document.querySelectorAll('.plots svg text')].slice(-2).map((e) => e.textContent)"
        )
        assert page.evaluate(times) == ["22:13:20", "22:14:20"]
        box = page.locator(".plots svg").first.bounding_box()
        left, wide = box["x"] + box["width"] * 40 / 320, box["width"] * 276 / 320
        page.mouse.move(left + wide * 0.5, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(left + wide * 0.75, box["y"] + 20)
        page.mouse.up()
        until(page, f"({times})[0] !== '22:13:20'")
        assert page.evaluate(times) == ["22:13:50", "22:14:05"]
        page.locator(".plots svg").first.dblclick()
        until(page, f"({times})[0] === '22:13:20'")
        assert complaints == []
    finally:
        context.close()
        monitor("rm", "phased")


def test_sampler_stops_without_viewers(chromium: Any, served: Served) -> None:
    """Fails if the sampler continues after the last page is closed."""
    runtime = Path(served.environment["PENSTOCK_RUNTIME"])

    def wait_for_sampler(expected: bool) -> None:
        deadline = time.monotonic() + 60
        while bool(list(runtime.glob("live-use-*"))) != expected:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{served.url}/live#token={TOKEN}")
    wait_for_sampler(True)
    context.close()
    wait_for_sampler(False)
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{served.url}/live#token={TOKEN}")
    wait_for_sampler(True)
    served.end()
    wait_for_sampler(False)
    context.close()
    journal = Path(served.environment["PENSTOCK_STATE"]) / "journal.jsonl"
    assert not [e for e in Journal(journal).open_entries() if e.kind == "process"]
    served.begin()
