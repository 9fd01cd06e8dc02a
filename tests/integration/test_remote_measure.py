"""Measurement of two hosts, which are network namespaces and share one clock."""

from __future__ import annotations

import json

import pytest

from .node_ground import NODES
from .remote_hosts import RemoteHosts

pytestmark = [*NODES, pytest.mark.long]

PLATFORM = """
penstock_platform: 1
name: measured
hosts:
  - {group: n, count: 1, memory: 128MiB, host: left}
  - {group: m, count: 1, memory: 128MiB, host: right}
network: {latency: 5ms}
"""


def test_measured_hosts_carry_a_cluster() -> None:
    with RemoteHosts.up(("left", "right")) as hosts:
        directory = hosts.where / "measured"
        directory.mkdir()
        file = directory / "hosts.yaml"
        lines = hosts.file.read_text().splitlines()
        file.write_text("\n".join(line for line in lines if not line.startswith("paths:")))
        platform = directory / "p.yaml"
        platform.write_text(PLATFORM)
        measured = hosts.here.penstock("hosts", "measure", str(file), "--json")
        assert measured.returncode == 0, measured.stderr
        (path,) = json.loads(measured.stdout)["paths"]
        assert (path["hosts"], path["loss"]) == (["left", "right"], 0)
        assert path["delay_s"] > 0
        for facts in json.loads(measured.stdout)["facts"].values():
            with open(facts) as stream:
                clock = json.load(stream)["clock"]
            assert abs(clock["offset_ns"]) <= clock["bound_ns"]
        planned = hosts.here.penstock(
            "hosts", "plan", str(platform), "--hosts", str(file), "--json"
        )
        assert planned.returncode == 0, planned.stderr
        assert {p["delay_s"] for p in json.loads(planned.stdout)["paths"]} == {path["delay_s"]}
        up = hosts.here.penstock("hosts", "up", str(platform), "--hosts", str(file))
        assert up.returncode == 0, up.stderr
        second = hosts.here.penstock("hosts", "measure", str(file))
        assert second.returncode == 1
        assert "host left: UDP port 4789 of " in second.stderr
        hosts.record_tokens()
        assert hosts.here.penstock("hosts", "down").returncode == 0
        hosts.assert_nothing_left()
