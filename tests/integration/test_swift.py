"""A real Swift of four devices with the filter in its object servers: reported bandwidth."""

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
        pytest.skip(f"needs Debian packages: {' '.join(lacking)}")
    directory = tmp_path_factory.mktemp("swift") / "saio"
    with running(directory, middleware=True, options={"needed": "AUTH_test=50"}) as cluster:
        yield cluster
    # all recorded processes have ended
    record = json.loads((directory / "swift.json").read_text())
    assert not [pid for pid in record["pids"].values() if Path(f"/proc/{pid}").exists()]


def get_json(swift: Swift, device: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{swift.objects[device]}{path}", timeout=10) as response:
        assert response.headers["Content-Type"] == "application/json"
        return json.loads(response.read())


def moved_mb(swift: Swift) -> float:
    """Megabytes of all devices in the last minute: mean rate × seconds covered."""
    means = [get_json(swift, device, "/bwinfo")[device] for device in swift.objects]
    return sum((d["mean1min"] or 0.0) * round(60 * d["cov1min"]) for d in means)


def test_bwinfo_and_osinfo_report_the_bytes_of_clients(swift: Swift) -> None:
    # detects a filter that loses or doubles a body, or counts it for another device or second
    client = swift.client()
    client.make("files")
    client.put("files", "first", b"-")  # the first request starts the counters of the servers
    for attempt in range(3):
        start = time.monotonic()
        before = moved_mb(swift)
        names = [f"file-{attempt}-{number} ü.dat" for number in range(5)]
        for name in names:
            client.put("files", name, os.urandom(SIZE))
        assert [len(client.get("files", name)) for name in names] == [SIZE] * 5
        time.sleep(1.1)
        moved = moved_mb(swift) - before
        threads = [
            (server, disk, thread)
            for device in swift.objects
            for server, disks in get_json(swift, device, "/osinfo").items()
            for disk, by_thread in disks.items()
            for thread in by_thread.values()
        ]
        duration_s = time.monotonic() - start
        if duration_s < 55:
            break
        time.sleep(61)  # a busy host: a part is older than the window of a minute, until all is
    assert duration_s < 55, "the host was busy in every attempt"
    # three replicas of each file are written, one is read
    assert moved == pytest.approx(5 * SIZE / MB * (3 + 1), rel=0.02)
    assert {(server, disk) for server, disk, _ in threads} <= {
        (server, device) for device, server in swift.objects.items()
    }
    assert {t["policy"] for _, _, t in threads} == {"gold"}
    assert {(t["account"], t["identifier"], t["needed_BW"]) for _, _, t in threads} == {
        ("AUTH_test", "object", 50)
    }
    objects = [o for _, _, t in threads for o in t["objects"]]
    assert sum(o["oid"] == f"/AUTH_test/files/{names[3]}" for o in objects) == 4
    assert all(o["oid_calculated_BW"] > 0 for o in objects)


def test_a_collector_fills_the_dashboard_of_object_storage(swift: Swift) -> None:
    # detects rates of another device, and an empty plot
    servers = [
        {"url": f"http://{address}", "labels": {"host": "storage"}}
        for address in swift.objects.values()
    ]
    for _ in range(5):  # a paused collector misses the second of a transfer
        time.sleep(2.1)  # earlier transfers are no longer in the bandwidth
        start_ns, sink = time.time_ns(), MemorySink()
        with Collecting(collectors_of({"swift": {"servers": servers, "interval_s": 0.5}}), sink):
            swift.client().put("files", "watched", os.urandom(SIZE))
            time.sleep(2.5)
        recording = recorded(sink.batches.values(), start_ns, time.time_ns())
        rows = rows_of(DASHBOARDS["object-storage"], uses_of_points(recording, {}))
        (lines,) = [lines for plot, lines in rows["storage"] if plot.key == "objects"]
        assert {line.name for line in lines} == set(swift.objects)
        busy = [line for line in lines if line.value.max() > 0]
        if len(busy) >= 3:
            break
    assert len(busy) >= 3  # three replicas
    assert max(line.value.max() for line in busy) <= SIZE / MB * 1.01


def test_an_object_server_refuses_remote_requests_without_a_token(swift: Swift) -> None:
    device = next(iter(swift.objects))
    request = urllib.request.Request(
        f"http://{swift.objects[device]}/bwinfo", headers={"X-Forwarded-For": "10.0.0.1"}
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=10)


def test_swift_requires_an_empty_directory(swift: Swift) -> None:
    with pytest.raises(SwiftError, match="expected an empty directory"):
        up(swift.directory)
    assert (swift.directory / "swift.json").stat().st_mode & 0o777 == 0o600
    assert swift.directory.stat().st_mode & 0o777 == 0o700


def test_workers_of_one_server_share_their_counts(tmp_path: Path) -> None:
    if lacking := missing():
        pytest.skip(f"needs Debian packages: {' '.join(lacking)}")
    device = tmp_path / "device"
    device.mkdir()
    options = {"devices": [device], "replicas": 1}
    with running(tmp_path / "saio", middleware=True, workers=2, **options) as swift:
        clients = [swift.client() for _ in range(4)]
        clients[0].make("files")
        for number, client in enumerate(clients * 5):
            client.put("files", f"file-{number}", b"x" * MB)
        until = time.monotonic() + 30
        while moved_mb(swift) < 19.6 and time.monotonic() < until:
            time.sleep(0.5)
        time.sleep(4)  # workers exchange their counts every second
        assert moved_mb(swift) == pytest.approx(20.0, rel=0.02)
