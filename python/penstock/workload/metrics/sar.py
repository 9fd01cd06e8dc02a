"""What `sar` recorded, as `sadf -j FILE -- -A` prints it (sysstat 12)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from penstock.errors import BadInput
from penstock.workload.metrics import Readings, samples, text_of

WHAT = "sar's records as `sadf -j` prints them"
_IDS = ("disk-device", "iface", "cpu", "filesystem", "device", "number", "intr", "BUS", "idvendor")
_UNITS = {
    "cpu-load": "%",
    "cpu-load-all": "%",
    "rkB": "kB/s",
    "wkB": "kB/s",
    "dkB": "kB/s",
    "rxkB": "kB/s",
    "txkB": "kB/s",
    "await": "ms",
    "rd_sec": "sectors/s",
    "wr_sec": "sectors/s",
    "dc_sec": "sectors/s",
    "areq-sz": "kB",
    "aqu-sz": "1",
}
_KILOBYTES = ("memory", "hugepages")
#: of the group `memory`, what is no size
_NO_SIZE = ("percent", "pgpgin", "pgpgout")
MOST_DEPTH = 6


def matches(path: Path, head: bytes) -> bool:
    """Whether it is one, by its outermost key."""
    return head.lstrip()[:40].replace(b" ", b"").replace(b"\n", b"").startswith(b'{"sysstat":')


def read(path: Path, words: Mapping[str, Any]) -> Readings:
    """Every number of every record; rates and shares as sar computed them, stamped at their end."""
    try:
        hosts = json.loads(text_of(path))["sysstat"]["hosts"]
        rows = [row for host in hosts for row in _host(host)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path}: found {error!r}; expected {WHAT}") from None
    return Readings(samples(rows), facts={"hosts": [str(h.get("nodename", "")) for h in hosts]})


def _host(host: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    several = str(host.get("nodename", ""))
    for record in host.get("statistics", []):
        stamp = record["timestamp"]
        zone = UTC if stamp.get("utc", 1) else ZoneInfo(str(host.get("timezone") or "UTC"))
        at = datetime.fromisoformat(f"{stamp['date']}T{stamp['time']}").replace(tzinfo=zone)
        utc_ns = int(at.timestamp()) * 1_000_000_000
        for group, content in record.items():
            if group not in ("timestamp", "restart", "comment"):
                for entity, metric, value in _numbers(group, content, 0):
                    yield (
                        utc_ns,
                        f"sar {group}",
                        entity or several,
                        metric,
                        _unit(group, metric),
                        value,
                        False,
                    )


def _numbers(group: str, content: Any, depth: int) -> Iterator[tuple[str, str, float]]:
    if depth > MOST_DEPTH:
        raise ValueError(f"groups within groups, more than {MOST_DEPTH}")
    if isinstance(content, list):
        for item in content:
            yield from _numbers(group, item, depth + 1)
    elif isinstance(content, dict):
        key = next((k for k in _IDS if isinstance(content.get(k), str | int)), None)
        entity = str(content[key]) if key else ""
        for name, value in content.items():
            if name == key:
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield entity, name, float(value)
            elif isinstance(value, list | dict):
                yield from _numbers(name, value, depth + 1)


def _unit(group: str, metric: str) -> str:
    if "percent" in metric:
        return "%"
    if group in _KILOBYTES and not any(word in metric for word in _NO_SIZE):
        return "kB"
    return _UNITS.get(metric) or _UNITS.get(group) or "1"
