"""Conditions of events: a disk's counter, a line of a log, the mark of a phase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

#: counters of a disk for conditions; a throttled disk has only the first five
METRICS = (
    *("reads", "writes", "read_bytes", "written_bytes", "write_bytes"),
    *("flushes", "read_service_ns", "write_service_ns", "flush_service_ns"),
    *("read_time_ns", "write_time_ns", "flush_time_ns", "busy_ns", "in_flight", "queue_time_ns"),
    *("late_count", "lateness_ns_total", "lateness_ns_max"),
    *("asked_time_ns", "delivered_time_ns", "errors"),
)
_KEYS = ("metric", "disk", "above", "below", "log", "regex", "phase", "fires")


def check_condition(condition: dict[str, Any], where: str) -> Iterator[str]:
    """Mistakes of a condition."""
    kinds = [key for key in ("metric", "log", "phase") if condition.get(key) is not None]
    unknown = sorted(set(condition) - set(_KEYS))
    if unknown or len(kinds) != 1:
        actual = unknown[0] if unknown else " and ".join(kinds) or "none of them"
        yield f"{where}: found {actual}; expected one of metric, log and phase"
    elif condition.get("fires", "every") not in ("every", "once"):
        yield f"{where}: fires found {condition['fires']!r}; expected every or once"
    elif kinds == ["metric"]:
        bounds = [k for k in ("above", "below") if isinstance(condition.get(k), int | float)]
        if len(bounds) != 1 or "." not in str(condition.get("disk")):
            yield f"{where}: a metric needs disk: NODE.DISK and a number, above or below"
        if condition["metric"] not in METRICS:
            fault = f"{where}: metric found {condition['metric']!r}"
            yield f"{fault}; expected one of {', '.join(METRICS)}"
    elif kinds == ["log"]:
        if not str(condition["log"]).startswith("/"):
            fault = f"{where}: log found {condition['log']!r}"
            yield f"{fault}; expected an absolute path of the host"
        try:
            re.compile(str(condition.get("regex") or "("))
        except re.error as error:
            yield f"{where}: regex found {condition.get('regex')!r}: {error}"


def repeats(condition: Mapping[str, Any]) -> bool:
    """True if an event repeats whenever its condition becomes true."""
    return bool(condition) and condition.get("fires", "every") == "every"
