"""Daemons with an asynchronous start: ready after the wait, and gone after a stop at any time."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.host.processes.processes import Identity


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run"
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(path))
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def gone(daemon: Daemon, journal: Journal, runtime: Path) -> bool:
    """True if the daemon has ended and left neither a journal entry nor a file."""
    return (
        Identity.of(daemon.pid) is None
        and journal.open_entries() == []
        and list(runtime.iterdir()) == []
    )


def test_a_daemon_answers_after_the_wait(journal: Journal, runtime: Path) -> None:
    daemon = start_daemon("sampler", {}, journal, wait=False)
    (entry,) = journal.open_entries()
    assert entry.facts["pid"] == daemon.pid
    daemon.await_ready()
    daemon.await_ready()  # nothing to wait for
    assert daemon.fault() == ""
    assert not list(runtime.glob("*.json"))
    daemon.stop()
    assert gone(daemon, journal, runtime)


def test_a_stop_before_it_is_ready_leaves_nothing(journal: Journal, runtime: Path) -> None:
    daemon = start_daemon("sampler", {"outlive_owner": True}, journal, wait=False)
    assert list(runtime.iterdir())
    daemon.stop()
    assert gone(daemon, journal, runtime)


def test_the_wait_reports_a_daemon_that_cannot_start(journal: Journal, runtime: Path) -> None:
    daemon = start_daemon("sampler", {"interval_ns": "soon"}, journal, wait=False)
    with pytest.raises(PenstockError, match=r"sampler did not start.*expected i64"):
        daemon.await_ready()
    daemon.stop()
    assert gone(daemon, journal, runtime)
