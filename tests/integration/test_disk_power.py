"""A database on a disk whose power is cut: what it had acknowledged is there, unless it does not flush."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.emulate.disk import DiskServer
from penstock.host.journal import Journal
from tests.integration.disk_bench import HOST, flat

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
pytestmark = [*HOST, pytest.mark.skipif(BIN is None, reason="PostgreSQL is not installed")]
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
        server.add("d", base / "m", base / "b", flat(0.0002), volatile=True, owner=owner)
        self._data = base / "m" / "pg"
        self._psql = [
            f"{BIN}/psql",
            "-h",
            "/tmp",
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
        words = ["-D", str(self._data), "-k", "/tmp", "-p", "54997", "-h", "", *options]
        with open(self._base / "log", "ab") as log:
            self._process = subprocess.Popen(
                [f"{BIN}/postgres", *words], stdout=log, stderr=log, **self._as
            )  # type: ignore[call-overload]
        ready = [f"{BIN}/pg_isready", "-h", "/tmp", "-p", "54997"]
        while subprocess.run(ready, capture_output=True).returncode:
            if self._process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def ask(self, query: str) -> str:
        """The answer to a query, empty where there is none."""
        ran = subprocess.run([*self._psql, "-c", query], capture_output=True, text=True)
        return ran.stdout.strip()

    def acknowledged_before_a_cut(self) -> int:
        """Inserts rows one by one until the power is cut; the last that was acknowledged."""
        writer = subprocess.Popen(
            ["/usr/bin/python3", "-c", WRITER, *self._psql], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        seen = [writer.stdout.readline() for _ in range(200)]
        self.server.power_cut("d")
        self.kill()
        seen += writer.communicate(timeout=30)[0].split()
        return int(seen[-1])

    def kill(self) -> None:
        """As the machine would end with its power: all of its processes at once."""
        if self._process is None:
            return
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True
        )
        mine = [int(child) for child in found.stdout.split()]
        self._process.kill()
        self._process.wait()
        for child in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process = None


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory() as place:  # pytest's own directory is closed to others
        base = Path(place)
        with DiskServer(Journal(base / "journal.jsonl"), base / "state") as server:
            database = Postgres(base, server)
            yield database
            database.kill()


def test_ea_20_a_database_has_what_it_had_acknowledged(postgres: Postgres):
    assert postgres.start()
    postgres.ask("create table t (i serial primary key, pad text)")
    acknowledged = postgres.acknowledged_before_a_cut()
    assert acknowledged >= 200
    assert postgres.start()
    found = int(postgres.ask("select count(*) from t"))
    assert found in (acknowledged, acknowledged + 1)
    # planted: a database that flushes nothing
    postgres.kill()
    assert postgres.start("-c", "fsync=off")
    postgres.ask("create table if not exists t (i serial primary key, pad text)")
    acknowledged = postgres.acknowledged_before_a_cut()
    came_up = postgres.start()
    assert not came_up or int(postgres.ask("select count(*) from t") or 0) < acknowledged - 1
