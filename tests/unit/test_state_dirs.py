"""State and runtime directories are private, and directories of other users are refused."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.state import closed, runtime_dir, state_dir

#: a user id without an account, another one in each process that runs these tests
STRANGER = 20_000 + os.getpid() % 40_000
FALLEN_BACK = Path(f"/tmp/penstock-run-{STRANGER}")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def as_a_stranger(act: Callable[[], object]) -> str:
    """Result or error of `act` as text, in a process of another user without a session."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            for name in ("PENSTOCK_RUNTIME", "PENSTOCK_STATE", "XDG_RUNTIME_DIR"):
                os.environ.pop(name, None)
            text = str(act())
        except PenstockError as error:
            text = f"refused: {error}"
        except BaseException as error:
            text = repr(error)
        os.write(writes, text.encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


@pytest.fixture
def no_fall_back() -> Iterator[None]:
    def remove() -> None:
        if FALLEN_BACK.is_symlink():
            FALLEN_BACK.unlink()
        shutil.rmtree(FALLEN_BACK, ignore_errors=True)

    if os.geteuid() != 0:
        pytest.skip("needs root: to be another user")
    remove()
    yield
    remove()


def test_without_a_session_a_private_directory_is_created(no_fall_back: None) -> None:
    old = os.umask(0)
    try:
        assert as_a_stranger(runtime_dir) == f"{FALLEN_BACK}"
    finally:
        os.umask(old)
    assert (mode(FALLEN_BACK), FALLEN_BACK.stat().st_uid) == (0o700, STRANGER)
    assert as_a_stranger(runtime_dir) == f"{FALLEN_BACK}"


def test_a_directory_created_by_another_user_is_refused(no_fall_back: None) -> None:
    FALLEN_BACK.mkdir(mode=0o700)
    assert as_a_stranger(runtime_dir).startswith(f"refused: {FALLEN_BACK}: found")
    FALLEN_BACK.rmdir()
    FALLEN_BACK.symlink_to("/var/tmp")
    assert as_a_stranger(runtime_dir).startswith(f"refused: {FALLEN_BACK}: found a link")
    FALLEN_BACK.unlink()
    FALLEN_BACK.mkdir()
    FALLEN_BACK.chmod(0o775)
    os.chown(FALLEN_BACK, STRANGER, STRANGER)
    assert "mode 0775" in as_a_stranger(runtime_dir)


def test_other_users_cannot_list_or_read_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    old = os.umask(0)
    try:
        assert mode(state_dir()) == mode(runtime_dir()) == 0o700
        journal = Journal()
        journal.plan("directory", tmp_path / "d")
        with open(tmp_path / "run" / "f", "w", opener=closed) as file:
            file.write("x")
    finally:
        os.umask(old)
    assert mode(journal.path) == mode(tmp_path / "run" / "f") == 0o600


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="link"), open(tmp_path / "link", "w", opener=closed):
        pass
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_a_users_own_directory_is_closed_to_others(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to be another user")
    home = Path(tempfile.mkdtemp(dir="/var/tmp"))  # accessible to other users
    request.addfinalizer(lambda: shutil.rmtree(home))
    (home / "penstock").mkdir(parents=True)
    (home / "penstock").chmod(0o755)
    for path in (home, home / "penstock"):
        os.chown(path, STRANGER, STRANGER)
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    assert as_a_stranger(state_dir) == str(home / "penstock")
    assert mode(home / "penstock") == 0o700
