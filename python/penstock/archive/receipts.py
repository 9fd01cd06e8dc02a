"""What observers say of themselves in a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unplaced_faults(receipt: Mapping[str, Any]) -> int:
    """Page faults that a tracer could not place in a file, because the mappings were being changed."""
    probes = receipt.get("per_probe") or {}
    return int((probes.get("faults") or {}).get("lost_unresolved", 0))
