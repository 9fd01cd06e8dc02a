"""What disks leave of a run, from either place that it took: one table each, one certificate each."""

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
    """A disk of 1 MiB/s that gave `share` of it for four seconds."""
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
    asked = {"limits": {"read_bps": 1e6}}
    cause = {"kind": "time", "text": ""}
    where = {"node": node, "resource": "disk", "name": name}
    return {**where, **times, "asked": asked, "found": asked, "error": error, "cause": cause}


def seen(disks: list[Recorded], changes: list[dict[str, Any]], by_node: bool) -> DiskObservation:
    return observation_of(disks, changes, utilisation=None, run_cpu_ns=None, by_node=by_node)


def test_both_places_give_the_same_but_for_the_node() -> None:
    disks = [throttled("n1.a", 1.0), throttled("n2.a", 1.3)]
    changes = [change("a", "n1"), change("a", "n2", "refused")]
    host, nodes = (seen(disks, changes, by_node) for by_node in (False, True))
    expected = {"throttle_counters", "disk_stats", "fidelity", "fidelity_windows", "events"}
    assert set(host.tables) == set(nodes.tables) == expected
    for name, table in host.tables.items():
        ours = nodes.tables[name]
        assert ours.column_names == [*table.column_names, "node_id"]
        assert ours.drop_columns(["node_id"]).equals(table), name
        assert set(ours["node_id"].to_pylist()) == {"n1", "n2"}
    assert host.faults == nodes.faults
    assert [fault.partition(":")[0] for fault in host.faults] == ["n2.a", "a"]


def test_numbers_of_a_disk_are_told_flat() -> None:
    rows = seen([throttled("n1.a", 1.0)], [], False).tables["disk_stats"].to_pylist()
    assert {r["metric"]: r["value"] for r in rows} == {"read_bytes": 4 * MIB, "deep.reads": 4}


def test_a_back_end_that_records_nothing_has_counters_and_no_certificate() -> None:
    bare = replace(throttled("n1.a", 1.0), tables={})
    assert set(seen([bare], [], False).tables) == {"disk_stats"}
    assert bare.certificate(None) is None


def test_the_back_end_makes_the_certificate() -> None:
    judged = throttled("n1.a", 1.0).certificate(None)
    assert judged is not None
    assert judged.overall["verdict"][0].as_py() == "honoured"
    assert replace(throttled("n1.a", 1.0), backend="fuse").certificate(None) is None
    with pytest.raises(BadInput, match="gone"):
        replace(throttled("n1.a", 1.0), backend="gone").certificate(None)


def test_what_a_disk_left_goes_to_another_process_and_leaves_no_file(tmp_path: Path) -> None:
    whole = replace(throttled("n1.a", 1.0), reason="why", warnings=("beware",), facts={"size": 1})
    said = whole.to_files(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    again = Recorded.from_files("n1.a", said, {"name": "p"}, [change("a", "n1")])
    assert list(tmp_path.iterdir()) == []
    assert replace(again, profile={}, changes=(), tables=whole.tables) == whole
    counters = again.tables["throttle_counters"].select(["disk_id", "bytes"]).to_pylist()
    assert counters == whole.tables["throttle_counters"].select(["disk_id", "bytes"]).to_pylist()
