"""The suite's own bounds: tests skipped or run again beyond them fail it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest
from pathlib import Path

def test_comes_out_right_the_second_time(request):
    seen = Path(request.config.rootpath) / "seen"
    if not seen.exists():
        seen.touch()
        raise AssertionError

@pytest.mark.skip(reason="planted")
def test_not_run():
    pass
"""


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 0),
        (("--most-reruns=1", "--most-skips=1"), 0),
        (("--most-reruns=0",), 1),
        (("--most-skips=0",), 1),
    ],
)
def test_reruns_and_skips_are_counted(
    tmp_path: Path, options: tuple[str, ...], status: int
) -> None:
    (tmp_path / "conftest.py").write_bytes((Path(__file__).parents[1] / "conftest.py").read_bytes())
    (tmp_path / "test_planted.py").write_text(SUITE)
    words = [sys.executable, "-m", "pytest", "-q", "--reruns=1", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*words, *options, "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "rerun: 1" in done.stdout
    assert "skipped: 1" in done.stdout
