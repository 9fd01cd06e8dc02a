"""Make docs/figures/demo-report.webp: the top of the demo's report in Chromium, as `make picture` calls it.

python tools/report_figure.py REPORT.html [PICTURE.webp]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "figures" / "demo-report.webp"
#: pixels of the window; all of it is the picture
SIZE = (1180, 1500)
#: largest picture, so that clones stay small
LARGEST_BYTES = 150_000


def picture(report: Path, figure: Path) -> None:
    """Write the top of a report as WebP; SystemExit without Chromium or if the file is too large."""
    program = shutil.which("chromium") or sys.exit("no chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="penstock-figure-") as scratch:
        shot = Path(scratch) / "report.png"
        subprocess.run(
            [
                *(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                f"--user-data-dir={scratch}/profile",
                f"--window-size={SIZE[0]},{SIZE[1]}",
                f"--screenshot={shot}",
                report.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        with Image.open(shot) as image:
            image.convert("RGB").save(figure, "WEBP", quality=60, method=6)
    if figure.stat().st_size > LARGEST_BYTES:
        sys.exit(f"{figure} has {figure.stat().st_size} bytes; expected {LARGEST_BYTES} at most")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    picture(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else FIGURE)
