"""A real Swift of four devices, our filter in its object servers: what was put and got is told."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, rows_of
from penstock.parts.monitoring.usage.usage import uses_of_points
from penstock.testing import MemorySink
from studies.swift.saio import Swift, SwiftError, missing, running, up

pytestmark = [pytest.mark.host]

MB = 1_000_000
SIZE = 4 * MB


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    if lacking := missing():
        pytest.skip(f"not run: not installed (Debian: {' '.join(lacking)})")
    place = tmp_path_factory.mktemp("swift") / "saio"
    with running(place, middleware=True, options={"needed": "AUTH_test=50"}) as one:
        yield one
    # nothing of it is left, by the ids that it had
    said = json.loads((place / "swift.json").read_text())
    assert not [pid for pid in said["pids"].values() if Path(f"/proc/{pid}").exists()]


def told(swift: Swift, device: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{swift.objects[device]}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.loads(answer.read())


def moved_mb(swift: Swift) -> float:
    """All that the devices of the last minute say they moved: mean times seconds covered."""
    found = [told(swift, device, "/bwinfo")[device] for device in swift.objects]
    return sum((d["mean1min"] or 0.0) * round(60 * d["cov1min"]) for d in found)


def test_what_clients_put_and_get_is_in_bwinfo_and_osinfo(swift: Swift) -> None:
    # would break if the filter lost or doubled a body, or put it on another device or second
    client = swift.client()
    client.make("files")
    client.put("files", "first", b"-")  # the servers' first request: from now on they count
    begun = time.monotonic()
    before = moved_mb(swift)
    for number in range(5):
        client.put("files", f"file-{number} ü.dat", os.urandom(SIZE))
    content = [client.get("files", f"file-{number} ü.dat") for number in range(5)]
    assert [len(c) for c in content] == [SIZE] * 5
    time.sleep(1.1)
    # three replicas of each are written, one of each is read
    expected = 5 * SIZE / MB * (3 + 1)
    if time.monotonic() - begun < 55:  # else some of it is older than the window
        assert moved_mb(swift) - before == pytest.approx(expected, rel=0.02)
    threads = [
        (server, disk, thread)
        for device in swift.objects
        for server, disks in told(swift, device, "/osinfo").items()
        for disk, its in disks.items()
        for thread in its.values()
    ]
    assert {(server, disk) for server, disk, _ in threads} <= {
        (server, device) for device, server in swift.objects.items()
    }
    assert {t["policy"] for _, _, t in threads} == {"gold"}
    assert {(t["account"], t["identifier"], t["needed_BW"]) for _, _, t in threads} == {
        ("AUTH_test", "object", 50)
    }
    objects = [o for _, _, t in threads for o in t["objects"]]
    assert sum(o["oid"] == "/AUTH_test/files/file-3 ü.dat" for o in objects) == 4
    assert all(o["oid_calculated_BW"] > 0 for o in objects)


def test_a_collector_fills_the_dashboard_of_object_storage(swift: Swift) -> None:
    # would break if the collector took the rate of another device, or the dashboard left the plot empty
    servers = [
        {"url": f"http://{at}", "labels": {"host": "storage"}} for at in swift.objects.values()
    ]
    sink = MemorySink()
    time.sleep(2.1)  # what was moved before is in no bandwidth any more
    begun = time.time_ns()
    with Collecting(collectors_of({"swift": {"servers": servers, "interval_s": 0.5}}), sink):
        client = swift.client()
        client.put("files", "watched", os.urandom(SIZE))
        time.sleep(2.5)
    made = recorded(sink.batches.values(), begun, time.time_ns())
    rows = rows_of(DASHBOARDS["object-storage"], uses_of_points(made, {}))
    (lines,) = [lines for plot, lines in rows["storage"] if plot.key == "objects"]
    assert {line.name for line in lines} == set(swift.objects)
    busy = [line for line in lines if line.value.max() > 0]
    assert len(busy) >= 3  # three replicas
    assert max(line.value.max() for line in busy) <= SIZE / MB * 1.01


def test_an_object_server_without_a_token_tells_nobody_elsewhere(swift: Swift) -> None:
    device = next(iter(swift.objects))
    asked = urllib.request.Request(
        f"http://{swift.objects[device]}/bwinfo", headers={"X-Forwarded-For": "10.0.0.1"}
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(asked, timeout=10)


def test_it_is_put_into_an_empty_directory_alone(swift: Swift) -> None:
    with pytest.raises(SwiftError, match="expected an empty directory"):
        up(swift.directory)
    assert (swift.directory / "swift.json").stat().st_mode & 0o777 == 0o600
    assert swift.directory.stat().st_mode & 0o777 == 0o700


def test_several_workers_tell_of_one_server(tmp_path: Path) -> None:
    if lacking := missing():
        pytest.skip(f"not run: not installed (Debian: {' '.join(lacking)})")
    device = tmp_path / "device"
    device.mkdir()
    one = {"devices": [device], "replicas": 1}
    with running(tmp_path / "saio", middleware=True, workers=2, **one) as swift:
        clients = [swift.client() for _ in range(4)]
        clients[0].make("files")
        for number, client in enumerate(clients * 5):
            client.put("files", f"file-{number}", b"x" * MB)
        time.sleep(4)  # a worker tells the others every second
        assert moved_mb(swift) == pytest.approx(20.0, rel=0.02)
