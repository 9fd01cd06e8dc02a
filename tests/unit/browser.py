"""A headless browser, controlled by the DevTools protocol over two pipes."""

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

#: message about an expression whose page navigated during its evaluation
_GONE = "navigated or closed"


class PageGone(Exception):
    """The page navigated or closed during a command."""


class Browser:
    """One tab of a headless Chromium."""

    def __init__(self, place: Path) -> None:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("Chromium is not installed")
        browser_input, self._to = os.pipe()
        self._from, browser_output = os.pipe()
        argv = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        argv += ["--disable-background-networking", f"--user-data-dir={place}/profile"]
        argv += ["--window-size=1280,1600", "--remote-debugging-pipe", "about:blank"]
        quiet = subprocess.DEVNULL
        # the pipes of the protocol are the file descriptors 3 and 4
        shim = [
            "/bin/bash",
            "-c",
            'exec 3<&"$0" 4>&"$1"; shift; exec "$@"',
            str(browser_input),
            str(browser_output),
        ]
        self._process = subprocess.Popen(
            [*shim, *argv], stdout=quiet, stderr=quiet, pass_fds=(browser_input, browser_output)
        )
        os.close(browser_input)
        os.close(browser_output)
        self._numbers = itertools.count(1)
        self._read = b""
        self._session: str | None = None
        #: errors of the page's scripts, and violations of its policy
        self.complaints: list[str] = []
        (tab,) = (t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        params = {"targetId": tab["targetId"], "flatten": True}
        self._session = self.ask("Target.attachToTarget", **params)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """Result of one command of the protocol."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while (reply := self._next()).get("id") != number:
            if reply.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(reply["params"])[:500])
        if _GONE in reply.get("error", {}).get("message", ""):
            raise PageGone(reply["error"]["message"])
        assert "error" not in reply, reply
        return reply["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._read += piece
        line, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, url: str) -> None:
        """Load a page, starting from an empty one."""
        self.complaints.clear()
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return reply["result"].get("value")

    def awaits(self, expression: str, within_s: float = 60) -> None:
        """Wait until an expression holds in the page."""
        deadline = time.monotonic() + within_s
        while True:
            text = "a page that is going to another"
            with contextlib.suppress(PageGone):
                if self.value(expression):
                    return
                text = self.value("document.body.innerText.slice(0, 500)")
            assert time.monotonic() < deadline, (expression, text, self.complaints)
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click the element of a selector; the page may navigate."""
        with contextlib.suppress(PageGone):
            self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError):
            self.ask("Browser.close")
        self._process.wait(60)
        os.close(self._to)
        os.close(self._from)


@contextlib.contextmanager
def opened(place: Path) -> Iterator[Browser]:
    """A browser until the end of the block; skips the test without Chromium."""
    browser = Browser(place)
    try:
        yield browser
    finally:
        browser.close()
