"""`penstock monitor run` runs its command even with a broken catalogue."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.catalogue import Catalogue
from penstock.errors import Away, PenstockError
from penstock.parts.monitoring.experiments.points import Batch, points
from penstock.parts.monitoring.outbox.client import Local, Patient
from penstock.parts.monitoring.outbox.delivery import Delivery
from tests.support import commands

Broken = Callable[[Path], Any]


def is_corrupt(state: Path) -> Any:
    (state / "archive.sqlite").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    return nullcontext()


def is_of_a_later_version(state: Path) -> Any:
    Catalogue(state / "archive.sqlite").close()
    with sqlite3.connect(state / "archive.sqlite") as index:
        index.execute("update alembic_version set version_num = '9999'")
    return nullcontext()


def lacks_its_tables(state: Path) -> Any:
    Catalogue(state / "archive.sqlite").close()
    with sqlite3.connect(state / "archive.sqlite") as index:
        index.execute("drop table runs")
    return nullcontext()


def is_a_directory(state: Path) -> Any:
    (state / "archive.sqlite").mkdir()
    return nullcontext()


@contextmanager
def is_locked(state: Path) -> Iterator[None]:
    Catalogue(state / "archive.sqlite").close()
    holder = sqlite3.connect(state / "archive.sqlite", isolation_level=None)
    holder.execute("pragma journal_mode = delete")
    holder.execute("begin exclusive")
    try:
        yield
    finally:
        holder.close()


def has_no_home(state: Path) -> Any:
    (state / "experiments").write_text("a file")
    return nullcontext()


def names_one_that_runs(state: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE", str(state))
        Local().start("x")
    return nullcontext()


BROKEN: tuple[Broken, ...] = (
    is_corrupt,
    is_of_a_later_version,
    lacks_its_tables,
    is_a_directory,
    is_locked,
    has_no_home,
    names_one_that_runs,
)


def monitored(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    full_environment = {
        **os.environ,
        "PENSTOCK_STATE": str(folder / "state"),
        "PENSTOCK_RUNTIME": str(folder / "run"),
        **environment,
    }
    full_environment.pop("PENSTOCK_SERVER", None)
    argv = [sys.executable, "-m", "penstock", "monitor", "run", "--name", "x", *options]
    argv += ["--", "sh", "-c", f"echo said; echo ran >> {folder}/ran; exit 7"]
    return commands.run(argv, env=full_environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("broken", BROKEN)
def test_command_runs_with_a_catalogue_that(tmp_path: Path, broken: Broken) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    with broken(tmp_path / "state"):
        result = monitored(tmp_path, "-o", str(tmp_path / "out"), "-i", "0.05")
    assert (result.returncode, (tmp_path / "ran").read_text()) == (7, "ran\n"), result.stderr
    assert result.stdout.startswith("said\n")
    assert "nothing is recorded" in result.stderr
    assert "Traceback" not in result.stderr
    # the requested output directory exists
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.parametrize("variable", ["PENSTOCK_STATE", "PENSTOCK_RUNTIME"])
def test_command_runs_without_a_writable_directory(tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").write_text("no directory")
    result = monitored(tmp_path, "--json", **{variable: str(tmp_path / "file" / "below")})
    assert (result.returncode, (tmp_path / "ran").read_text()) == (7, "ran\n"), result.stderr
    assert "Traceback" not in result.stderr
    assert "the command runs without being sampled" in result.stderr
    document = json.loads(result.stdout)
    assert (document["exit_status"], document["experiment"]) == (7, None)
    assert "file" in document["unrecorded"]


def test_missing_program_is_status_125(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "file" / "below")}
    argv = [sys.executable, "-m", "penstock", "monitor", "run", "--", "no-such-program"]
    result = commands.run(argv, env=environment, capture_output=True, text=True)
    assert result.returncode == 125
    assert "no-such-program" in result.stderr


class Failing:
    """Store that fails from the second call on."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            self.calls += 1
            if self.calls > 1:
                raise self.error

        return call


@pytest.mark.parametrize(
    "error",
    [PenstockError("No space left"), sqlite3.DatabaseError("malformed"), OSError(28, "full")],
)
def test_failing_store_is_reported_once_and_abandoned(error: Exception) -> None:
    messages: list[str] = []
    store = Failing(error)
    delivery = Delivery(store, "x#1", messages.append)  # type: ignore[arg-type]
    batch = Batch("s", 0, points(metric="m", utc_ns=[1], float=[1.0]))
    for _ in range(3):
        delivery.write(batch)
    delivery.note("n")
    delivery.stop(exit_status=0)
    assert store.calls == 2
    assert len(messages) == 1
    assert "the rest of x#1 is not recorded" in messages[0]


def test_locked_catalogue_is_unavailable(tmp_path: Path) -> None:
    with is_locked(tmp_path), pytest.raises(Away, match="another process has locked it"):
        Catalogue(tmp_path / "archive.sqlite", wait_s=0.1)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_catalogue_on_a_full_disk_is_not_to_be_removed(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", str(full)], check=True)
    try:
        (full / "fill").write_bytes(b"x" * 48_000)
        with pytest.raises(PenstockError, match="expected a writable file system") as failure:
            Catalogue(full / "archive.sqlite")
        assert "remove" not in str(failure.value)
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_other_commands_fail_with_a_broken_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    is_corrupt(tmp_path)
    with pytest.raises(PenstockError, match="cannot be used as a catalogue"):
        Local()
    assert Patient.leniently().start("x") == "x"
