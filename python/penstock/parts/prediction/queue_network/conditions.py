"""Inputs of the applicability rules, from workload, platform and outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from penstock.parts.prediction.queue_network.applies import (
    SMALL_BYTES,
    Conditions,
    ReadAhead,
    Used,
)
from penstock.parts.prediction.queue_network.uncertainty import measured_badly
from penstock.parts.prediction.queue_network.unequal import spread_rates
from penstock.parts.prediction.workloads.sizes import ALIKE
from penstock.parts.prediction.workloads.task import Hints
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.cluster import not_predicted
from penstock.platform.engine import engine_of, settings_in_numbers
from penstock.platform.hosts import Platform
from penstock.profile.model import StorageProfile, ruled_out

Row = dict[str, Any]

#: the trace reader's message about operations that a workload cannot express
_NOT_SIMULATED = re.compile(r"(\d+) (.+) are not simulated")
#: a fitted profile's source with the measured request sizes
_SIZES = re.compile(r"request sizes (\d+) to (\d+) B")


def conditions(
    workload: Workload,
    platform: Platform,
    network: Row,
    stations: Sequence[Row],
    stages: Sequence[Row],
    hosts: Sequence[Row],
    **more: Any,
) -> Conditions:
    """Conditions of one prediction; `more` are further fields of `Conditions`."""
    profiles = profiles_of(network)
    chunk = float(network["store"]["chunk_bytes"])
    return Conditions(
        stations=stations,
        stages=stages,
        used=profiled_range(profiles.values(), chunk),
        history=history(profiles.values(), int(chunk)),
        ruled_out={name: off for name, p in profiles.items() if (off := ruled_out(p))},
        unmodelled=unmodelled(workload),
        small=small_operations(workload),
        stored=stored(network, hosts),
        writers=concurrent_writers(platform, network, stages),
        read_ahead=read_ahead(workload, platform),
        saturated=saturated_rounds(platform),
        throttled=throttled(platform),
        spread=spread_rates(workload, network, stages, hosts),
        uniform=next((n for n in workload.notes if ALIKE in n), ""),
        notes=[
            *(n for n in workload.notes if ALIKE not in n and not _NOT_SIMULATED.fullmatch(n)),
            *not_predicted(platform),
        ],
        platform=measured_badly(platform),
        **more,
    )


def profiles_of(network: Row) -> dict[str, Row]:
    """The storage profiles in use, by name."""
    profiles: dict[str, Row] = {}
    for host in network["hosts"]:
        profile = (host.get("storage") or {}).get("profile")
        if profile is not None:
            profiles.setdefault(str(profile.get("name")), profile)
    return profiles


def profiled_range(profiles: Iterable[Row], chunk_bytes: float) -> list[Used]:
    """The chunk size compared with the measured request sizes of fitted profiles."""
    used = []
    for profile in profiles:
        sources = " ".join(str(s.get("what", "")) for s in profile.get("source") or [])
        match = _SIZES.search(sources)
        if match:
            low, high = float(match.group(1)), float(match.group(2))
            name = f"the chunk size on {profile.get('name')}"
            used.append(Used(name, chunk_bytes, low, high, "B"))
    return used


def history(profiles: Iterable[Row], chunk_bytes: int) -> dict[str, float]:
    """Profile → random over sequential mean service time of a chunk, the larger of reads and writes."""
    ratio_by_profile = {}
    for values in profiles:
        profile = StorageProfile.from_dict(values)
        ratios = []
        for op in ("read", "write"):
            sequential = profile.moments(op, True, chunk_bytes).mean
            if sequential > 0:
                ratios.append(profile.moments(op, False, chunk_bytes).mean / sequential)
        ratio_by_profile[profile.name] = max(ratios, default=1.0)
    return ratio_by_profile


def stored(network: Row, hosts: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Host → bytes stored at the end and its capacity, if limited."""
    capacity = {
        h["name"]: h["storage"].get("capacity_bytes") for h in network["hosts"] if h.get("storage")
    }
    return {
        h["name"]: (float(h["stored_bytes"]), float(capacity[h["name"]]))
        for h in hosts
        if capacity.get(h["name"])
    }


def small_operations(workload: Workload) -> tuple[int, int]:
    """Reads and writes that move less than SMALL_BYTES, and the number of all."""
    sizes = [
        o.size_bytes for t in workload.tasks for o in t.operations if o.op in ("read", "write")
    ]
    return sum(size < SMALL_BYTES for size in sizes), len(sizes)


def unmodelled(workload: Workload) -> dict[str, int]:
    """Operations of a traced run omitted from its workload → count."""
    matches = (_NOT_SIMULATED.fullmatch(note) for note in workload.notes)
    return {m.group(2): int(m.group(1)) for m in matches if m}


def concurrent_writers(
    platform: Platform, network: Row, stages: Sequence[Row]
) -> tuple[str, float] | None:
    """Engine whose concurrent writes are not calibrated, and their share of the tasks' time; else None.

    Tasks write at once if their stages overlap, or if they are of one stage.
    """
    name, engine = platform.file.store.engine, engine_of(platform)
    clients = sum(host.get("client") is not None for host in network["hosts"])
    calibrated = (platform.plain.get("store") or {}).get("write_contention") is not None
    if name is None or clients < 2 or calibrated or (engine is not None and engine.writers):
        return None
    writing = sorted((s for s in stages if s["written_bytes"]), key=lambda s: s["start_s"])
    total = sum(s["tasks"] * s["task_mean_s"] for s in stages)
    spent, latest = 0.0, 0.0
    for one, following in zip_longest(writing, writing[1:]):
        beside = one["start_s"] < latest
        if following is not None:
            beside = beside or following["start_s"] < one["end_s"]
        spent += one["write_s"] if beside or one["tasks"] > 1 else 0.0
        latest = max(latest, one["end_s"])
    return (name, spent / total) if total else None


def read_ahead(workload: Workload, platform: Platform) -> ReadAhead | None:
    """Read-ahead of the seeded store's clients where it exceeds their cache; None if it never does.

    A seeding without `read_ahead_bytes` is of a store whose clients read ahead by the engine's default.
    """
    engine, seeding = engine_of(platform), _seeding(platform)
    if engine is None or engine.client is None or not seeding:
        return None
    own = settings_in_numbers(platform)
    cache = engine.client.cache_bytes(own.get("preprocess.cache"))
    chunk = own.get("store.chunk", engine.chunk_bytes)
    together = {f.name: _together(f.hints, chunk) for f in workload.files}
    sizes, bound = workload.file_sizes, _count(seeding, "read_ahead_bytes")
    read, beyond, most = 0, 0, 0
    for task in workload.tasks:
        for operation in task.operations:
            if operation.op != "read" or operation.file is None:
                continue
            read += operation.size_bytes
            ahead = engine.client.periods * together.get(operation.file, chunk)
            if own.get("preprocess.prefetch"):
                ahead = own["preprocess.prefetch"] * chunk
            ahead = min(ahead, bound or ahead, sizes.get(operation.file, 0))
            if ahead > cache:
                beyond, most = beyond + operation.size_bytes, max(most, ahead)
    if not beyond:
        return None
    return ReadAhead(str(platform.file.store.engine), most, cache, beyond / read)


def _together(hints: Hints | None, chunk_bytes: int) -> int:
    """Bytes of a file that lie together on one node."""
    if hints is None:
        return chunk_bytes
    together = hints.scatter if hints.placement == "scatter" and hints.scatter else 1
    return together * (hints.chunk_bytes or chunk_bytes)


def saturated_rounds(platform: Platform) -> tuple[int, int]:
    """Rounds of the seeding that were discarded because the host was busy, and the number of all."""
    seeding = _seeding(platform)
    return _count(seeding, "dropped"), _count(seeding, "rounds")


def throttled(platform: Platform) -> dict[str, float]:
    """Node of the seeding → share of the periods in which its processor limit was reached."""
    shares = _seeding(platform).get("throttled")
    if not isinstance(shares, dict):
        return {}
    return {str(node): s for node, s in shares.items() if isinstance(s, int | float)}


def _count(facts: Mapping[str, object], key: str) -> int:
    """A recorded count; 0 if it is missing or no count, as facts are not validated."""
    value = facts.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _seeding(platform: Platform) -> Mapping[str, object]:
    """Facts about the measurement of the platform's service times."""
    facts = platform.file.facts.get("seeding")
    return facts if isinstance(facts, dict) else {}
