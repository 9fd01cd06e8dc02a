"""Initial state of a disk of the model in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def beginning(
    stats: Mapping[str, Any], profile: Mapping[str, Any], changed: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Requests in flight, bytes in the write cache, credits with their declared values, the transport; None
    for other disks.

    `profile` is the initial one of the disk, `changed` the values in force with the keys of a patch.
    """
    levels = stats.get("levels")
    if not isinstance(levels, Mapping) or "in_flight" not in stats:
        return None
    stated = changed.get("credits") or profile.get("credits") or {}
    credits = {}
    for what in ("iops", "bytes"):
        there, bucket = levels.get(f"credits_{what}"), stated.get(what)
        if there is not None and bucket is not None:
            credits[what] = [float(there), float(bucket["capacity"]) * bucket.get("initial", 1.0)]
    return {
        "in_flight": int(stats["in_flight"]),
        "dirty_bytes": float(levels.get("dirty_bytes") or 0.0),
        "credits": credits,
        **{name: stats[name] for name in ("transport",) if name in stats},
    }
