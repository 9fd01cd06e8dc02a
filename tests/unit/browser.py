"""A real browser on the developer's protocol, over two pipes: what became of a page, what was refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: what is said of an expression whose page went to another while it was evaluated
_GONE = "navigated or closed"


class PageGone(Exception):
    """The page that was asked is no longer there."""


class Browser:
    """One tab of a headless Chromium."""

    def __init__(self, place: Path) -> None:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("no chromium here")
        theirs, self._to = os.pipe()
        self._from, back = os.pipe()
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        words += ["--disable-background-networking", f"--user-data-dir={place}/profile"]
        words += ["--window-size=1280,1600", "--remote-debugging-pipe", "about:blank"]
        quiet = subprocess.DEVNULL
        # the protocol's pipes are the file descriptors 3 and 4
        shim = ["/bin/bash", "-c", 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"', str(theirs), str(back)]
        self._process = subprocess.Popen(
            [*shim, *words], stdout=quiet, stderr=quiet, pass_fds=(theirs, back)
        )
        os.close(theirs)
        os.close(back)
        self._numbers = itertools.count(1)
        self._read = b""
        self._session: str | None = None
        #: what the page's scripts or its policy complained of
        self.complaints: list[str] = []
        (tab,) = (t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        asked = {"targetId": tab["targetId"], "flatten": True}
        self._session = self.ask("Target.attachToTarget", **asked)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **asked: Any) -> Any:
        """One command of the protocol, to its answer."""
        number = next(self._numbers)
        said = {"id": number, "method": method, "params": asked}
        if self._session is not None:
            said["sessionId"] = self._session
        os.write(self._to, json.dumps(said).encode() + b"\0")
        while (told := self._next()).get("id") != number:
            if told.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(told["params"])[:500])
        if _GONE in told.get("error", {}).get("message", ""):
            raise PageGone(told["error"]["message"])
        assert "error" not in told, told
        return told["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._read += piece
        line, _, self._read = self._read.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def open(self, url: str) -> None:
        """Loads a page, from nothing."""
        self.complaints.clear()
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        told = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return told["result"].get("value")

    def awaits(self, expression: str, within_s: float = 60) -> None:
        """Until an expression holds in the page."""
        until = time.monotonic() + within_s
        while True:
            shown = "a page that is going to another"
            with contextlib.suppress(PageGone):
                if self.value(expression):
                    return
                shown = self.value("document.body.innerText.slice(0, 500)")
            assert time.monotonic() < until, (expression, shown, self.complaints)
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Clicks on what a selector names; the page may go with it."""
        with contextlib.suppress(PageGone):
            self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            self.ask("Browser.close")
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)


@contextlib.contextmanager
def opened(place: Path) -> Iterator[Browser]:
    """A browser until the end of the block; skips the test where there is none."""
    browser = Browser(place)
    try:
        yield browser
    finally:
        browser.close()
