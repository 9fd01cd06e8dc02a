"""A database on a disk whose power is cut: what it had acknowledged is there, unless it does not flush.

PENSTOCK_POWER_CUTS sets how many cuts each database goes through, one after the other.
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
    """A database of another user on a volatile disk."""

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
        """Starts it; whether it came up."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        words = ["-D", str(self._data), "-k", str(self._socket), "-p", "54997", "-h", "", *options]
        with open(self._base / "log", "ab") as log:
            self._process = subprocess.Popen(
                [f"{BIN}/postgres", *words], stdout=log, stderr=log, **self._as
            )  # type: ignore[call-overload]
        ready = [f"{BIN}/pg_isready", "-h", str(self._socket), "-p", "54997"]
        while subprocess.run(ready, capture_output=True).returncode:
            if self._process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def ask(self, query: str) -> str:
        """The answer to a query, empty where there is none."""
        ran = subprocess.run([*self._psql, "-c", query], capture_output=True, text=True)
        return ran.stdout.strip()

    def acknowledged_before_a_cut(self, number: int = 0) -> set[int]:
        """Inserts rows one by one until the power is cut; those that were acknowledged."""
        words = ["/usr/bin/python3", "-c", WRITER, *self._psql]
        seen = acknowledged(words, self.server, number, self._processes)
        self.kill()
        return seen

    def rows(self) -> set[int]:
        """The rows that are there."""
        return set(map(int, self.ask("select i from t").split()))

    def kill(self) -> None:
        """As the machine would end with its power: all of its processes at once."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None

    def _processes(self) -> list[int]:
        """The first is the parent of the others."""
        if self._process is None:
            return []
        parent = str(self._process.pid)
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", parent], capture_output=True, text=True
        )
        return [self._process.pid, *map(int, found.stdout.split())]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory() as place:  # pytest's own directory is closed to others
        base = Path(place)
        with DiskServer(Journal(base / "journal.jsonl"), base / "state") as server:
            database = Postgres(base, server)
            yield database
            database.kill()


def acknowledged(
    words: list[str], server: DiskServer, number: int, others: Callable[[], list[int]] = list
) -> set[int]:
    """Numbers that a program prints until the power is cut, at a moment that depends on the cut's number.

    Every other cut is torn. Without power no program goes on: this one and the `others` are stopped, and
    killed once the power is back. Otherwise they would go on by name on the disk that came back.
    """
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(20 + 37 * number % 101)]
        pids = [writer.pid, *others()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        server.power_cut("d", mode="torn" if number % 2 else "lost", seed=number)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        said += writer.stdout.readlines()
    return {int(line) for line in said if line}


@needs_postgres
def test_a_database_has_what_it_had_acknowledged(postgres: Postgres):
    assert postgres.start()
    postgres.ask("create table t (i serial primary key, pad text)")
    expected: set[int] = set()
    for number in range(CUTS):
        expected |= postgres.acknowledged_before_a_cut(number)
        assert postgres.start()
        found = postgres.rows()
        assert expected <= found
        assert (
            len(found - expected) <= number + 1
        )  # a row each that was there, but not yet said to be
    # planted: a database that flushes nothing
    postgres.kill()
    assert postgres.start("-c", "fsync=off")
    seen = postgres.acknowledged_before_a_cut()
    came_up = postgres.start()
    assert not came_up or not seen <= postgres.rows()


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
        words = [sys.executable, "-c", SQLITE, str(self.path), self.journal, self.synchronous]
        return acknowledged(words, self.bench.server, number)

    def rows(self) -> set[int]:
        """The rows that are there; the database is whole."""
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
            return {i for (i,) in database.execute("select i from t")}


@pytest.mark.parametrize(
    ("journal", "synchronous", "loses"),
    [("wal", "full", 0), ("delete", "extra", 0), ("delete", "full", 1)],
)
def test_sqlite_has_what_it_had_acknowledged(
    bench: Bench, journal: str, synchronous: str, loses: int
):
    """A rollback journal whose removal is not made durable may come back and take the last commit with it:
    that is what `extra` is for (sqlite.org/pragma.html#pragma_synchronous)."""
    bench.up(flat(0.0002), volatile=True)
    database = Lite(bench, journal, synchronous)
    for number in range(CUTS):
        seen = database.acknowledged_before_a_cut(number)
        found = database.rows()
        assert found == set(range(1, max(found) + 1))
        assert max(seen) - loses <= max(found) <= max(seen) + 1


def test_sqlite_without_flushes_loses_what_it_had_acknowledged(bench: Bench):
    bench.up(flat(0.0002), volatile=True)
    database = Lite(bench, "wal", "off")
    seen = database.acknowledged_before_a_cut(0)
    try:
        found = database.rows()
    except (sqlite3.Error, AssertionError):
        return  # not even a database any more
    assert not seen <= found
