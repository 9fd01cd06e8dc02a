"""A store with three published bugs: `penstock check` identifies each, and reports nothing without them.

Expectations come from penstock's model with service times identified by one client. No absolute time is
asserted: verdicts compare means with predictions, causes compare ratios and counts.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.parts.conformity.contention import in_flight
from penstock.parts.conformity.measured_rows import read_measured
from tests.chunkstore import model, tables
from tests.chunkstore.store import Load, Settings, up
from tests.chunkstore.suites import SUITES, Suite
from tests.chunkstore.wire import send

Check = Callable[[Path, Path], tuple[int, Any]]

#: attempts with a store without a bug: a short load of the host affects one of them, not all
READINGS = 3


@pytest.fixture(name="check")
def _check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    def run(expected: Path, measured: Path) -> tuple[int, Any]:
        monkeypatch.setattr(
            sys, "argv", ["penstock", "check", str(expected), str(measured), "--json"]
        )
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.bug)
def test_each_bug_is_identified_and_nothing_is_reported_without_it(
    suite: Suite, check: Check, tmp_path: Path
) -> None:
    reports = []
    for reading in range(READINGS):
        directory = tmp_path / str(reading)
        directory.mkdir()
        expected = suite.write_expected(
            suite.identify(directory / "seed"), directory / "expected.yaml"
        )
        status, clean = check(
            expected,
            suite.write_measured(directory / "clean", directory / "clean.parquet", bug=False),
        )
        reports.append(clean["rows"])
        if status == 0:
            break
    assert status == 0, reports
    assert clean["causes"] == []
    status, report = check(
        expected, suite.write_measured(directory / "bug", directory / "bug.parquet", bug=True)
    )
    assert status == 3
    verdicts = {
        row["operation"]: row["verdict"] for row in report["rows"] if row["module"] == "client"
    }
    assert set(verdicts.values()) <= {"SLOW", "UNSTABLE", "OK"}
    assert {"SLOW", "UNSTABLE"} & set(verdicts.values())
    assert [cause["code"] for cause in report["causes"]] == [suite.code]


def test_notes_of_a_store_match_its_operations(tmp_path: Path) -> None:
    settings, load = Settings(nodes=3), Load(clients=3, chunks=3, width=3)
    with up(settings, tmp_path / "store") as store:
        store.run(load, 3)
    rows = tables.measured_rows(store.rows())
    count = {
        (module, metric): sum((r["module"], r["metric"]) == (module, metric) for r in rows)
        for module, metric in {(r["module"], r["metric"]) for r in rows}
    }
    assert count["storage", "server_time"] == 3 * 3 * 3
    assert count["client", "connect_time"] == 3 * 3 * 3
    assert count["client", "client_time"] == 3 * 3 * 2
    assert count["manager", "server_time"] == count["manager", "lock_wait"] == 3 * 3 * 3
    nbytes = sum(r["value"] for r in rows if r["metric"] == "bytes")
    assert nbytes == sum(store.stored_bytes.values()) == 27 * settings.chunk_bytes
    # each of three nodes stores a chunk of each file
    assert len(set(store.stored_bytes.values())) == 1


def test_a_stranger_is_not_served(tmp_path: Path) -> None:
    with up(Settings(nodes=1), tmp_path / "store") as store:
        for port in store.ports:
            with socket.create_connection(("127.0.0.1", port)) as link:
                send(link, {"chunk": "../stranger", "frames": [1], "trial": "0", "call": "open"})
                link.sendall(b"x")
                with contextlib.suppress(ConnectionResetError):
                    assert link.recv(1) == b""
        store.run(Load(clients=1, chunks=1, width=1), 1)
    assert not list(tmp_path.rglob("stranger"))


def test_notes_are_written_only_on_request(tmp_path: Path) -> None:
    with up(Settings(nodes=2), tmp_path / "store", recorded=False) as store:
        store.run(Load(clients=2, chunks=2, width=2), 1)
    assert store.rows().records == []
    assert list((tmp_path / "store" / "records").iterdir()) == []
    assert sum(store.stored_bytes.values()) == 4 * Settings().chunk_bytes


def test_a_constant_order_is_no_hot_spot_at_width_1(check: Check, tmp_path: Path) -> None:
    """With width 1 each client uses one server, so that a constant order has no effect."""
    load = Load(chunks=3, width=1)
    settings = Settings(storage_service_s=0.005, constant_shuffle=True)
    with up(settings, tmp_path / "run") as store:
        store.run(load, 15)
    measured = tables.write(store.rows(), tmp_path / "run.parquet")
    contention = in_flight(read_measured(measured).of("storage", "write", "in_flight", "1"))
    assert contention is not None
    assert contention.ratio < 1.5
    # the expected time of a client is that of a single client
    seeded = model.Seeded(settings, 0.0002)
    apart = Load(chunks=3, width=1, apart=True)
    metrics = (("client", "write", "client_time"),)
    expected = model.write(
        model.expected_document(seeded, apart, "width 1", metrics), tmp_path / "expected.yaml"
    )
    _, report = check(expected, measured)
    assert report["causes"] == []
