"""Samples that are sent while a command works: at its end there is the same as if all had come at once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.observe.sampler.formulas import STATES
from penstock.observe.sampler.latency import with_beginnings
from penstock.observe.sampler.monitor import BEGINNING_NS, CLOSE_NS, _of_the_dead, _of_use
from penstock.observe.sampler.samples import SAMPLE_DTYPE, read_samples
from penstock.observe.sampler.utilisation import utilisation
from penstock.parts.monitoring.experiments.points import Batch
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.outbox.sampled import sampled
from penstock.parts.monitoring.outbox.sending import Sending, _Source
from tests.support import commands
from tests.unit.test_experiment_server import Server

S = 10**9
T0 = 1_700_000_000 * S
#: when the sampler was started, and how late each of its samples is [ns]
START, LATE = 123, 70_000
TENTH = S // 10

NAMES = [
    ("sampler", "self", "lateness", False),
    *[("cpu", e, s, True) for e in ("all", "0") for s in STATES],
    *[
        ("disk", "vda", c, True)
        for c in ("io_time", "queue_time", "read_bytes", "written_bytes", "reads", "writes")
    ],
    ("network", "eth0", "sent_bytes", True),
    ("network", "eth0", "received_bytes", True),
    ("block_latency", "all", "lost", True),
    ("block_latency", "vda le=0.000131072", "read_requests", True),
    ("block_latency", "vda", "read_time", True),
    ("process", "pid=7 comm=x", "cpu_time", True),
    ("command", "clients", "value", False),
    ("command", "clients", "up", False),
]


def deadlines(interval_ns: int, length_ns: int) -> Iterator[int]:
    """When samples are due: close together for ten seconds, as the sampler's schedule has it."""
    parts = -(-interval_ns // CLOSE_NS)
    for first in range(0, length_ns, interval_ns):
        yield first
        for part in range(1, parts if first < BEGINNING_NS else 1):
            yield first + part * (interval_ns // parts)


def told_of(at: int, number: int, rng: np.random.Generator) -> list[tuple[int, int, float]]:
    """The records of one sample: a disk that is lacking once, requests that begin late, a process whose last
    sample is told late, a command now and then."""
    t_ns, rows = START + at + LATE, []
    for series, (source, entity, metric, _) in enumerate(NAMES):
        value = float(LATE if source == "sampler" else at // 1_000 * (series + 1))
        value += float(rng.integers(0, 1000)) if source == "network" else 0.0
        if source == "disk" and number == 14:
            continue
        if source == "block_latency" and entity != "all" and number < 13:
            continue
        if source == "command" and (number % 7 or (metric == "value" and number % 2)):
            continue
        if source == "process":
            if number and number % 5 == 0:
                rows.append((told_of.before, series, value - 1))  # type: ignore[attr-defined]
            if number % 5 not in (0, 1):
                continue
        rows.append((t_ns, series, value))
    told_of.before = t_ns  # type: ignore[attr-defined]
    return rows


class Planted:
    """A sampler's spool that grows."""

    def __init__(self, place: Path, interval_ns: int) -> None:
        self.spool, self.interval_ns = place / "spool", interval_ns
        keys = ("source", "entity", "metric", "cumulative")
        lines = [
            json.dumps({"series": n, "unit": "ns", **dict(zip(keys, name, strict=True))})
            for n, name in enumerate(NAMES)
        ]
        Path(f"{self.spool}.series").write_text("".join(f"{line}\n" for line in lines))
        self.spool.touch()
        self._rng = np.random.default_rng(5)

    def grow(self, at: int, number: int) -> None:
        with open(self.spool, "ab") as file:
            np.array(told_of(at, number, self._rng), SAMPLE_DTYPE).tofile(file)

    def tables(self, length_ns: int, *, died: bool = False) -> tuple[dict[str, pa.Table], int]:
        """What `Monitor.stop` makes of it, and how many samples were due."""
        taken = read_samples(self.spool)
        receipt: dict[str, Any] = {
            "start_ns": START,
            "end_ns": START + length_ns,
            "interval_ns": self.interval_ns,
            "close_ns": self.interval_ns // -(-self.interval_ns // CLOSE_NS),
            "beginning_ns": BEGINNING_NS,
        }
        if died:
            receipt = _of_the_dead(taken, 0, self.interval_ns) | {"end_ns": START + length_ns}
        samples, used_ns = _of_use(taken, receipt)
        samples = with_beginnings(samples)
        made = {"samples": samples, "utilisation": utilisation(samples, link_bps={})}
        return made, (receipt["end_ns"] - receipt["start_ns"]) // used_ns


class Store:
    """What an experiment takes: a number that came before changes nothing."""

    def __init__(self, refuses: Callable[[int], str] = lambda _: "") -> None:
        self.batches: dict[tuple[str, int], Batch] = {}
        self._refuses, self._asked = refuses, 0

    def write(self, batch: Batch) -> None:
        self._asked += 1
        how = self._refuses(self._asked)
        if how == "away":
            raise PenstockError("it is away")
        self.batches.setdefault((batch.source, batch.number), batch)
        if how == "answer lost":
            raise PenstockError("it is away")

    def times(self, source: str = "samples") -> set[int]:
        found = [
            b.points["utc_ns"].to_pylist() for b in self.batches.values() if b.source == source
        ]
        return {t for one in found for t in one}

    def recorded(self, end_ns: int) -> Recorded:
        return recorded(self.batches.values(), T0, T0 + end_ns)


def until(true: Callable[[], bool], every_s: float = 0.005) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(every_s)


def until_stored(server: Server, samples: int) -> None:
    """Wait for samples in the server; asked more often, it has no time to store them."""
    until(lambda: len(server.get("x", metric="cpu_user").text.splitlines()) > samples, 0.25)


def refuses_now_and_then(asked: int) -> str:
    return {3: "away", 4: "away", 9: "answer lost"}.get(asked, "")


@pytest.mark.parametrize("refuses", [lambda _: "", refuses_now_and_then])
@pytest.mark.parametrize(
    ("interval_ns", "length_ns", "seen_ns", "died"),
    [
        (S, 23 * S, 20 * S, False),
        (S, 6 * S, 4 * S, False),
        (S, 6 * S, 4 * S, True),
        (TENTH, 3 * S, 2 * S, False),
        (250_000_000, 14 * S, 14 * S, False),
    ],
)
def test_what_went_early_and_the_rest_are_the_whole(
    tmp_path: Path,
    refuses: Callable[[int], str],
    interval_ns: int,
    length_ns: int,
    seen_ns: int,
    died: bool,
) -> None:
    """Fails where a point is sent twice, or not, or under the number of a batch whose answer was lost."""
    planted, store = Planted(tmp_path, interval_ns), Store(refuses)
    sending = Sending(store.write, interval_ns, T0 - START, every_s=0.01)
    sending.follow(planted.spool)
    for number, at in enumerate(deadlines(interval_ns, length_ns)):
        planted.grow(at, number)
        if at % (2 * S) == 0 and at <= seen_ns:
            until(lambda at=at: T0 + at + LATE in store.times())  # type: ignore[misc]
    early = len(store.times())
    tables, due = planted.tables(length_ns, died=died)
    for batch in sending.rest(tables, due):
        store.batches.setdefault((batch.source, batch.number), batch)
    assert early >= seen_ns // (2 * S)
    at_once = recorded(sampled(tables, due, T0 - START), T0, T0 + length_ns)
    found = store.recorded(length_ns)
    assert found.series.equals(at_once.series)
    assert found.gaps.equals(at_once.gaps)
    assert found.points.equals(at_once.points)
    assert pc.sum(found.series["duplicate"]).as_py() == 0


def test_utilisation_goes_early_once_it_is_of_use(tmp_path: Path) -> None:
    planted, store = Planted(tmp_path, S), Store()
    sending = Sending(store.write, S, T0 - START, every_s=0.01)
    sending.follow(planted.spool)
    number = 0
    for number, at in enumerate(deadlines(S, 10 * S)):
        planted.grow(at, number)
    until(lambda: T0 + 9 * S + LATE in store.times())
    # of a command that ends here there will be ten a second
    assert not store.times("utilisation")
    planted.grow(10 * S, number + 1)
    until(lambda: T0 + 10 * S + LATE in store.times("utilisation"))
    assert store.times("utilisation") == {T0 + n * S + LATE for n in range(1, 11)}
    sending.end()


def test_of_none_asked_for_all_is_the_rest(tmp_path: Path) -> None:
    planted, store = Planted(tmp_path, TENTH), Store()
    sending = Sending(store.write, TENTH, T0 - START, every_s=0)
    sending.follow(planted.spool)
    for number, at in enumerate(deadlines(TENTH, S)):
        planted.grow(at, number)
    tables, due = planted.tables(S)
    assert not store.batches
    assert [b.number for b in sending.rest(tables, due)] == [0, 0]


@pytest.mark.timed
def test_a_killed_monitor_leaves_what_it_had_sampled(tmp_path: Path) -> None:
    """And `monitor get` has it while the command works. Breaks where samples are written at the end alone."""
    own = os.environ | {"PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    own.pop("PENSTOCK_SERVER", None)
    penstock = [sys.executable, "-m", "penstock", "monitor"]

    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        return commands.run([*penstock, *words], env=own, capture_output=True, text=True)

    def times() -> list[str]:
        return cli("get", "x", "-m", "cpu_user", "--partial").stdout.splitlines()[1:]

    line = [*penstock, "run", "--name", "x", "-i", "0.1", "--", "sleep", "600"]
    with commands.popen(line, env=own, stdout=subprocess.PIPE, start_new_session=True) as run:
        until(lambda: len(times()) >= 12, 0.25)
        computed = cli("get", "x", "-m", "cpu_busy")
        assert len(computed.stdout.splitlines()) > 5
        assert computed.stderr == ""  # what is on its way is not called lost
        os.killpg(run.pid, signal.SIGKILL)
    commands.run([sys.executable, "-m", "penstock", "undo"], env=own, capture_output=True)
    again = cli("run", "--name", "x", "--", "true")
    assert again.returncode == 0  # the command runs, whatever the name's state
    assert "penstock monitor stop x" in again.stderr
    assert "nothing is recorded" in again.stderr
    seen = times()
    time.sleep(1.0)  # a gap of ten samples, before it is ended by hand
    assert cli("stop", "x").returncode == 0
    assert times() == seen
    (path,) = tmp_path.glob("experiments/*/x.1-*")
    bundle = Bundle.open(path)
    series = {r["metric"]: r for r in bundle.table("series").to_pylist()}
    assert series["cpu_user"]["verdict"] == "partial"
    assert series["cpu_user"]["lost"] >= 9
    assert series["cpu_user"]["duplicate"] == 0
    assert bundle.manifest["valid"] is False


class AtPort(Server):
    """A server that comes back at the address at which it was."""

    def begin(self) -> None:
        port = self.url.rpartition(":")[2] if hasattr(self, "url") else "0"
        self.words = ("--port", port)
        super().begin()


#: penstock with a delivery that gives a server 2 s, and not 20
IMPATIENT = """
from penstock.cli import main
from penstock.parts.monitoring.outbox import delivery
delivery.PATIENCE_S = 2.0
main()
"""


def monitored(
    server: Server, own: Path, interval: str, start: tuple[str, str] = ("-m", "penstock")
) -> subprocess.Popen[str]:
    """A command of status 7 that works until there is a file `go`."""
    wait = f"while [ ! -e {own}/go ]; do sleep 0.05; done; exit 7"
    line = [sys.executable, *start, "monitor", "run", "--server", server.url]
    line += ["--name", "x", "-i", interval, "--tag", "t", "--", "sh", "-c", wait]
    pipe = subprocess.PIPE
    return commands.popen(line, env=client(server, own), stdout=pipe, stderr=pipe, text=True)


def client(server: Server, own: Path) -> dict[str, str]:
    """The environment of a client with a state of its own; the server's user, so it finds the token."""
    runtime = server.environment["PENSTOCK_RUNTIME"]
    return {**os.environ, "PENSTOCK_STATE": str(own), "PENSTOCK_RUNTIME": runtime}


def line_with(run: subprocess.Popen[str], words: str) -> str:
    assert run.stderr is not None
    for line in run.stderr:
        if words in line:
            return line
    raise AssertionError(f"{words}: it was not said")


@contextlib.contextmanager
def away_at_its_end(
    server: AtPort, own: Path, start: tuple[str, str] = ("-m", "penstock")
) -> Iterator[subprocess.Popen[str]]:
    """A monitored command whose server was killed, before the command ended."""
    with monitored(server, own, "0.1", start) as run:
        until_stored(server, 10)
        server.kill()
        line_with(run, "samples are stored locally and sent later")
        time.sleep(1.0)
        (own / "go").touch()
        yield run


def is_there_whole(server: AtPort) -> Bundle:
    (path,) = server.place.glob("state/experiments/*/x.1-*")
    bundle = Bundle.open(path)
    rows = bundle.table("series").to_pylist()
    own = [r for r in rows if r["source"] in ("samples", "utilisation")]
    assert {r["verdict"] for r in own} == {"complete"}
    assert {r["duplicate"] for r in own} == {0}
    (user,) = (r for r in own if (r["metric"], r["labels"]) == ("cpu_user", '{"entity":"all"}'))
    assert user["stored"] >= bundle.manifest["receipts"]["monitor"]["samples"] > 20
    assert bundle.manifest["receipts"]["monitor"]["beginning_ns"] == BEGINNING_NS
    assert (bundle.manifest["state"], bundle.manifest["exit_status"]) == ("ended", 7)
    return bundle


@pytest.mark.timed
def test_a_server_that_is_begun_anew_gets_all(tmp_path: Path) -> None:
    """It was away when the command ended. Breaks where the first failure is the end of the recording, or its
    samples come twice, or the experiment ends when the server is back."""
    (tmp_path / "served").mkdir()
    (own := tmp_path / "own").mkdir(mode=0o700)
    server = AtPort(tmp_path / "served")
    with away_at_its_end(server, own) as run:
        line_with(run, "trying again")
        ended_ns = time.time_ns()
        time.sleep(1.0)
        server.begin()
        _, said = run.communicate(timeout=120)
    server.end()
    assert run.returncode == 7, said
    assert "send them with" not in said
    assert not (own / "unsent").exists()
    bundle = is_there_whole(server)
    assert bundle.manifest["times"]["end_realtime_ns"] <= ended_ns


@pytest.mark.timed
def test_what_a_server_that_stays_away_did_not_take_is_sent_later(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (own := tmp_path / "own").mkdir(mode=0o700)
    server = AtPort(tmp_path / "served")
    with away_at_its_end(server, own, ("-c", IMPATIENT)) as run:
        line = line_with(run, "send them with")
        run.communicate(timeout=120)
    assert run.returncode == 7
    (place,) = (own / "unsent").iterdir()
    assert str(place) in line
    command = shlex.split(line.partition("send them with: ")[2])
    assert command[:3] == ["penstock", "monitor", "push"]
    environment = client(server, own)
    again = [sys.executable, "-m", *command]
    away = commands.run([*again, "--patience", "0"], env=environment, capture_output=True)
    assert away.returncode == 1
    assert place.exists()
    server.begin()
    done = commands.run(again, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not place.exists()
    server.end()
    is_there_whole(server)


@pytest.mark.timed
def test_who_is_interrupted_does_not_wait_for_a_server(tmp_path: Path) -> None:
    """Breaks where Ctrl-C leaves one waiting: it says at once where what was recorded lies."""
    (tmp_path / "served").mkdir()
    (own := tmp_path / "own").mkdir(mode=0o700)
    server = AtPort(tmp_path / "served")
    with monitored(server, own, "0.1") as run:
        until_stored(server, 1)
        server.kill()
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=120)
    assert "trying again" not in said
    assert "send them with: penstock monitor push 'x#1'" in said


def test_a_batch_holds_no_more_than_it_is_of() -> None:
    """Breaks where each batch names all processes that there were: with thousands of them it grows."""
    source = _Source(S)
    sizes = []
    for second in range(200):
        codes = [
            source.code("process_cpu_time", f"pid={second * 50 + n} comm=x", "ns", True)
            for n in range(50)
        ]
        batch = source.batch("samples", np.full(50, second * S), np.array(codes), np.zeros(50))
        sizes.append(len(batch.points["labels"].combine_chunks().dictionary))
        assert len(batch.accounts) == 50
    assert set(sizes) == {50}
    times, series, bits = source.sent._sent[-1]
    assert (len(times), len(series), bits.nbytes) == (1, 50, 7)
