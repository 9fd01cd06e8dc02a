"""Small versions of the published monitoring experiments: databases, torrents, reads, and a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.node_ground import NODES, Ground, one_ground

__all__ = ["one_ground"]  # a fixture

STUDIES = Path(__file__).parents[2] / "studies"
sys.path.insert(0, str(STUDIES))

import monitored_offsets  # noqa: E402
import monitored_shards  # noqa: E402
import monitored_swarm  # noqa: E402
from monitored import server as of_studies  # noqa: E402

from bench import record  # noqa: E402
from penstock.emulate.cluster.cluster import Cluster  # noqa: E402
from tests.support import commands  # noqa: E402

pytestmark = [*NODES, pytest.mark.timeout(600)]


def _popen_without_preexec(
    argv: list[str], preexec_fn: object = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start a command without `preexec_fn`."""
    return commands.popen(argv, **options)


@pytest.fixture(autouse=True)
def _commands_without_preexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_studies, "run", commands.run)
    monkeypatch.setattr(of_studies, "popen", _popen_without_preexec)


def missing(*programs: str) -> pytest.MarkDecorator:
    absent = [p for p in programs if shutil.which(p) is None and not Path(p).exists()]
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")


def missed(rows: list[record.Row]) -> list[str]:
    return [f"{r['case']}: {r['metric']}" for r in rows if r.get("verdict") == record.MISSED]


@missing("fio")
def test_every_offset_is_stored_in_the_order_of_requests(ground: Ground) -> None:
    rows, planted = monitored_offsets.study(ground.where / "out", 16 << 20, 50_000)
    # the time of a push and the scrapes during a short read depend on the host
    relevant = [m for m in missed(rows) if "pushed in" not in m and "points kept" not in m]
    assert relevant == []
    assert all(planted.values()), planted
    by_name = {(r["case"], r["metric"]): r for r in rows}
    assert by_name["random read", "requests stored"]["value"] == 4096


@missing("prometheus-node-exporter", "/usr/lib/postgresql/15/bin/initdb")
def test_disk_and_simulated_power_of_three_shards(ground: Ground) -> None:
    size = monitored_shards.Size(5, 20_000, 4, 0, 0)
    out = ground.where / "out"
    out.mkdir()
    with monitored_shards.shards(out, size) as nodes:
        rows, planted = monitored_shards.watched(out, nodes, size)
    # the age of samples and r of a short run depend on the host
    relevant = [m for m in missed(rows) if not m.startswith(("live view", "shard-"))]
    assert relevant == []
    assert planted["a third line in the script"]
    assert planted["a figure with another value"]
    assert not ground.host_objects()["mounts"], "a disk or a node is still mounted"
    table = (out / "shards.csv").read_text().splitlines()
    assert table[0].count("emulated power") == 3


@missing("transmission-daemon", "opentracker")
def test_peers_of_a_torrent_are_scraped_over_a_separate_network(ground: Ground) -> None:
    size = monitored_swarm.Size(3, 300_000, 1.0, 0)
    out = ground.where / "out"
    out.mkdir()
    file = out / "platform.json"
    file.write_text(json.dumps(monitored_swarm.platform(size)))
    with Cluster.of_platform(file) as cluster:
        torrent = monitored_swarm.torrent_of(out, cluster, size)
        rows, planted, completed = monitored_swarm.watched(out, cluster, torrent, size)
    # with three peers the spread and r are not meaningful
    relevant = [m for m in missed(rows) if "spread" not in m and "r of joining" not in m]
    assert relevant == []
    assert all(planted.values()), planted
    assert len(completed) == 3


@missing("transmission-daemon", "opentracker")
def test_a_study_that_is_killed_leaves_nothing(ground: Ground) -> None:
    initial = ground.host_objects()
    argv = [str(STUDIES / "monitored_swarm.py"), "--quick", "-o", str(ground.where / "out")]
    study = subprocess.Popen(
        [sys.executable, *argv], env=ground.environment, stderr=subprocess.DEVNULL
    )
    runtime = ground.where / "out" / "monitoring" / "run"
    deadline = time.monotonic() + 120
    while not list(runtime.glob("serve-*.json")):
        assert study.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (file,) = runtime.glob("serve-*.json")
    server = int(json.loads(file.read_text())["pid"])
    study.send_signal(signal.SIGKILL)
    study.wait()
    deadline = time.monotonic() + 120
    while os.path.exists(f"/proc/{server}") or ground.host_objects() != initial:
        assert time.monotonic() < deadline, "a server, a node or a link still exists"
        time.sleep(0.5)
    assert ground.penstock("undo").returncode == 0
