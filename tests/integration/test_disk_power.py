"""Databases on a disk with power cuts: acknowledged rows survive, unless the database does not flush.

PENSTOCK_POWER_CUTS sets the number of consecutive cuts of each database.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
from tests.integration.disk_bench import (  # noqa: F401 - fixtures
    BOTH_TRANSPORTS,
    HOST,
    Bench,
    each_transport,
    flat,
    one_bench,
)

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
CUTS = int(os.environ.get("PENSTOCK_POWER_CUTS", "3"))
pytestmark = [*HOST, BOTH_TRANSPORTS]
needs_postgres = pytest.mark.skipif(BIN is None, reason="PostgreSQL is not installed")
WRITER = """
import subprocess, sys
psql = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL, text=True, bufsize=1)
while True:
    try:
        psql.stdin.write("insert into t values (default, repeat('x', 500)) returning i;\\n\\\\echo end\\n")
    except OSError:
        break
    line = psql.stdout.readline()
    if not line.strip().isdigit():
        break
    print(line.strip(), flush=True)
    psql.stdout.readline()
psql.kill()
"""


class Postgres:
    """A PostgreSQL database of another user on a volatile disk."""

    def __init__(self, base: Path, server: DiskServer) -> None:
        assert BIN is not None
        user = pwd.getpwnam("postgres")
        self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}
        self._base, self.server = base, server
        os.chmod(base, 0o755)
        for name in "mb":
            (base / name).mkdir()
        owner = (user.pw_uid, user.pw_gid)
        self._socket = base / "s"
        self._socket.mkdir()
        os.chown(self._socket, *owner)
        server.add("d", base / "m", base / "b", flat(0.0002), volatile=True, owner=owner)
        self._data = base / "m" / "pg"
        self._psql = [
            f"{BIN}/psql",
            "-h",
            str(self._socket),
            "-p",
            "54997",
            "-U",
            "postgres",
            "-Atq",
            "postgres",
        ]
        initdb = [f"{BIN}/initdb", "-D", str(self._data), "-A", "trust"]
        subprocess.run(initdb, check=True, capture_output=True, **self._as)  # type: ignore[call-overload]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> bool:
        """Start the server; true if it accepts connections."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        argv = ["-D", str(self._data), "-k", str(self._socket), "-p", "54997", "-h", "", *options]
        with open(self._base / "log", "ab") as log:
            self._process = subprocess.Popen(
                [f"{BIN}/postgres", *argv], stdout=log, stderr=log, **self._as
            )  # type: ignore[call-overload]
        ready = [f"{BIN}/pg_isready", "-h", str(self._socket), "-p", "54997"]
        while subprocess.run(ready, capture_output=True).returncode:
            if self._process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def ask(self, query: str) -> str:
        """Answer to a query; empty if there is none."""
        result = subprocess.run([*self._psql, "-c", query], capture_output=True, text=True)
        return result.stdout.strip()

    def acknowledged_before_a_cut(self, number: int = 0) -> set[int]:
        """Insert rows until the power is cut; return the acknowledged ones."""
        argv = ["/usr/bin/python3", "-c", WRITER, *self._psql]
        rows = acknowledged(argv, self.server, number, self._processes)
        self.kill()
        return rows

    def rows(self) -> set[int]:
        """Stored rows."""
        return set(map(int, self.ask("select i from t").split()))

    def kill(self) -> None:
        """Kill all processes at once, as a loss of power does."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None

    def _processes(self) -> list[int]:
        """Process numbers; the first is the parent of the others."""
        if self._process is None:
            return []
        parent = str(self._process.pid)
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", parent], capture_output=True, text=True
        )
        return [self._process.pid, *map(int, children.stdout.split())]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with (
        tempfile.TemporaryDirectory() as directory
    ):  # other users cannot traverse pytest's directories
        base = Path(directory)
        with DiskServer(Journal(base / "journal.jsonl"), base / "state") as server:
            database = Postgres(base, server)
            yield database
            database.kill()


def acknowledged(
    argv: list[str], server: DiskServer, number: int, more_processes: Callable[[], list[int]] = list
) -> set[int]:
    """Numbers that a program prints until the power is cut; the number of the cut determines its time.

    Every other cut is torn. The program and `more_processes` are stopped before the cut and killed after it.
    Otherwise they would continue on the disk after the cut.
    """
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(20 + 37 * number % 101)]
        pids = [writer.pid, *more_processes()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a worker of the database may have ended
                os.kill(pid, signal.SIGSTOP)
        server.power_cut("d", mode="torn" if number % 2 else "lost", seed=number)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
    return {int(line) for line in lines if line}


@needs_postgres
def test_postgres_has_all_acknowledged_rows(postgres: Postgres):
    assert postgres.start()
    postgres.ask("create table t (i serial primary key, pad text)")
    expected: set[int] = set()
    for number in range(CUTS):
        expected |= postgres.acknowledged_before_a_cut(number)
        assert postgres.start()
        rows = postgres.rows()
        assert expected <= rows
        # each cut may leave one committed row that was not acknowledged
        assert len(rows - expected) <= number + 1
    # planted: a database that flushes nothing
    postgres.kill()
    assert postgres.start("-c", "fsync=off")
    acknowledged_rows = postgres.acknowledged_before_a_cut()
    started = postgres.start()
    assert not started or not acknowledged_rows <= postgres.rows()


SQLITE = """
import itertools, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"pragma journal_mode={sys.argv[2]}")
database.execute(f"pragma synchronous={sys.argv[3]}")
database.execute("create table if not exists t (i integer primary key, pad text)")
[[last]] = database.execute("select coalesce(max(i), 0) from t").fetchall()
for i in itertools.count(last + 1):
    try:
        database.execute("insert into t values (?, ?)", (i, "x" * 700))
    except sqlite3.Error:
        break
    print(i, flush=True)
"""


@dataclass
class Lite:
    """An SQLite database on a volatile disk."""

    bench: Bench
    journal: str
    synchronous: str

    @property
    def path(self) -> Path:
        return self.bench.mount / "t.db"

    def acknowledged_before_a_cut(self, number: int) -> set[int]:
        argv = [sys.executable, "-c", SQLITE, str(self.path), self.journal, self.synchronous]
        return acknowledged(argv, self.bench.server, number)

    def rows(self) -> set[int]:
        """Stored rows; the integrity check passes."""
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
            return {i for (i,) in database.execute("select i from t")}


@pytest.mark.parametrize(
    ("journal", "synchronous", "lost_rows"),
    [("wal", "full", 0), ("delete", "extra", 0), ("delete", "full", 1)],
)
def test_sqlite_has_all_acknowledged_rows(
    bench: Bench, journal: str, synchronous: str, lost_rows: int
):
    """All acknowledged rows survive; with `full` and a rollback journal the last one may be lost.

    The removal of the journal is durable only with `extra` (sqlite.org/pragma.html#pragma_synchronous).
    """
    bench.up(flat(0.0002), volatile=True)
    database = Lite(bench, journal, synchronous)
    for number in range(CUTS):
        acknowledged_rows = database.acknowledged_before_a_cut(number)
        rows = database.rows()
        assert rows == set(range(1, max(rows) + 1))
        assert max(acknowledged_rows) - lost_rows <= max(rows) <= max(acknowledged_rows) + 1


def test_sqlite_without_flushes_loses_acknowledged_rows(bench: Bench):
    bench.up(flat(0.0002), volatile=True)
    database = Lite(bench, "wal", "off")
    acknowledged_rows = database.acknowledged_before_a_cut(0)
    try:
        rows = database.rows()
    except (sqlite3.Error, AssertionError):
        return  # the file is no valid database
    assert not acknowledged_rows <= rows
