"""Check of the devices at the start of each run: no requests in flight, credits as specified."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.archive.receipts import device_faults
from penstock.text import counted, listed


def devices(outcome: Outcome) -> Iterator[Finding]:
    """Runs that began while a device was still busy, or had other credits than specified.

    Guard: the runs' manifests do not record devices.
    """
    runs = {
        run_id: faults
        for run_id in outcome.run_ids
        if (faults := device_faults(outcome.manifest(run_id).get("device_state") or {}))
    }
    if not runs:
        return
    first, faults = next(iter(runs.items()))
    yield Finding(
        "device-not-at-rest",
        "warning",
        f"{counted(len(runs), 'run')} of {len(outcome.run_ids)} started with a disk that was not at rest: "
        f"in {first} {faults[0]}. Earlier activity may have affected the measurement.",
        {"table": "manifest", "run_id": sorted(runs)},
        "`settle.in_flight_at_most: 0` repeats such runs; `settle.idle` adds idle time before each run.",
        f"{listed(faults)}." if len(faults) > 1 else "",
    )
