"""A study on hosts that are network namespaces: blocks, clocks, a dead host, certificates."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pyarrow.parquet as pq
import pytest

from penstock.archive.runs import bundles
from penstock.parts.remote.tls import Authority, security
from tests.support import commands

from .node_ground import Ground
from .remote_hosts import SUBNET, namespaces

STUDY = """
penstock: 1
name: hosts
question: Do hosts differ?
factors:
  word: {levels: [one, two]}
design: {kind: full, replicates: 2, seed: 3}
platform: {nodes: [{name: n}]}
workload:
  command: "cat /proc/net/fib_trie > {run_dir}/net; echo {word}; SLEEP"
  timeout: 30s
responses: {wall: {from: wall_s, unit: s, better: lower}}
observers: {monitor: null}
hosts:
  listen: SUBNET.254
  workers: [{name: left, netns: NET-0}, {name: right, netns: NET-1}]
"""


@pytest.mark.host
def test_a_client_without_the_campaign_s_certificate_is_refused(tmp_path: Path) -> None:
    trusted = security(Authority("a").identity("conductor").write(tmp_path / "a"))
    foreign = security(Authority("a").identity("conductor").write(tmp_path / "b"))
    with distributed.LocalCluster(
        n_workers=0, protocol="tls://", security=trusted, dashboard_address=None, silence_logs=True
    ) as cluster:
        with distributed.Client(cluster.scheduler_address, security=trusted, timeout=60) as client:
            assert client.scheduler_info()["address"].startswith("tls://")
        with pytest.raises((OSError, TimeoutError)):
            distributed.Client(cluster.scheduler_address, security=foreign, timeout=2)
        plain = cluster.scheduler_address.replace("tls://", "tcp://")
        with pytest.raises((OSError, TimeoutError, ValueError)):
            distributed.Client(plain, timeout=2)


@pytest.fixture
def ground() -> Iterator[Ground]:
    directory = Path(f"/var/tmp/gt-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    directory.mkdir(mode=0o755)
    created = Ground.create(directory)
    yield created
    undone = created.penstock("undo", "--all")  # a killed worker leaves control groups
    shutil.rmtree(directory, ignore_errors=True)
    assert undone.returncode == 0, undone.stderr


@pytest.fixture
def net() -> Iterator[str]:
    """Prefix of two network namespaces behind a bridge with the address SUBNET.254."""
    with namespaces(SUBNET, 2) as names:
        yield names[0].removesuffix("-0")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")


def study(ground: Ground, net: str, sleep: str) -> Path:
    path = ground.where / "s.yaml"
    path.write_text(STUDY.replace("SLEEP", sleep).replace("SUBNET", SUBNET).replace("NET", net))
    return path


@pytest.mark.host
@pytest.mark.long
@needs_root
def test_each_block_runs_on_one_host_and_is_collected(ground: Ground, net: str) -> None:
    out = ground.where / "out"
    result = ground.penstock(
        "run", "--no-report", str(study(ground, net, "true")), "-o", str(out), "--json"
    )
    assert result.returncode == 0, result.stderr
    assert "distributed" not in result.stderr  # the log of Dask
    collected = list(bundles(out))
    assert len(collected) == 4
    by_block: dict[int, set[str]] = {}
    for bundle in collected:
        manifest = bundle.manifest
        assert manifest["valid"], manifest["reason"]
        by_block.setdefault(manifest["block_id"], set()).add(manifest["host"]["host_id"])
        number = {"left": 1, "right": 2}[manifest["host"]["host_id"]]
        assert f"{SUBNET}.{number}\n" in (bundle.path / "workload" / "net").read_text()
        clocks = pq.read_table(bundle.path / "clocks.parquet").to_pylist()
        for row in clocks:  # the namespaces share one clock: the interval must contain 0
            assert abs(row["offset_ns"]) <= row["offset_bound_ns"]
            assert row["offset_bound_ns"] > 1000
    assert sorted(map(sorted, by_block.values())) == [["left"], ["right"]]
    assert json.loads(result.stdout)["valid_runs"] == 4
    runs = pq.read_table(out / "runs.parquet").to_pandas()
    assert set(runs["host_id"].astype(str)) == {"left", "right"}
    assert not list((ground.where / "state" / "hosts").glob("*"))


@pytest.mark.host
@pytest.mark.long
@needs_root
def test_the_run_of_a_dead_host_moves_to_another(ground: Ground, net: str) -> None:
    out = ground.where / "out"
    path = study(ground, net, "grep -q 'SUBNET.2$' {run_dir}/net && sleep 20; true")
    argv = [
        sys.executable,
        "-m",
        "penstock",
        "run",
        "--no-report",
        str(path),
        "-o",
        str(out),
        "--json",
    ]
    process: Any = commands.popen(
        argv, env=ground.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 100
    states = ground.where / "state" / "hosts"
    while not list(states.glob("*-right/runs/.*/workload/net")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)
    workers = [p for p in Path("/proc").glob("[0-9]*") if _is_worker(p, process.pid, f"{net}-1")]
    assert len(workers) == 1
    os.kill(int(workers[0].name), 9)
    entries = [e for e in ground.journal().open_entries() if e.owner.pid == int(workers[0].name)]
    assert "cgroup" in {e.kind for e in entries}
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "host right failed during" in errors
    assert ground.penstock("undo").returncode == 0
    assert not {e.token for e in entries} & {e.token for e in ground.journal().open_entries()}
    assert not any(Path(e.target).exists() for e in entries if e.kind == "cgroup")
    assert json.loads(output)["valid_runs"] == 4
    assert {b.manifest["host"]["host_id"] for b in bundles(out)} == {"left"}
    assert max(b.manifest["attempt"] for b in bundles(out)) == 2


def _is_worker(process: Path, parent: int, netns: str) -> bool:
    with contextlib.suppress(OSError, IndexError):
        ppid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        inode = os.stat(f"/run/netns/{netns}").st_ino
        return ppid == parent and os.stat(process / "ns" / "net").st_ino == inode
    return False
