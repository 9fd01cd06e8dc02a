"""A real store with three published bugs: `penstock check` finds and names each, and nothing without them.

What is expected comes from penstock's own model, with service times identified by one client. No time of the
clock is asserted: verdicts are of means over predictions, causes of ratios and counts.
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

#: readings of a store without a bug: a host that is busy with something else spoils one, not all of them
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
def test_each_bug_is_found_and_named_and_nothing_without_it(
    suite: Suite, check: Check, tmp_path: Path
) -> None:
    found = []
    for reading in range(READINGS):
        place = tmp_path / str(reading)
        place.mkdir()
        expected = suite.expected(suite.seeded(place / "seed"), place / "expected.yaml")
        status, clean = check(
            expected, suite.measured(place / "clean", place / "clean.parquet", bug=False)
        )
        found.append(clean["rows"])
        if status == 0:
            break
    assert status == 0, found
    assert clean["causes"] == []
    status, spoilt = check(expected, suite.measured(place / "bug", place / "bug.parquet", bug=True))
    assert status == 3
    verdicts = {
        row["operation"]: row["verdict"] for row in spoilt["rows"] if row["module"] == "client"
    }
    assert set(verdicts.values()) <= {"SLOW", "UNSTABLE", "OK"}
    assert {"SLOW", "UNSTABLE"} & set(verdicts.values())
    assert [cause["code"] for cause in spoilt["causes"]] == [suite.code]


def test_what_a_store_notes_is_what_it_did(tmp_path: Path) -> None:
    settings, load = Settings(nodes=3), Load(clients=3, chunks=3, width=3)
    with up(settings, tmp_path / "store") as store:
        store.run(load, 3)
    made = tables.measured(store.rows())
    count = {
        (module, metric): sum((r["module"], r["metric"]) == (module, metric) for r in made)
        for module, metric in {(r["module"], r["metric"]) for r in made}
    }
    assert count["storage", "server_time"] == 3 * 3 * 3
    assert count["client", "connect_time"] == 3 * 3 * 3
    assert count["client", "client_time"] == 3 * 3 * 2
    assert count["manager", "server_time"] == count["manager", "lock_wait"] == 3 * 3 * 3
    nbytes = sum(r["value"] for r in made if r["metric"] == "bytes")
    assert nbytes == sum(store.stored_bytes.values()) == 27 * settings.chunk_bytes
    # each of three nodes got a chunk of each file
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


def test_nothing_is_noted_unless_it_is_asked_for(tmp_path: Path) -> None:
    with up(Settings(nodes=2), tmp_path / "store", recorded=False) as store:
        store.run(Load(clients=2, chunks=2, width=2), 1)
    assert store.rows().noted == []
    assert list((tmp_path / "store" / "notes").iterdir()) == []
    assert sum(store.stored_bytes.values()) == 4 * Settings().chunk_bytes


def test_a_constant_order_is_no_hot_spot_at_width_1(check: Check, tmp_path: Path) -> None:
    """Each client's file is on one server, another for each: there is no order to be constant."""
    load = Load(chunks=3, width=1)
    settings = Settings(storage_service_s=0.005, constant_shuffle=True)
    with up(settings, tmp_path / "run") as store:
        store.run(load, 15)
    measured = tables.write(store.rows(), tmp_path / "run.parquet")
    heat = in_flight(read_measured(measured).of("storage", "write", "in_flight", "1"))
    assert heat is not None
    assert heat.ratio < 1.5
    # the clients' time is that of one alone, whatever others do
    seeded = model.Seeded(settings, 0.0002)
    apart = Load(chunks=3, width=1, apart=True)
    wanted = (("client", "write", "client_time"),)
    expected = model.write(
        model.expected(seeded, apart, "width 1", wanted), tmp_path / "expected.yaml"
    )
    _, found = check(expected, measured)
    assert found["causes"] == []
