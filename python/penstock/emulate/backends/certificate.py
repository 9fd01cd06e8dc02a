"""Certificates of disks, from their request log or from the kernel's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.analyse.fidelity.fidelity import Certificate
    from penstock.emulate.disks.recorded import Recorded


def by_requests(
    recorded: Recorded, utilisation: pa.Table | None, run_cpu_ns: int | None
) -> Certificate | None:
    """Certificate from the log of a disk of the model; None without a log."""
    from penstock.analyse.fidelity.fidelity import certificate

    if "device_requests" not in recorded.tables:
        return None
    return certificate(
        recorded.tables["device_requests"],
        recorded.stats,
        recorded.profile,
        disk_id=recorded.disk_id,
        utilisation=utilisation,
        run_cpu_ns=run_cpu_ns,
        events=recorded.changes,
        host_waits=recorded.tables.get("host_waits"),
    )


def by_counters(recorded: Recorded, utilisation: pa.Table | None) -> Certificate | None:
    """Certificate from the kernel's counters of a throttled disk; None without records."""
    from penstock.analyse.fidelity.fidelity_counters import fidelity_of_counters

    if "throttle_counters" not in recorded.tables:
        return None
    return fidelity_of_counters(
        recorded.tables["throttle_counters"],
        disk_id=recorded.disk_id,
        backend=recorded.backend,
        capability=recorded.facts.get("capability_bps"),
        unsupported=recorded.facts.get("unhonoured"),
        utilisation=utilisation,
    )
