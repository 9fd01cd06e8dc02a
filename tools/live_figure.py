"""Make docs/figures/live.webp: the live page of a real study, in Chromium, on a desktop and on a phone.

    sudo .venv/bin/python tools/live_figure.py

The server and the study have their own state directories. The pictures are taken during the second of the
four runs of the study.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "figures" / "live.webp"
TOKEN = "a-token-of-the-figure-alone"
STUDY = """
penstock: 1
name: scan-or-seek
question: Does random access cost anything on this disk?
factors:
  disk: {levels: [hdd-7200, rate-20mib]}
  pattern: {levels: {sequential: read, random: randread}}
design: {kind: full, replicates: 1, seed: 7}
platform:
  nodes:
    - name: node1
      memory: 256MiB
      disks: [{name: data, profile: "{disk}", size: 256MiB}]
workload:
  prepare: fio --name=fill --filename={data}/file --size=128MiB --rw=write --bs=1M --output=/dev/null
  mutates: false
  command: >-
    fio --name=job --filename={data}/file --size=128MiB --rw={pattern} --bs=64k --direct=1 --time_based
    --runtime=20 --output-format=json
  parser: fio
responses: {bandwidth: {from: read_bandwidth, unit: MiB/s, better: higher}}
observers: {monitor: {interval: 100ms}, trace: {}}
alerts: ["emulated_disk_busy > 95% for 5s"]
"""
#: size, scheme, and height of the page in the figure
SHOTS = ((1180, 1000, "light"), (390, 1000, "dark"))
GAP = 24


def until(study: subprocess.Popen[bytes], holds: Callable[[], Any]) -> None:
    """Wait for a condition; end the script if the study ended before."""
    while not holds():
        if study.poll() is not None:
            sys.exit(f"the study ended with status {study.returncode}")
        time.sleep(0.2)


def opened(browser: Any, url: str, width: int, height: int, scheme: str) -> Any:
    """Open the page with a size and a scheme."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{url}/live#token={TOKEN}")
    return page


def main() -> int:
    """Make the figure."""
    with tempfile.TemporaryDirectory(prefix="penstock-figure-") as scratch:
        place = Path(scratch)
        (place / "token").write_text(TOKEN)
        (place / "token").chmod(0o600)
        (place / "s.yaml").write_text(STUDY)
        environment = {
            **os.environ,
            "PENSTOCK_STATE": str(place / "state"),
            "PENSTOCK_RUNTIME": str(place / "run"),
        }
        options = ["serve", "--port", "0", "--token-file", str(place / "token")]
        penstock = [sys.executable, "-m", "penstock"]
        server = subprocess.Popen(
            [*penstock, *options], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        url = server.stdout.readline().strip().rstrip("/")
        running = [
            *penstock,
            "run",
            str(place / "s.yaml"),
            "-o",
            str(place / "out"),
            "--keep-going",
        ]
        study = subprocess.Popen(running, env=environment)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"),
                    args=["--no-sandbox", "--disable-gpu"],
                )
                pages = [opened(browser, url, *shot) for shot in SHOTS]
                shown = "document.querySelectorAll('#ended-rows tr').length"
                until(study, lambda: pages[0].evaluate(shown))
                shown = "document.querySelectorAll('#tracers tbody tr').length"
                until(study, lambda: pages[0].evaluate(shown))
                time.sleep(10.0)
                pictures = [Image.open(io.BytesIO(p.screenshot())).convert("RGB") for p in pages]
                browser.close()
        finally:
            study.send_signal(signal.SIGINT)
            study.wait(120)
            server.terminate()
            server.wait(30)
    figure = Image.new("RGB", (sum(p.width for p in pictures) + GAP, SHOTS[0][1]), "#f6f7f9")
    at = 0
    for picture in pictures:
        figure.paste(picture, (at, 0))
        at += picture.width + GAP
    figure.save(FIGURE, "WEBP", quality=82, method=6)
    print(FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
