"""Parts of the package: the core works without each of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import penstock
from tests.support import commands
from tools import house

PACKAGE = Path(penstock.__file__).parent
PARTS = sorted(
    path.name for path in (PACKAGE / "parts").iterdir() if path.is_dir() and "_" not in path.name
)
#: prints the imported copy, loads every row of the core's tables, and prints the places of runs
CODE = """
import penstock
from penstock.plugins import RUN_PLACES, TABLES
print(penstock.__file__)
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


HOSTS = "hosts: {listen: 127.0.0.1, workers: [{name: a, ssh: nowhere.invalid}]}"
STORE = STUDY.replace(
    "platform: {nodes: [{name: n}]}",
    "platform: {nodes: [{name: n}], store: {engine: directory, storage: [n], clients: [n]}}",
)
#: by part: a study that needs it, and the error without it
NEEDED = {
    "remote": (STUDY + HOSTS, "found conductor of runs 'hosts'; expected none"),
    "stores": (STORE, "found the engine 'directory'; expected none"),
}


class Copy:
    """The package without one part and its importers, as a folder of symbolic links."""

    def __init__(self, part: str, folder: Path) -> None:
        self.folder, self.package = folder, folder / "penstock"
        importers = [other for other, needed in house.DECLARED.items() if part in needed]
        parts = PACKAGE / "parts"
        absent = {parts, *(parts / name for name in (part, *importers))}
        (self.package / "parts").mkdir(parents=True)
        for path in {*PACKAGE.iterdir(), *parts.iterdir()} - absent:
            (self.package / path.relative_to(PACKAGE)).symlink_to(path)
        assert not (self.package / "parts" / part).exists()

    def run(self, *argv: str, status: int = 0) -> str:
        """Run Python with the copy. Return stdout, or stderr if `status` is not 0."""
        start = commands.CODE[:-1] if argv[0] == "-c" else [sys.executable]
        result = commands.run(
            [*start, *argv],
            env={
                **os.environ,
                "PYTHONPATH": str(self.folder),
                "PENSTOCK_STATE": str(self.folder / "state"),
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert result.returncode == status, result.stderr
        return result.stderr if status else result.stdout


@pytest.mark.parametrize("part", PARTS)
def test_core_works_without_a_part(part: str, tmp_path: Path) -> None:
    copy = Copy(part, tmp_path)
    (tmp_path / "s.study.yaml").write_text(STUDY)
    imported, places = copy.run("-c", CODE).splitlines()
    assert imported == f"{copy.package / '__init__.py'}"
    assert ("guest" in places) == (part != "guests")
    assert "2 treatments" in copy.run("-m", "penstock", "plan", "s.study.yaml")


@pytest.mark.parametrize("part", NEEDED)
def test_study_that_needs_a_missing_part_is_refused(part: str, tmp_path: Path) -> None:
    text, message = NEEDED[part]
    (tmp_path / "s.study.yaml").write_text(text)
    copy = Copy(part, tmp_path)
    assert message in copy.run("-m", "penstock", "run", "s.study.yaml", "-o", "out", status=2)
    assert not (tmp_path / "out").exists()


#: prints the status of two requests to a server
SERVER = """
from starlette.testclient import TestClient
from penstock.parts.server.app import application
from penstock.parts.server.traces import Served
with TestClient(application(Served([]), "token", ["testserver"])) as client:
    client.headers["Authorization"] = "Bearer token"
    print([client.get(path).status_code for path in ("/api/v1/state", "/exp")])
"""


def test_server_works_without_experiments(tmp_path: Path) -> None:
    assert Copy("monitoring", tmp_path).run("-c", SERVER) == "[200, 404]\n"
    assert Copy("prediction", tmp_path / "other").run("-c", SERVER) == "[200, 200]\n"


#: makes the bundle `b` of a recording of the core, and loads the checks of packages
RECORDED = """
from pathlib import Path
import penstock.testing
from penstock.observe.trace.recordings.bundle import new_bundle, write_recording
from penstock.observe.trace.recordings.recording import Recording
calls = [{"t_ns": n, "op": "read", "file": "/a", "size_bytes": 4096} for n in range(9)]
recording = Recording.of_calls(Path(), calls, {"format": "test", "not_known": []})
with new_bundle(Path("b"), {"command": [], "run_id": "r001"}) as bundle:
    write_recording(bundle, recording)
"""
NONE = "expected none: the part that adds it is not installed"
#: by command line: the error without the formats of other programs
NO_FORMAT = {
    "platform import f --from distem": f"--from: found 'distem'; {NONE}",
    "import f -o c --format blktrace": f"--format: found 'blktrace'; {NONE}",
    "import f -o c": "f: found '?' at its beginning; expected metrics (",
    "import no -o c --format iolog": f"--format: found 'iolog'; {NONE}",
    "import b.tar.zst": "found no -o; expected the directory of the bundle, or --as NAME; no archive",
    "export b b.tar.zst": "found no -o for b.tar.zst; expected where to; no archive format is",
    "export b perfetto -o c": "found format 'perfetto'; expected json, jsonl, fio",
}


def test_formats_of_other_programs_without_their_part(tmp_path: Path) -> None:
    copy = Copy("interchange", tmp_path)
    copy.run("-c", RECORDED)
    (tmp_path / "f").write_text("?")
    for line, message in NO_FORMAT.items():
        assert message in copy.run("-m", "penstock", *line.split(), status=2), line
    assert "9 events" in copy.run("-m", "penstock", "export", "b", "jsonl", "-o", "b.jsonl")
    assert "Of traces none;" in copy.run("-m", "penstock", "import", "--help")
    assert not (tmp_path / "c").exists()
