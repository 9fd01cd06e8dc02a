"""Parts of the package: each can be deleted, and the core works without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
PARTS = sorted(
    path.name for path in (PACKAGE / "parts").iterdir() if path.is_dir() and "_" not in path.name
)
#: loads every row of every table of the core, and prints the places of runs
CODE = """
from penstock.plugins import RUN_PLACES, TABLES
for table in TABLES:
    for name in table:
        table.load(name)
print(list(RUN_PLACES))
"""
STUDY = """
penstock: 1
name: plain
question: Which?
factors: {size: {levels: [1, 2]}}
platform: {nodes: [{name: n}]}
workload: {command: 'echo {size}', expected: 2s}
responses: {wall: {from: wall_s, unit: s, better: lower}}
"""


@pytest.mark.parametrize("part", PARTS)
def test_the_core_works_without_a_part(part: str, tmp_path: Path) -> None:
    copy = tmp_path / "penstock"
    copytree(PACKAGE, copy, ignore=ignore_patterns("*.so", "__pycache__", part))
    assert not (copy / "parts" / part).exists()
    for library in PACKAGE.glob("*.so"):
        (copy / library.name).symlink_to(library)
    (tmp_path / "s.study.yaml").write_text(STUDY)

    def run(*argv: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *argv], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import penstock; print(penstock.__file__)"
    assert run("-c", where) == f"{copy / '__init__.py'}\n"
    places = run("-c", CODE)
    assert ("guest" in places) == (part != "guests")
    assert "2 treatments" in run("-m", "penstock", "plan", "s.study.yaml")
