"""Samples sent while a command runs: at its end the result equals that of sending all at once."""

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
#: start time of the sampler, and lateness of each of its samples [ns]
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
    """Times of samples: close together for the first ten seconds, as in the sampler's schedule."""
    parts = -(-interval_ns // CLOSE_NS)
    for first in range(0, length_ns, interval_ns):
        yield first
        for part in range(1, parts if first < BEGINNING_NS else 1):
            yield first + part * (interval_ns // parts)


def sample_records(
    at: int, number: int, rng: np.random.Generator, before_ns: int
) -> list[tuple[int, int, float]]:
    """Records of one sample: a disk that is missing once, requests that begin late, a process whose last
    sample (at `before_ns`) is reported late, a command now and then."""
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
                rows.append((before_ns, series, value - 1))
            if number % 5 not in (0, 1):
                continue
        rows.append((t_ns, series, value))
    return rows


class GrowingSpool:
    """The spool of a sampler, which grows."""

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
        self._before_ns = 0

    def grow(self, at: int, number: int) -> None:
        with open(self.spool, "ab") as file:
            rows = sample_records(at, number, self._rng, self._before_ns)
            np.array(rows, SAMPLE_DTYPE).tofile(file)
        self._before_ns = START + at + LATE

    def tables(self, length_ns: int, *, died: bool = False) -> tuple[dict[str, pa.Table], int]:
        """Tables as `Monitor.stop` computes them, and the number of samples due."""
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
        computed = {"samples": samples, "utilisation": utilisation(samples, link_bps={})}
        return computed, (receipt["end_ns"] - receipt["start_ns"]) // used_ns


class Store:
    """A store of an experiment: it ignores a batch number that it has stored already."""

    def __init__(self, refuses: Callable[[int], str] = lambda _: "") -> None:
        self.batches: dict[tuple[str, int], Batch] = {}
        self._refuses, self._asked = refuses, 0

    def write(self, batch: Batch) -> None:
        self._asked += 1
        failure = self._refuses(self._asked)
        if failure == "away":
            raise PenstockError("it is away")
        self.batches.setdefault((batch.source, batch.number), batch)
        if failure == "answer lost":
            raise PenstockError("it is away")

    def times(self, source: str = "samples") -> set[int]:
        batches = list(self.batches.values())  # a thread adds to them
        by_batch = [b.points["utc_ns"].to_pylist() for b in batches if b.source == source]
        return {t for batch_times in by_batch for t in batch_times}

    def recorded(self, end_ns: int) -> Recorded:
        return recorded(self.batches.values(), T0, T0 + end_ns)


def until(condition: Callable[[], bool], every_s: float = 0.005) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(every_s)


def until_stored(server: Server, samples: int) -> None:
    """Wait for samples in the server, with pauses: frequent requests would keep it from storing them."""
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
def test_early_batches_and_the_rest_equal_one_delivery(
    tmp_path: Path,
    refuses: Callable[[int], str],
    interval_ns: int,
    length_ns: int,
    seen_ns: int,
    died: bool,
) -> None:
    """Fails if a point is sent twice or never, or under the number of a batch whose response was lost."""
    spool, store = GrowingSpool(tmp_path, interval_ns), Store(refuses)
    sending = Sending(store.write, interval_ns, T0 - START, every_s=0.01)
    sending.follow(spool.spool)
    for number, at in enumerate(deadlines(interval_ns, length_ns)):
        spool.grow(at, number)
        if at % (2 * S) == 0 and at <= seen_ns:
            until(lambda at=at: T0 + at + LATE in store.times())  # type: ignore[misc]
    early = len(store.times())
    tables, due = spool.tables(length_ns, died=died)
    for batch in sending.rest(tables, due):
        store.batches.setdefault((batch.source, batch.number), batch)
    assert early >= seen_ns // (2 * S)
    at_once = recorded(sampled(tables, due, T0 - START), T0, T0 + length_ns)
    recorded_early = store.recorded(length_ns)
    assert recorded_early.series.equals(at_once.series)
    assert recorded_early.gaps.equals(at_once.gaps)
    assert recorded_early.points.equals(at_once.points)
    assert pc.sum(recorded_early.series["duplicate"]).as_py() == 0


def test_utilisation_is_sent_early_after_the_close_samples(tmp_path: Path) -> None:
    spool, store = GrowingSpool(tmp_path, S), Store()
    sending = Sending(store.write, S, T0 - START, every_s=0.01)
    sending.follow(spool.spool)
    number = 0
    for number, at in enumerate(deadlines(S, 10 * S)):
        spool.grow(at, number)
    until(lambda: T0 + 9 * S + LATE in store.times())
    # a command that ends now would have ten values a second
    assert not store.times("utilisation")
    spool.grow(10 * S, number + 1)
    until(lambda: T0 + 10 * S + LATE in store.times("utilisation"))
    assert store.times("utilisation") == {T0 + n * S + LATE for n in range(1, 11)}
    sending.end()


def test_without_early_sending_all_batches_are_the_rest(tmp_path: Path) -> None:
    spool, store = GrowingSpool(tmp_path, TENTH), Store()
    sending = Sending(store.write, TENTH, T0 - START, every_s=0)
    sending.follow(spool.spool)
    for number, at in enumerate(deadlines(TENTH, S)):
        spool.grow(at, number)
    tables, due = spool.tables(S)
    assert not store.batches
    assert [b.number for b in sending.rest(tables, due)] == [0, 0]


@pytest.mark.timed
def test_samples_of_a_killed_monitor_are_stored(tmp_path: Path) -> None:
    """`monitor get` has them while the command runs. Fails if samples are written only at the end."""
    own = os.environ | {"PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    own.pop("PENSTOCK_SERVER", None)
    penstock = [sys.executable, "-m", "penstock", "monitor"]

    def cli(*argv: str) -> subprocess.CompletedProcess[str]:
        return commands.run([*penstock, *argv], env=own, capture_output=True, text=True)

    def times() -> list[str]:
        return cli("get", "x", "-m", "cpu_user", "--partial").stdout.splitlines()[1:]

    line = [*penstock, "run", "--name", "x", "-i", "0.1", "--", "sleep", "600"]
    with commands.popen(line, env=own, stdout=subprocess.PIPE, start_new_session=True) as run:
        until(lambda: len(times()) >= 12, 0.25)
        computed = cli("get", "x", "-m", "cpu_busy")
        assert len(computed.stdout.splitlines()) > 5
        assert computed.stderr == ""  # samples in transit do not count as lost
        os.killpg(run.pid, signal.SIGKILL)
    commands.run([sys.executable, "-m", "penstock", "undo"], env=own, capture_output=True)
    again = cli("run", "--name", "x", "--", "true")
    assert again.returncode == 0  # the command runs in any state of the name
    assert "penstock monitor stop x" in again.stderr
    assert "nothing is recorded" in again.stderr
    seen = times()
    time.sleep(1.0)  # a gap of ten samples before the manual end
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
    """A server that restarts at its previous address."""

    def begin(self) -> None:
        port = self.url.rpartition(":")[2] if hasattr(self, "url") else "0"
        self.arguments = ("--port", port)
        super().begin()


#: penstock with a delivery that waits 2 s for a server instead of 20 s
IMPATIENT = """
from penstock.cli import main
from penstock.parts.monitoring.outbox import delivery
delivery.PATIENCE_S = 2.0
main()
"""


def monitored(
    server: Server, own: Path, interval: str, start: tuple[str, str] = ("-m", "penstock")
) -> subprocess.Popen[str]:
    """A command with status 7 that runs until the file `go` exists."""
    wait = f"while [ ! -e {own}/go ]; do sleep 0.05; done; exit 7"
    line = [sys.executable, *start, "monitor", "run", "--server", server.url]
    line += ["--name", "x", "-i", interval, "--tag", "t", "--", "sh", "-c", wait]
    pipe = subprocess.PIPE
    return commands.popen(line, env=client(server, own), stdout=pipe, stderr=pipe, text=True)


def client(server: Server, own: Path) -> dict[str, str]:
    """The environment of a client with its own state; as the user of the server, it finds the token."""
    runtime = server.environment["PENSTOCK_RUNTIME"]
    return {**os.environ, "PENSTOCK_STATE": str(own), "PENSTOCK_RUNTIME": runtime}


def line_with(run: subprocess.Popen[str], text: str) -> str:
    assert run.stderr is not None
    for line in run.stderr:
        if text in line:
            return line
    raise AssertionError(f"found no line with {text!r} on stderr")


@contextlib.contextmanager
def without_server_at_its_end(
    server: AtPort, own: Path, start: tuple[str, str] = ("-m", "penstock")
) -> Iterator[subprocess.Popen[str]]:
    """A monitored command whose server was killed before the command ended."""
    with monitored(server, own, "0.1", start) as run:
        until_stored(server, 10)
        server.kill()
        line_with(run, "samples are stored locally and sent later")
        time.sleep(1.0)
        (own / "go").touch()
        yield run


def check_complete(server: AtPort) -> Bundle:
    (path,) = server.place.glob("state/experiments/*/x.1-*")
    bundle = Bundle.open(path)
    rows = bundle.table("series").to_pylist()
    own = [r for r in rows if r["source"] in ("samples", "utilisation")]
    assert {r["duplicate"] for r in own} == {0}
    monitor = bundle.manifest["receipts"]["monitor"]
    if (missed := monitor["expected"] - monitor["samples"]) > 1:  # one more may be due at the end
        pytest.skip(f"busy host: the sampler missed {missed} samples")
    assert {r["verdict"] for r in own} == {"complete"}
    (user,) = (r for r in own if (r["metric"], r["labels"]) == ("cpu_user", '{"entity":"all"}'))
    assert user["stored"] >= bundle.manifest["receipts"]["monitor"]["samples"] > 20
    assert bundle.manifest["receipts"]["monitor"]["beginning_ns"] == BEGINNING_NS
    assert (bundle.manifest["state"], bundle.manifest["exit_status"]) == ("ended", 7)
    return bundle


@pytest.mark.timed
def test_a_restarted_server_gets_all_samples(tmp_path: Path) -> None:
    """The server is down when the command ends. Fails if the first error ends the recording, if samples
    arrive twice, or if the experiment ends at the time of the restart."""
    (tmp_path / "served").mkdir()
    (own := tmp_path / "own").mkdir(mode=0o700)
    server = AtPort(tmp_path / "served")
    with without_server_at_its_end(server, own) as run:
        line_with(run, "trying again")
        ended_ns = time.time_ns()
        time.sleep(1.0)
        server.begin()
        _, stderr = run.communicate(timeout=120)
    server.end()
    assert run.returncode == 7, stderr
    assert "send them with" not in stderr
    assert not (own / "unsent").exists()
    bundle = check_complete(server)
    assert bundle.manifest["times"]["end_realtime_ns"] <= ended_ns


@pytest.mark.timed
def test_unsent_samples_of_a_missing_server_are_sent_later(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (own := tmp_path / "own").mkdir(mode=0o700)
    server = AtPort(tmp_path / "served")
    with without_server_at_its_end(server, own, ("-c", IMPATIENT)) as run:
        line = line_with(run, "send them with")
        run.communicate(timeout=120)
    assert run.returncode == 7
    (place,) = (own / "unsent").iterdir()
    assert str(place) in line
    command = shlex.split(line.partition("send them with: ")[2])
    assert command[:3] == ["penstock", "monitor", "push"]
    environment = client(server, own)
    again = [sys.executable, "-m", *command]
    refused = commands.run([*again, "--patience", "0"], env=environment, capture_output=True)
    assert refused.returncode == 1
    assert place.exists()
    server.begin()
    result = commands.run(again, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not place.exists()
    server.end()
    check_complete(server)


@pytest.mark.timed
def test_an_interrupted_command_does_not_wait_for_a_server(tmp_path: Path) -> None:
    """Fails if Ctrl-C has to wait: the command reports the place of the recorded samples at once."""
    (tmp_path / "served").mkdir()
    (own := tmp_path / "own").mkdir(mode=0o700)
    server = AtPort(tmp_path / "served")
    with monitored(server, own, "0.1") as run:
        until_stored(server, 1)
        server.kill()
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=120)
    assert "trying again" not in stderr
    assert "send them with: penstock monitor push 'x#1'" in stderr


def test_a_batch_has_only_labels_of_its_own_series() -> None:
    """Fails if each batch lists all processes so far: with thousands of them it grows."""
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
