"""The bundle that an experiment leaves: an ordinary bundle of one run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import TAKEN, worst
from penstock.archive.schemas import TABLES
from penstock.parts.monitoring.experiments.experiment import Experiment, Phase
from penstock.parts.monitoring.experiments.recorded import Recorded, refusals
from penstock.parts.monitoring.queries import fetch_records as fetched
from penstock.writing import sync


def write_bundle(
    path: Path,
    ended: Experiment,
    head: Mapping[str, Any],
    lines: list[dict[str, Any]],
    recorded: Recorded,
) -> None:
    """Write the bundle of an experiment that has ended from its live files and recorded tables."""
    assert ended.end_ns is not None
    stop = lines[-1]
    receipts = fetched.receipts(fetched.lines_of(ended.live))
    clocks = [{"point": "start", **head["clocks"]}, {"point": "end", **stop["clocks"]}]
    shift = head["clocks"]["realtime_ns"] - head["clocks"]["monotonic_ns"]
    reason = reason_of(ended.state, stop["exit_status"], recorded, fetched.missing(receipts))
    manifest = {
        "run_id": ended.run_id,
        "attempt": ended.repeat,
        "levels": dict(ended.params),
        "state": ended.state,
        "valid": not reason,
        "reason": reason,
        "exit_status": stop["exit_status"],
        "losses": {"experiment": recorded.lost},
        "responses": {"wall_s": {"value": (ended.end_ns - ended.start_ns) / 1e9, "unit": "s"}},
        "times": {
            "start_realtime_ns": ended.start_ns,
            "end_realtime_ns": ended.end_ns,
            "start_ns": ended.start_ns - shift,
            "end_ns": ended.end_ns - shift,
            "wall_s": (ended.end_ns - ended.start_ns) / 1e9,
        },
        **head["facts"],
        **stop["facts"],
        **({"fetched": receipts} if receipts else {}),
        "experiment": {
            "name": ended.name,
            "user": ended.owner,
            "shared": ended.shared,
            "tags": list(ended.tags),
            "verdict": recorded.verdict,
        },
    }
    marks = [("phase", p.name, p.start_ns, p.end_ns) for p in ended.phases]
    marks += [("note", text, at, None) for at, text in ended.notes]
    rows = [
        {"number": i, "kind": k, "name": n, "start_utc_ns": a, "end_utc_ns": b}
        for i, (k, n, a, b) in enumerate(sorted(marks, key=lambda m: m[2]))
    ]
    phases = [
        {"phase_id": p.name, "start_ns": p.start_ns - shift, "end_ns": (p.end_ns or 0) - shift}
        for p in ended.phases
    ]
    with Bundle.create(path, manifest) as bundle:
        for name, table in (
            ("series", recorded.series),
            ("points", recorded.points),
            ("gaps", recorded.gaps),
            ("marks", pa.Table.from_pylist(rows, TABLES["marks"].arrow)),
            ("clocks", pa.Table.from_pylist(clocks, TABLES["clocks"].arrow)),
            ("phases", pa.Table.from_pylist(phases, TABLES["phases"].arrow)),
        ):
            bundle.write_table(name, table)
            sync(bundle.path / f"{name}.parquet")


def reason_of(state: str, exit_status: int | None, recorded: Recorded, missing: str = "") -> str:
    """Reason why the run is not used; empty if it is. `missing`: data not fetched from remote servers."""
    if state != "ended":
        return f"it was {state}"
    if exit_status not in (None, 0):
        return f"it ended with status {exit_status}"
    if recorded.verdict in TAKEN:
        return missing
    rows = recorded.series.select(["metric", "verdict"]).to_pylist()
    bad = sorted({r["metric"] for r in rows if r["verdict"] not in TAKEN})
    of_series = worst(r["verdict"] for r in rows)
    reasons = [f"its series are {of_series}: {', '.join(bad[:5])}"] if bad else []
    reasons += [f"{s}: {one}" for s, one in refusals(recorded).items() if one.verdict not in TAKEN]
    return "; ".join(reasons)


def of_bundle(bundle: Bundle) -> Experiment:
    """The experiment of a bundle."""
    manifest = bundle.manifest
    about = manifest["experiment"]
    marks = bundle.table("marks", ["kind", "name", "start_utc_ns", "end_utc_ns"]).to_pylist()
    return Experiment(
        about["name"],
        manifest["attempt"],
        about["user"],
        about["shared"],
        manifest["state"],
        manifest["times"]["start_realtime_ns"],
        manifest["times"]["end_realtime_ns"],
        manifest["levels"],
        tuple(about["tags"]),
        bundle.path,
        str(bundle.path.parent),
        manifest["run_id"],
        manifest["valid"],
        tuple(
            Phase(m["name"], m["start_utc_ns"], m["end_utc_ns"])
            for m in marks
            if m["kind"] == "phase"
        ),
        tuple((m["start_utc_ns"], m["name"]) for m in marks if m["kind"] == "note"),
        {k: manifest[k] for k in ("exit_status", "host", "command", "files") if k in manifest},
    )


def run_phases(bundle: Bundle) -> tuple[Phase, ...]:
    """Phases of a run of a study, in the time of day."""
    if "phases" not in bundle.tables or "clocks" not in bundle.tables:
        return ()
    first = bundle.table("clocks", ["monotonic_ns", "realtime_ns"]).slice(0, 1).to_pylist()[0]
    shift = first["realtime_ns"] - first["monotonic_ns"]
    rows = bundle.table("phases", ["phase_id", "start_ns", "end_ns"]).to_pylist()
    return tuple(Phase(r["phase_id"], r["start_ns"] + shift, r["end_ns"] + shift) for r in rows)


def clock_row() -> dict[str, int]:
    """The clocks at this instant: a row of the table `clocks`."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    realtime, boottime = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return {
        "monotonic_ns": (before + after) // 2,
        "realtime_ns": realtime,
        "boottime_ns": boottime,
        "offset_ns": 0,
        "offset_bound_ns": after - before,
    }
