"""Whether an emulated speed makes a time-out of the application unreachable (EM-42), of every treatment."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from penstock.analyse.timeouts import application_of, warnings_of
from penstock.errors import BadInput
from penstock.study.model import Study
from penstock.study.resolve import ResolvedRun, resolve


def time_out_warnings(study: Study, treatments: list[dict[str, str]]) -> list[str]:
    """One text for each time-out that a disk of a treatment will or may trip, the first treatment named."""
    found: dict[str, tuple[list[str], str]] = {}
    for levels in treatments:
        try:
            run = resolve(study, levels)
        except (BadInput, KeyError):
            continue  # said when it is resolved to be run
        said = " ".join([run.command, run.prepare or "", *(s.command for s in run.services)])
        application = application_of(said)
        if application is None:
            continue
        where = ", ".join(f"{k} {v}" for k, v in levels.items())
        for disk_id, rate_bps in slowest_rates(run).items():
            for warning in warnings_of(rate_bps, application):
                if warning.timeout.application != "linux":
                    disks, _ = found.setdefault(str(warning), ([], where))
                    if disk_id not in disks:
                        disks.append(disk_id)
    return [f"{_some(disks)}: {text} ({where})" for text, (disks, where) in found.items()]


def _some(disks: list[str]) -> str:
    more = f" and {len(disks) - 3} more" if len(disks) > 3 else ""
    return ", ".join(disks[:3]) + more


def slowest_rates(run: ResolvedRun) -> dict[str, float]:
    """The least rate that each disk of a run is held to at any time [B/s]: its limits, those of its schedule,
    and what its profile takes per byte."""
    found: dict[str, float] = {}
    for disk in run.disks:
        rates = list(_profile_rates(disk.profile))
        if run.cluster is not None:
            node = next(n for n in run.cluster.nodes if n.name == disk.node)
            limits = next(d.limits for d in node.disks if d.name == disk.name)
            rates += [r for r in (limits.read_bps, limits.write_bps) if r is not None]
            for event in run.cluster.events:
                fits = any(fnmatch.fnmatch(disk.node, p) for p in event.nodes)
                if fits and event.resource == "disk" and event.name in (disk.name, "*", None):
                    changed = event.patch.get("limits") or {}
                    rates += [changed[k] for k in ("read_bps", "write_bps") if changed.get(k)]
        if rates:
            found[disk.disk_id] = min(rates)
    return found


def _profile_rates(profile: dict[str, Any]) -> Iterator[float]:
    """Of a stream, of the interface, of the profile's own limits, and of credits that have run out [B/s]."""
    streams = [(profile.get(d) or {}).get("sequential") or {} for d in ("read", "write")]
    limits = profile.get("limits") or {}
    credits_ = (profile.get("credits") or {}).get("bytes") or {}
    rates = [stream.get("rate_bps") for stream in streams]
    rates += [profile.get("interface_rate_bps"), credits_.get("baseline")]
    rates += [limits.get(key) for key in ("read_bps", "write_bps")]
    for rate in rates:
        if isinstance(rate, int | float) and rate > 0:
            yield float(rate)
