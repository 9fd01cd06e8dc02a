"""Certificates of recorded runs, recomputed by current rules from their bundles.

The bundles are not changed: the analysis uses the new verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.analyse.fidelity.fidelity import RULES
from penstock.analyse.fidelity.fidelity_log import columns
from penstock.analyse.fidelity.validity import INVALID, VALID
from penstock.archive.bundle import Bundle
from penstock.archive.runs import undictionaried
from penstock.archive.schemas.table import BUNDLE_KEYS
from penstock.campaign.evidence.disk_observation import faults_of
from penstock.emulate.disks.recorded import Recorded
from penstock.plugins import DISK_BACKENDS

_NEEDED = ("device_requests", "disk_stats")


@dataclass(frozen=True)
class RejudgedCertificates:
    """A run by current rules: its validity (`bundle`), its `fidelity` and its `windows` of one second (if
    recomputed).

    `changed`: message on changed verdicts. `kept`: reason why it could not be recomputed.
    """

    bundle: Bundle
    fidelity: pa.Table | None
    rejudged: bool = False
    changed: str = ""
    unchanged: str = ""
    windows: pa.Table | None = None


def rejudged_certificates(bundle: Bundle) -> RejudgedCertificates:
    """Recompute the certificates of a run; unchanged if they are current, or data for it are missing."""
    if "fidelity" not in bundle.tables:
        return RejudgedCertificates(bundle, None)
    old = undictionaried(bundle.table("fidelity"))
    if old.num_rows == 0 or _rules(old) >= RULES:
        return RejudgedCertificates(bundle, old)
    run_id = str(bundle.manifest["run_id"])
    lacking = _lacking(bundle, old)
    if lacking:
        return RejudgedCertificates(bundle, old, unchanged=f"{run_id} keeps its verdict: {lacking}")
    parts, windows, changed = [], [], []
    for disk_id in dict.fromkeys(old["disk_id"].to_pylist()):
        before = _of_disk(old, disk_id)
        utilisation = bundle.table("utilisation") if "utilisation" in bundle.tables else None
        recorded = _recorded(bundle, disk_id, before)
        judged = recorded.certificate(utilisation, bundle.manifest.get("cpu_ns"))
        if judged is None:
            why = f"{disk_id} was a disk of {recorded.backend}, which cannot be certified again"
            return RejudgedCertificates(bundle, old, unchanged=f"{run_id} keeps its verdict: {why}")
        now = judged.overall
        was, is_now = (part["verdict"][0].as_py() for part in (before, now))
        if was != is_now:
            why = now["reason"][0].as_py()
            changed.append(f"{disk_id} was {was} and is {is_now}" + (f" ({why})" if why else ""))
        parts.append(_keyed(now, before))
        windows.append(_keyed(judged.windows, before))
    fidelity, by_window = (pa.concat_tables(t, promote_options="default") for t in (parts, windows))
    note = f"{run_id}: {'; '.join(changed)}" if changed else ""
    now_valid = _with_validity(bundle, old, fidelity)
    return RejudgedCertificates(now_valid, fidelity, True, note, windows=by_window)


def _rules(fidelity: pa.Table) -> int:
    if "rules" not in fidelity.column_names:
        return 1
    return int(pc.min(fidelity["rules"]).as_py() or 1)


def _lacking(bundle: Bundle, fidelity: pa.Table) -> str:
    """The first part that a bundle lacks for recomputing its certificates, as a message."""
    for disk_id in dict.fromkeys(fidelity["disk_id"].to_pylist()):
        if (backend := _backend(bundle, disk_id)) not in DISK_BACKENDS:
            return f"the back end {backend} of {disk_id} is not installed here"
        if _is_counted(bundle, disk_id):
            continue
        missing = [name for name in _NEEDED if name not in bundle.tables]
        if missing:
            return f"its bundle has no {' and no '.join(missing)}"
        if "emulated" not in _disk(bundle, disk_id):
            return f"the settings of {disk_id} are not in its bundle"
    return ""


def _disk(bundle: Bundle, disk_id: str) -> Mapping[str, Any]:
    """Entry of the manifest for a disk, of this host or of a node."""
    manifest = bundle.manifest
    of_nodes = manifest.get("place", {}).get("disks", {})
    about: Mapping[str, Any] = of_nodes.get(disk_id) or manifest.get("disks", {}).get(disk_id, {})
    return about


def _backend(bundle: Bundle, disk_id: str) -> str:
    """Back end of the disk; on the host itself always the model."""
    return str(_disk(bundle, disk_id).get("backend", "fuse"))


def _is_counted(bundle: Bundle, disk_id: str) -> bool:
    """True if the kernel throttled the disk: it is then evaluated by counters, not by a log."""
    if "throttle_counters" not in bundle.tables or "backend" not in _disk(bundle, disk_id):
        return False
    counters = _of_disk(bundle.table("throttle_counters"), disk_id)
    return int(counters.num_rows) > 0


def _recorded(bundle: Bundle, disk_id: str, before: pa.Table) -> Recorded:
    """Records of a disk in a bundle."""
    about = _disk(bundle, disk_id)
    if _is_counted(bundle, disk_id):
        own = {"throttle_counters": bundle.table("throttle_counters")}
        return Recorded(disk_id, _backend(bundle, disk_id), {}, own, about.get("facts") or {})
    tables = {
        name: _of_disk(bundle.table(name), disk_id)
        for name in (*_NEEDED, "host_waits")
        if name in bundle.tables
    }
    counters = tables["disk_stats"]
    stats = _nested(zip(counters["metric"].to_pylist(), counters["value"].to_pylist(), strict=True))
    if "compensation" not in stats:
        lateness_ns = _lateness_taken_off(tables["device_requests"], before)
        stats["compensation"] = {"lateness_ns": lateness_ns}
    return Recorded(
        disk_id,
        _backend(bundle, disk_id),
        stats,
        tables,
        profile=about["emulated"],
        changes=_events(bundle, disk_id),
    )


def _nested(numbers: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Counters in the server's nested form: `a.b` becomes `b` of `a`."""
    stats: dict[str, Any] = {}
    for name, value in numbers:
        *groups, last = name.split(".")
        place = stats
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return stats


def _lateness_taken_off(device_requests: pa.Table, before: pa.Table) -> float:
    """Calibrated lateness of a disk whose counters lack it, from the certificate's mean time."""
    rows = {row["metric"]: row for row in before.to_pylist()}
    judged_ns = rows.get("time", {}).get("delivered")
    if judged_ns is None:
        return 0.0

    def mean_ns(taken_off_ns: int) -> float:
        log = columns(device_requests, taken_off_ns)
        return float(np.mean(log.done - log.began))

    low, high = 0, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mean_ns(middle) > judged_ns else (low, middle)
    return float(high if mean_ns(low) > judged_ns else low)


def _events(bundle: Bundle, disk_id: str) -> list[dict[str, Any]]:
    """Changes of a disk since it was started: on a node including those before this run."""
    before = list(_disk(bundle, disk_id).get("changed_before", ()))
    if "events" not in bundle.tables:
        return before
    return before + [
        {**row, "asked": json.loads(row["asked"] or "{}")}
        for row in bundle.table("events").to_pylist()
        if row["resource"] == "disk"
        and disk_id in (row["name"], f"{row.get('node_id')}.{row['name']}")
    ]


def _of_disk(table: pa.Table, disk_id: str) -> pa.Table:
    return table.filter(pc.equal(table["disk_id"].cast(pa.string()), disk_id))


def _keyed(table: pa.Table, before: pa.Table) -> pa.Table:
    """Rows with the bundle's keys, copied from the earlier rows."""
    keys = [k.name for k in BUNDLE_KEYS if k.name in before.column_names]
    constant = [pa.repeat(before[name][0], table.num_rows) for name in keys]
    return pa.table([*constant, *table.columns], names=[*keys, *table.column_names])


def _with_validity(bundle: Bundle, before: pa.Table, fidelity: pa.Table) -> Bundle:
    """The bundle with the validity that follows from the certificates: other faults remain."""
    manifest: Mapping[str, Any] = bundle.manifest
    if manifest["state"] != "finished":
        return bundle
    rest = str(manifest["reason"])
    for fault in faults_of(before):
        rest = rest.replace(fault, "", 1)
    faults = [*faults_of(fidelity), *filter(None, rest.split("; "))]
    validity = INVALID if faults else VALID
    judged = {"valid": not faults, "validity": validity, "reason": "; ".join(faults)}
    return Bundle(bundle.path, {**manifest, **judged})
