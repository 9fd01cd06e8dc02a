"""Results of a completed run: its tables, validity and responses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.archive.receipts import device_faults, unplaced_faults
from penstock.campaign.conductor import Phase
from penstock.campaign.evidence.attempt_work import AttemptWork
from penstock.campaign.evidence.judgement import Evidence, Judgement, judge
from penstock.campaign.evidence.witness import confirmation, doubted, own_numbers
from penstock.errors import PenstockError
from penstock.host.processes.launch import Finished, last_line
from penstock.spec.study import Study
from penstock.workload.measured import IncompleteError, Measured
from penstock.workload.responses import measure


def write_tables(work: AttemptWork) -> list[str]:
    """Write the records to the bundle; returns contradictions between independent sources and the disks'
    logs."""
    bundle = work.bundle
    tables = work.observation.tables()
    witnessed = confirmation(work.observation, work.mounts, work.resolved)
    if witnessed is not None:
        tables["confirmation"] = witnessed
    stdout = (bundle.path / "stdout.txt").read_text(errors="replace")
    reported = own_numbers(work.observation, work.resolved, work.run_dir, stdout)
    if reported is not None:
        tables["second_source"] = reported
    for name, table in tables.items():
        bundle.write_table(name, table)
    claims = work.run_dir / "claims.json"
    if claims.exists() and work.mounts:
        _write_agreement(work, claims)
    bundle.write_table("clocks", pa.Table.from_pylist(work.observation.clocks))
    return [*doubted(witnessed, "traced"), *doubted(reported, "fio")]


def judgement_of(
    work: AttemptWork, finished: Finished, study: Study, doubts: Sequence[str], data_altered: bool
) -> Judgement:
    """Decide if the run may be used, before its responses are read."""
    seen = work.observation
    traced, monitored = (seen.receipts.get(name, {}) for name in ("trace", "monitor"))
    return judge(
        Evidence(
            finished=finished,
            timeout_s=work.resolved.timeout_s,
            last_line=last_line(work.bundle.path / "stderr.txt"),
            oom_kills=work.used.oom_kills,
            node_faults=work.used.faults,
            data_altered=data_altered,
            state_faults=tuple(_state_faults(work, study)),
            fidelity_faults=(*seen.fidelity_faults, *doubts),
            lost_events=int(seen.losses.get("trace", 0)),
            recorded_events=int(traced.get("kept", 0)),
            unplaced_faults=unplaced_faults(traced),
            missed_samples=int(seen.losses.get("monitor", 0)),
            expected_samples=int(monitored.get("expected", 0)),
            alert=work.alert,
            on_nodes=work.resolved.cluster is not None,
        )
    )


def responses_of(
    work: AttemptWork, finished: Finished, study: Study, judgement: Judgement
) -> tuple[dict[str, Measured], Judgement]:
    """Responses that were reported or recorded; a run without one of them is invalid."""
    if judgement.state != "finished":
        return {}, judgement
    try:
        measured = measure(
            study.responses,
            work.resolved.parser,
            work.run_dir,
            (work.bundle.path / "stdout.txt").read_text(errors="replace"),
            (work.bundle.path / "stderr.txt").read_text(errors="replace"),
            finished.wall_s,
            Bundle(
                work.bundle.path, {**work.bundle.manifest, "receipts": work.observation.receipts}
            ),
        )
    except PenstockError as error:
        reason = "; ".join(r for r in (judgement.reason, str(error)) if r)
        if isinstance(error, IncompleteError):
            causes = tuple(dict.fromkeys((*judgement.causes, "losses")))
            return {}, Judgement("finished", False, reason, True, causes)
        return {}, Judgement("failed", False, reason, False)
    return measured, judgement


def grade(bundle: Bundle, study: Study, judgement: Judgement) -> Judgement:
    """Judgement including the bounds of the run's delays (`validity.graded`); updates the manifest with
    both."""
    from penstock.analyse.fidelity.validity import (  # pandas: not before the end of a run
        DEGRADED,
        graded,
    )

    manifest = graded(bundle, study.responses).manifest
    bundle.manifest.update(manifest)
    if manifest["validity"] != DEGRADED:
        return judgement
    judgement = replace(
        judgement, valid=True, degraded=True, repeatable=False, causes=("degraded",)
    )
    bundle.manifest.update(repeatable=False, causes=["degraded"])
    return judgement


def less_delayed(before: Bundle, now: Bundle) -> bool:
    """True if an earlier attempt is used instead: it was degraded, and this one no less."""

    def share(manifest: Mapping[str, Any]) -> float:
        delay = manifest.get("delay")
        return float(delay["late_s"]) / float(delay["wall_s"]) if delay else math.inf

    if before.manifest.get("validity") != "degraded" or now.manifest["validity"] == "valid":
        return False
    return share(before.manifest) <= share(now.manifest)


def phases_table(phases: Sequence[Phase]) -> pa.Table:
    """The table `phases`, without the keys of a bundle."""
    return pa.table(
        {
            "phase_id": [p.phase_id for p in phases],
            "start_ns": pa.array([p.start_ns for p in phases], pa.int64()),
            "end_ns": pa.array([p.end_ns for p in phases], pa.int64()),
        }
    )


def _state_faults(work: AttemptWork, study: Study) -> list[str]:
    """Differences between the initial state of the run and the declared one."""
    settled = work.settled.fault if work.settled else ""
    at_most = study.settle.in_flight_at_most
    devices = [] if at_most is None else device_faults(work.devices, at_most)
    return [fault for fault in (settled, *devices, work.verdict, work.undrained) if fault]


def _write_agreement(work: AttemptWork, claims: Path) -> None:
    from penstock.analyse.fidelity.agreement import agreement, read_claims

    tables = work.observation.tables()
    mount = str(next(iter(work.mounts.values())))
    table = agreement(
        read_claims(claims),
        work.observation.events(["file_id", "direction", "done_bytes"]),
        tables.get("files"),
        tables.get("device_requests"),
        mount,
    )
    work.bundle.write_table("agreement", table)
