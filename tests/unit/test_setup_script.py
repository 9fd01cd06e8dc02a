"""`tools/setup.sh` names missing programs of a machine before it installs anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "#!/bin/sh\n"


def set_up(tmp_path: Path, cargo: str) -> subprocess.CompletedProcess[str]:
    """Run `setup.sh build` with `cargo` first in the path, and without apt-get."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "awk", "sort", "head", "id", "echo"):
        path = shutil.which(name)
        assert path is not None
        (programs / name).symlink_to(path)
    for name, script in (("cargo", cargo), ("python3", f'exec "{sys.executable}" "$@"\n')):
        file = programs / name
        file.write_text(SCRIPT + script)
        file.chmod(0o755)
    return subprocess.run(
        ["bash", "tools/setup.sh", "build"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("cargo", "expected"),
    [
        (
            "echo 'error: no default toolchain is configured' >&2; exit 1\n",
            ("error: no default toolchain is configured", "rustup default stable"),
        ),
        ("echo cargo 1.60.0\n", ("cargo 1.60.0 is too old", "rustup update stable")),
    ],
)
def test_an_unusable_cargo_is_named(tmp_path: Path, cargo: str, expected: tuple[str, ...]) -> None:
    result = set_up(tmp_path, cargo)
    assert result.returncode == 1
    for text in expected:
        assert text in result.stderr
    assert "installing" not in result.stderr
