"""Inputs of the applicability rules, from workload, platform and outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.parts.prediction.queue_network.applies import SMALL_BYTES, Conditions, Used
from penstock.parts.prediction.queue_network.uncertainty import measured_badly
from penstock.parts.prediction.queue_network.unequal import spread_rates
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.cluster import not_predicted
from penstock.platform.hosts import Platform
from penstock.profile.model import StorageProfile, ruled_out

Row = dict[str, Any]

#: the WfFormat reader's message about files of uniform size from a generator
_ALIKE = "as large as all others of their kind"
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
        spread=spread_rates(workload, network, stages, hosts),
        uniform=next((n for n in workload.notes if _ALIKE in n), ""),
        notes=[
            *(n for n in workload.notes if _ALIKE not in n and not _NOT_SIMULATED.fullmatch(n)),
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
