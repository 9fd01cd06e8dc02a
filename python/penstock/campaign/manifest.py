"""Manifest of a run's bundle: plan at the start, results at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from penstock.campaign.conductor import Attempt
from penstock.campaign.evidence.attempt_work import AttemptWork
from penstock.campaign.evidence.judgement import Judgement
from penstock.design.planned import PlannedRun
from penstock.host.processes.launch import Finished
from penstock.spec.study import Study
from penstock.study.resolve import ResolvedDisk, ResolvedRun
from penstock.workload.measured import Measured


def planned(
    attempt: Attempt[PlannedRun],
    resolved: ResolvedRun,
    study: Study,
    study_id: str,
    host: Mapping[str, Any],
) -> dict[str, Any]:
    """Entries available before the run; `host`: facts of the host."""
    run = attempt.run
    return {
        "host": host,
        "study_id": study_id,
        "study_hash": study.hash,
        "treatment_id": run.treatment_id,
        "run_id": run.run_id,
        "attempt": attempt.number,
        "levels": run.levels,
        "run_order": run.run_order,
        "standard_order": run.standard_order,
        "replicate": run.replicate,
        "block_id": run.block,
        "stage": run.stage,
        "seed": study.design.seed,
        "draw_seed": draw_seed(study.design.seed, run.run_id, attempt.number),
        "node_id": resolved.nodes[0].name,
        "prepare": resolved.prepare,
        "memory_bytes": resolved.memory_bytes,
        "profiles": {d.disk_id: profile_hash(d.profile) for d in resolved.disks if d.emulated},
        "disks": {d.disk_id: _about_disk(d) for d in resolved.disks},
    }


def ended(
    work: AttemptWork,
    finished: Finished,
    judgement: Judgement,
    responses: Mapping[str, Measured],
    own_s: float,
) -> dict[str, Any]:
    """Entries available after the run; `own_s`: the conductor's own time."""
    seen = work.observation
    return {
        "exit_status": finished.exit_status,
        "signal": finished.signal,
        "peak_memory_bytes": work.used.peak_memory_bytes,
        "oom_kills": work.used.oom_kills,
        "cpu_ns": work.used.cpu_ns,
        "cpu_waited_ns": work.used.cpu_waited_ns,
        "after_status": work.after.exit_status if work.after is not None else None,
        "state": judgement.state,
        "valid": judgement.valid,
        "reason": judgement.reason,
        "repeatable": judgement.repeatable,
        "causes": list(judgement.causes),
        "resident_share": work.settled.resident_share if work.settled else {},
        "device_state": work.devices,
        "losses": seen.losses,
        "receipts": seen.receipts,
        "responses": {n: {"value": m.value, "unit": m.unit} for n, m in responses.items()},
        "times": {
            "start_realtime_ns": seen.clocks[0]["realtime_ns"],
            "start_ns": finished.start_ns,
            "end_ns": finished.end_ns,
            "wall_s": finished.wall_s,
            "own_s": own_s,
        },
    }


def draw_seed(seed: int, run_id: str, number: int) -> int:
    """Seed of the disks' random draws in one attempt: distinct for every run, reproducible."""
    text = f"{seed}/{run_id}/{number}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "big")


def profile_hash(profile: dict[str, Any]) -> str:
    """SHA-256 of a storage profile."""
    return hashlib.sha256(json.dumps(profile, sort_keys=True).encode()).hexdigest()


def _about_disk(disk: ResolvedDisk) -> dict[str, Any]:
    if disk.directory is not None:
        return {"name": disk.name, "directory": str(disk.directory)}
    return {
        "name": disk.name,
        "profile": disk.profile_name,
        "time_scale": disk.time_scale,
        "emulated": disk.profile,
    }
