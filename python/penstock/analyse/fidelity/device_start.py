"""Whether each run found its devices as they should be: nothing in flight, credits as stated."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.archive.receipts import device_faults
from penstock.text import counted, listed


def devices(outcome: Outcome) -> Iterator[Finding]:
    """Runs that began while a device was still busy, or had other credits than stated.

    Guard: the runs' manifests say nothing of devices.
    """
    told = {
        run_id: words
        for run_id in outcome.run_ids
        if (words := device_faults(outcome.manifest(run_id).get("device_state") or {}))
    }
    if not told:
        return
    first, words = next(iter(told.items()))
    yield Finding(
        "device-not-at-rest",
        "warning",
        f"{counted(len(told), 'run')} of {len(outcome.run_ids)} began while a disk was not as it is at rest: "
        f"in {first} {words[0]}. What came before may be in what was measured.",
        {"table": "manifest", "run_id": sorted(told)},
        "`settle.in_flight_at_most: 0` makes such runs again; `settle.idle` gives a device time.",
        f"{listed(words)}." if len(words) > 1 else "",
    )
