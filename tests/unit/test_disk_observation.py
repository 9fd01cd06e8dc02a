"""Observation of disks in a run, for disks of the host or of nodes: tables and certificates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive.schemas import TABLES
from penstock.campaign.evidence.disk_observation import DiskObservation, observation_of
from penstock.emulate.disks.recorded import Recorded
from penstock.errors import BadInput

S = 1_000_000_000
MIB = 1 << 20


def throttled(name: str, share: float) -> Recorded:
    """A disk of 1 MiB/s that delivered `share` of it for four seconds."""
    rows = [
        {
            "t_ns": (n + 1) * S,
            "window_ns": S,
            "disk_id": name,
            "direction": direction,
            "bytes": round(share * MIB) if direction == "read" else 0,
            "ops": 256 if direction == "read" else 0,
            "limit_bps": float(MIB) if direction == "read" else None,
            "limit_iops": None,
        }
        for n in range(4)
        for direction in ("read", "write")
    ]
    table = pa.Table.from_pylist(rows, schema=TABLES["throttle_counters"].arrow)
    stats = {"read_bytes": 4 * MIB, "deep": {"reads": 4}, "label": "no number"}
    return Recorded(name, "cgroup1", stats, {"throttle_counters": table})


def change(name: str, node: str, error: str = "") -> dict[str, Any]:
    times = dict.fromkeys(("planned_ns", "applied_ns", "verified_ns"), 1)
    limits = {"limits": {"read_bps": 1e6}}
    cause = {"kind": "time", "text": ""}
    target = {"node": node, "resource": "disk", "name": name}
    return {**target, **times, "asked": limits, "found": limits, "error": error, "cause": cause}


def observed(
    disks: list[Recorded], changes: list[dict[str, Any]], by_node: bool
) -> DiskObservation:
    return observation_of(disks, changes, utilisation=None, run_cpu_ns=None, by_node=by_node)


def test_disks_of_host_and_nodes_differ_only_in_the_node() -> None:
    disks = [throttled("n1.a", 1.0), throttled("n2.a", 1.3)]
    changes = [change("a", "n1"), change("a", "n2", "refused")]
    host, nodes = (observed(disks, changes, by_node) for by_node in (False, True))
    expected = {"throttle_counters", "disk_stats", "fidelity", "fidelity_windows", "events"}
    assert set(host.tables) == set(nodes.tables) == expected
    for name, table in host.tables.items():
        of_nodes = nodes.tables[name]
        assert of_nodes.column_names == [*table.column_names, "node_id"]
        assert of_nodes.drop_columns(["node_id"]).equals(table), name
        assert set(of_nodes["node_id"].to_pylist()) == {"n1", "n2"}
    assert host.faults == nodes.faults
    assert [fault.partition(":")[0] for fault in host.faults] == ["n2.a", "a"]


def test_statistics_of_a_disk_are_flat() -> None:
    rows = observed([throttled("n1.a", 1.0)], [], False).tables["disk_stats"].to_pylist()
    assert {r["metric"]: r["value"] for r in rows} == {"read_bytes": 4 * MIB, "deep.reads": 4}


def test_a_back_end_that_records_nothing_has_counters_and_no_certificate() -> None:
    bare = replace(throttled("n1.a", 1.0), tables={})
    assert set(observed([bare], [], False).tables) == {"disk_stats"}
    assert bare.certificate(None) is None


def test_the_back_end_makes_the_certificate() -> None:
    certificate = throttled("n1.a", 1.0).certificate(None)
    assert certificate is not None
    assert certificate.overall["verdict"][0].as_py() == "honoured"
    assert replace(throttled("n1.a", 1.0), backend="fuse").certificate(None) is None
    with pytest.raises(BadInput, match="gone"):
        replace(throttled("n1.a", 1.0), backend="gone").certificate(None)


def test_records_are_passed_to_another_process_without_leftovers(tmp_path: Path) -> None:
    recorded = replace(
        throttled("n1.a", 1.0), reason="why", warnings=("beware",), facts={"size": 1}
    )
    document = recorded.to_files(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    restored = Recorded.from_files("n1.a", document, {"name": "p"}, [change("a", "n1")])
    assert list(tmp_path.iterdir()) == []
    assert replace(restored, profile={}, changes=(), tables=recorded.tables) == recorded
    counters = restored.tables["throttle_counters"].select(["disk_id", "bytes"]).to_pylist()
    assert counters == recorded.tables["throttle_counters"].select(["disk_id", "bytes"]).to_pylist()
