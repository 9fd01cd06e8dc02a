"""Receipts of observers and devices in a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: relative tolerance for credits that accrue between their setting and the reading
_CREDITS_WITHIN = 1e-3


def unplaced_faults(receipt: Mapping[str, Any]) -> int:
    """Page faults that a tracer could not assign to a file, because the mappings were changing."""
    probes = receipt.get("per_probe") or {}
    return int((probes.get("faults") or {}).get("lost_unresolved", 0))


def device_faults(states: Mapping[str, Mapping[str, Any]], at_most: int = 0) -> list[str]:
    """Errors in the `device_state` at the start of a run, as messages."""
    faults = []
    for disk_id, state in states.items():
        in_flight = state.get("in_flight")
        if in_flight is not None and in_flight > at_most:
            on = f" on {state['device']}" if "device" in state else ""
            faults.append(
                f"{disk_id}: requests in flight{on} at the start: {in_flight}, not {at_most}"
            )
        for what, (there, stated) in (state.get("credits") or {}).items():
            if abs(there - stated) > _CREDITS_WITHIN * max(stated, 1.0):
                faults.append(
                    f"{disk_id}: credits ({what}) at the start: {there:.6g}, not {stated:.6g} as stated"
                )
    return faults
