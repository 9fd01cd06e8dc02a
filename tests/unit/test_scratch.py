"""Temporary directories end with their process, or at the start of the next one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.scratch import Scratch, remove_abandoned
from tests.support import commands

#: creates a directory, prints its path, and ends according to its first argument
USER = """
import os, signal, sys
from penstock.scratch import Scratch
scratch = Scratch("test")
(scratch.path / "file").write_text("x")
print(scratch.path, flush=True)
if sys.argv[1] == "fork":
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print(scratch.path.exists(), flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "wait":
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of temporary files."""
    (tmp_path / "t").mkdir()
    return tmp_path / "t"


def environment(place: Path) -> dict[str, str]:
    own = {"PENSTOCK_STATE": f"{place}-state", "PENSTOCK_RUNTIME": f"{place}-run"}
    return {**os.environ, **own, "TMPDIR": str(place)}


def use(end: str, place: Path) -> subprocess.CompletedProcess[str]:
    argv = [*commands.CODE, USER, end]
    return commands.run(argv, capture_output=True, text=True, env=environment(place))


def test_a_directory_is_private_and_removed_by_close(place: Path) -> None:
    with Scratch("test", place) as path:
        assert path.parent == place
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "file").write_text("x")
    assert list(place.iterdir()) == []


def test_a_directory_is_removed_at_exit(place: Path) -> None:
    assert use("exit", place).stdout.startswith(str(place))
    assert list(place.iterdir()) == []


def test_a_fork_leaves_the_directory_of_its_parent(place: Path) -> None:
    assert use("fork", place).stdout.splitlines()[-1] == "True"
    assert list(place.iterdir()) == []


def test_the_next_process_removes_the_directory_of_a_killed_one(place: Path) -> None:
    killed = use("kill", place)
    assert killed.returncode == -signal.SIGKILL
    assert list(place.iterdir()) == [Path(killed.stdout.strip())]
    use("exit", place)
    assert list(place.iterdir()) == []


def test_undo_removes_the_directory_of_a_killed_process(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("kill", place)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setenv("PENSTOCK_RUNTIME", f"{place}-run")
    undo(Journal(Path(f"{place}-journal")))
    assert list(place.iterdir()) == []


def test_a_directory_in_use_stays(place: Path) -> None:
    argv = [*commands.CODE, USER, "wait"]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with commands.popen(argv, env=environment(place), **options) as user:
        assert user.stdout is not None
        path = Path(user.stdout.readline().strip())
        remove_abandoned(place)
        assert (path / "file").exists()
    assert not path.exists()


def test_directories_of_others_and_links_stay(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to be another user")
    of_other_user, shared, outside = (
        place / name for name in ("penstock-scratch-a", "penstock-scratch-b", "outside")
    )
    for path in (of_other_user, shared, outside):
        path.mkdir(mode=0o700)
    os.chown(of_other_user, 54321, 54321)
    shared.chmod(0o777)
    (place / "penstock-scratch-c").symlink_to(outside)
    remove_abandoned(place)
    assert len(list(place.iterdir())) == 4


def test_a_killed_server_leaves_nothing_after_the_next(place: Path) -> None:
    argv = [sys.executable, "-m", "penstock", "serve", "--port", "0"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    for end in (signal.SIGKILL, signal.SIGTERM):
        with commands.popen(argv, env=environment(place), **options) as server:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("http")
            assert len(list(place.iterdir())) == 1
            server.send_signal(end)
    assert list(place.iterdir()) == []
