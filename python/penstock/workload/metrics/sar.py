"""Records of `sar`, as printed by `sadf -j FILE -- -A` (sysstat 10 to 12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.archive.series.delimited import unique_names
from penstock.errors import BadInput, printable
from penstock.workload.metrics import (
    Readings,
    contradictory,
    json_documents,
    samples,
    text_of,
    unknown_units,
    unrepeated,
)
from penstock.workload.metrics.sar_times import Clock, UnknownZoneError

WHAT = "sar's records as `sadf -j` prints them"
#: keys that together identify an item of a list: the sensors of a chip share its `device`
_IDS = (
    *("disk-device", "iface", "fchost", "cpu", "filesystem", "device", "line", "number", "intr"),
    *("BUS", "bus_number", "idvendor", "idprod"),
)
#: units of the metrics of a group, after the manual page of sar; a kilobyte of sar is 1024 bytes
_GROUPS = {
    "cpu-load": "%",
    "cpu-load-all": "%",
    "process-and-context-switch": "1/s",
    "interrupts": "1/s",
    "swap-pages": "pages/s",
    "paging": "1/s",
    "io": "1/s",
    "io-reads": "1/s",
    "io-writes": "1/s",
    "io-discard": "1/s",
    "memory": "KiB",
    "hugepages": "KiB",
    "kernel": "1",
    "queue": "1",
    "serial": "1/s",
    "disk": "1/s",
    "net-dev": "1/s",
    "net-edev": "1/s",
    "net-nfs": "1/s",
    "net-nfsd": "1/s",
    "net-sock": "1",
    "net-sock6": "1",
    "net-ip": "1/s",
    "net-eip": "1/s",
    "net-icmp": "1/s",
    "net-eicmp": "1/s",
    "net-tcp": "1/s",
    "net-etcp": "1/s",
    "net-udp": "1/s",
    "net-ip6": "1/s",
    "net-eip6": "1/s",
    "net-icmp6": "1/s",
    "net-eicmp6": "1/s",
    "net-udp6": "1/s",
    "softnet": "1/s",
    "psi-cpu": "%",
    "psi-io": "%",
    "psi-mem": "%",
}
#: units of single metrics, which override those of their groups
_UNITS = {
    "pgpgin": "KiB/s",
    "pgpgout": "KiB/s",
    "frmpg": "pages/s",
    "bufpg": "pages/s",
    "campg": "pages/s",
    "bread": "sectors/s",
    "bwrtn": "sectors/s",
    "bdscd": "sectors/s",
    "rkB": "KiB/s",
    "wkB": "KiB/s",
    "dkB": "KiB/s",
    "rxkB": "KiB/s",
    "txkB": "KiB/s",
    "rd_sec": "sectors/s",
    "wr_sec": "sectors/s",
    "dc_sec": "sectors/s",
    "avgrq-sz": "sectors",
    "areq-sz": "KiB",
    "avgqu-sz": "1",
    "aqu-sz": "1",
    "await": "ms",
    "svctm": "ms",
    "blg_len": "1",
    "frequency": "MHz",
    "weighted-frequency": "MHz",
    "degC": "°C",
    "rpm": "1/min",
    "drpm": "1/min",
    "inV": "V",
    "Ifree": "1",
    "Iused": "1",
    "MBfsfree": "MiB",
    "MBfsused": "MiB",
}
MOST_DEPTH = 6
#: other outputs of sysstat: begin, a further part that distinguishes it from other programs' output, name
_OTHERS = (
    (b"# hostname;interval;timestamp", b"", "the output of sadf -d"),
    (b"<?xml", b"<sysstat", "the output of sadf -x"),
    (b"Linux ", b" CPU)", "the text of sar, iostat or mpstat"),
)
#: entities of groups that have metrics of one name: pressures, and `retrans` of NFS and of TCP
_ENTITIES = {"psi-cpu": "cpu", "psi-io": "io", "psi-mem": "memory", "net-nfs": "nfs"}
_NO_GROUPS = ("timestamp", "restart", "comment")


def matches(path: Path, head: bytes) -> bool:
    """True for sadf's JSON by its outermost key, and for sadf's other formats, which `read` refuses by
    name."""
    start = head.lstrip()[:40].replace(b" ", b"").replace(b"\n", b"").replace(b"\t", b"")
    return start.startswith(b'{"sysstat":') or _other(head) != ""


def _other(head: bytes) -> str:
    for begin, part, name in _OTHERS:
        if head.lstrip().startswith(begin) and part in head[:4096]:
            return name
    return ""


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Numbers of all records; rates and shares as computed by sar, stamped at their end.

    `options`: `timezone` is the zone of local times, such as Europe/Paris. Without it, their offset comes
    from the start of the file, or the file is refused.
    """
    text = text_of(path)
    if other := _other(text[:4096].encode()):
        raise BadInput(f"{path}: found {other}; expected {WHAT}")
    zone = _zone(options)
    notes: list[str] = []
    try:
        hosts = [h for one in json_documents(text, path, WHAT) for h in one["sysstat"]["hosts"]]
        records = [record for host in hosts for record in host.get("statistics", [])]
        if not all(isinstance(record.get("timestamp"), dict) for record in records):
            actual = "records without a date, as mpstat and iostat print them"
            raise BadInput(f"{path}: found {actual}; expected {WHAT}")
        names = [str(h.get("nodename", "")) for h in hosts]
        several = len(set(names)) > 1
        rows = [row for host in hosts for row in _host(host, zone, notes, several=several)]
    except UnknownZoneError as error:
        raise BadInput(f"{path}: found {error}") from None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise BadInput(f"{path}: found {error!r}; expected {WHAT}") from None
    unknown = sorted({f"{row[1].removeprefix('sar ')} {row[3]}" for row in rows if not row[4]})
    notes += unknown_units(unknown)
    frame = unrepeated(samples(rows), notes)
    notes += contradictory(frame)
    return Readings(frame, facts={"hosts": names}, notes=list(dict.fromkeys(notes)))


def _zone(options: Mapping[str, Any]) -> ZoneInfo | None:
    strange = set(options) - {"timezone"}
    if strange:
        raise BadInput(f"--words: found {', '.join(sorted(map(str, strange)))}; expected timezone")
    if "timezone" not in options:
        return None
    try:
        return ZoneInfo(str(options["timezone"]))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        shown = printable(str(options["timezone"])[:60])
        raise BadInput(
            f"--words: found timezone {shown!r}; expected a zone such as Europe/Paris"
        ) from None


def _host(
    host: Mapping[str, Any], zone: ZoneInfo | None, notes: list[str], *, several: bool
) -> Iterator[tuple[Any, ...]]:
    """Rows of a host's records; with `several` hosts, entities begin with its name."""
    host_name = str(host.get("nodename", ""))
    prefix = f"{host_name} " if several else ""
    clock = Clock(host, zone)
    for record in host.get("statistics", []):
        utc_ns = clock.utc_s(record["timestamp"]) * 1_000_000_000
        for group, content in record.items():
            if group in _NO_GROUPS:
                continue
            for within, entity, metric, value in _numbers(group, content, 0):
                unit = _unit(within, metric)
                entity = entity or _ENTITIES.get(within, "")
                whose = f"{prefix}{entity}" if entity else host_name
                yield utc_ns, f"sar {group}", whose, metric, unit, value, False
    if clock.note:
        notes.append(f"{printable(host_name)}: {clock.note}" if host_name else clock.note)


def _numbers(
    group: str, content: Any, depth: int, entity: str = ""
) -> Iterator[tuple[str, str, str, float]]:
    """Group, entity, metric and value of each number."""
    if depth > MOST_DEPTH:
        raise ValueError(f"groups within groups, more than {MOST_DEPTH}")
    if isinstance(content, list):
        for item, name in zip(content, _names(content), strict=True):
            yield from _numbers(group, item, depth + 1, f"{entity} {name}".strip())
    elif isinstance(content, dict):
        entity = entity or _entity(content)
        for name, value in content.items():
            if name in _IDS:
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield group, entity, name, float(value)
            elif isinstance(value, list | dict):
                yield from _numbers(name, value, depth + 1, entity)


def _names(items: Sequence[Any]) -> list[str]:
    """An entity for each item of a list, all different; its number if nothing identifies it."""
    named = [_entity(item) if isinstance(item, dict) else "" for item in items]
    if len(items) > 1:
        named = [name or f"#{number}" for number, name in enumerate(named, 1)]
    return unique_names(named)


def _entity(content: Mapping[str, Any]) -> str:
    return " ".join(str(content[k]) for k in _IDS if isinstance(content.get(k), str | int))


def _unit(group: str, metric: str) -> str:
    """Unit of a metric of a group; empty if unknown."""
    if "percent" in metric or metric.startswith("%"):
        return "%"
    return _UNITS.get(metric) or _GROUPS.get(group, "")
