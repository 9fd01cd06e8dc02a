"""Counterparts of collectd's values among the recorder's samples, by the names of its `write_graphite`.

    [PREFIX]HOST.PLUGIN[-INSTANCE].TYPE[-INSTANCE][.DATA_SOURCE]        node.cpu-0.cpu-user

With `SeparateInstances` dots replace the hyphens, with `AlwaysAppendDS` names end with `.value`, with
`UseTags` the parts are labels. Series fetched from a Graphite have the name in the label `name`.
Counters arrive unchanged, or per second (`StoreRates`); the latter are converted to counters again here.

Sources: collectd.conf(5), types.db(5), and the plug-ins `cpu`, `disk`, `interface`, `df`, `load`, `memory`
and `ceph` of collectd 5.12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from penstock.parts.monitoring.usage.ceph_usage import KIND as CEPH
from penstock.parts.monitoring.usage.ceph_usage import SHOWN
from penstock.parts.monitoring.usage.foreign import Foreign

#: the states of a processor; guest time is in `user` and `nice`, unless `ReportGuestState` takes it out
_STATES = {
    **{state: state for state in ("user", "nice", "system", "idle", "softirq", "steal")},
    "wait": "iowait",
    "interrupt": "irq",
}
#: ticks of collectd's counters (USER_HZ), and per cent, in seconds
_HUNDREDTH = 0.01
_LOAD = {"shortterm": "load_1min", "midterm": "load_5min", "longterm": "load_15min"}
#: by plug-in, type, and instance of the type or data source
_COLLECTD = {
    **{
        f"cpu.{type_}.{theirs}": Foreign("cpu", ours, "s", scale=_HUNDREDTH)
        for type_ in ("cpu", "percent")
        for theirs, ours in _STATES.items()
    },
    **{
        f"load.load.{theirs}": Foreign("cpu", ours, "1", cumulative=False)
        for theirs, ours in _LOAD.items()
    },
    **{
        f"memory.memory.{which}": Foreign("memory", which, "B", cumulative=False)
        for which in ("used", "available")
    },
    "disk.disk_io_time.io_time": Foreign("disk", "io_time", "ms"),
    "disk.disk_io_time.weighted_io_time": Foreign("disk", "queue_time", "ms"),
    "disk.disk_octets.read": Foreign("disk", "read_bytes", "B"),
    "disk.disk_octets.write": Foreign("disk", "written_bytes", "B"),
    "disk.disk_ops.read": Foreign("disk", "reads", "1"),
    "disk.disk_ops.write": Foreign("disk", "writes", "1"),
    "interface.if_octets.rx": Foreign("network", "received_bytes", "B"),
    "interface.if_octets.tx": Foreign("network", "sent_bytes", "B"),
    "df.df_complex.free": Foreign("filesystem", "free", "B", cumulative=False),
}


def _called(metric: str) -> str:
    """Name of a counter in the plug-in `ceph`: `osd.op_w` is `Osd.opW`, whose dot becomes a `_` in a path."""
    parts = metric.removeprefix("ceph_").replace("_", ".", 1).split("_")
    return "".join(part[:1].upper() + part[1:] for part in parts).replace(".", "_")


_COLLECTD |= {
    f"ceph.ceph_{type_}.{_called(metric)}": Foreign(CEPH, metric, unit, cumulative=type_ == "rate")
    for type_, unit, metrics in zip(("rate", "latency"), ("1", "s"), SHOWN, strict=True)
    for metric in metrics
}
_PLUGINS, _TYPES = ({key.split(".")[k] for key in _COLLECTD} for k in (0, 1))
_PATH = re.compile(
    rf"(?P<host>.+)\.(?P<plugin>{'|'.join(sorted(_PLUGINS))})(?:[-.](?P<plugin_instance>.+?))?"
    rf"\.(?P<type>{'|'.join(sorted(_TYPES))})[-.](?P<type_instance>[\w.]+?)(?:\.value)?"
)
_PREFIX = "collectd."
_DAEMON = re.compile(r"^(osd|mon|mds|mgr|client)_")


@dataclass(frozen=True)
class Seen:
    """A series of collectd: its host, its counterpart here, and its entity."""

    host: str
    foreign: Foreign
    entity: str
    per_second: bool = False


def seen_by_collectd(metric: str, labels: Mapping[str, str]) -> Seen | None:
    """The counterpart of a series; None if it is not one of collectd's, or not shown."""
    if "plugin" in labels and "type" in labels:
        parts: Mapping[str, str | None] = {
            **labels,
            "type_instance": labels.get("type_instance") or labels.get("ds_name"),
        }
    elif (path := _PATH.fullmatch(labels.get("name", metric))) is not None:
        parts = path.groupdict()
    else:
        return None
    plugin, type_ = parts["plugin"], parts["type"]
    last = (parts.get("type_instance") or "").replace(".", "_")
    foreign = _COLLECTD.get(f"{plugin}.{type_}.{last}")
    if foreign is None:
        return None
    host = (parts.get("host") or "this host").removeprefix(_PREFIX)
    instance = parts.get("plugin_instance") or ""
    if plugin == "cpu":
        entity = f"cpu{instance}" if instance else "all"
    elif plugin == "ceph":
        entity = _DAEMON.sub(r"\1.", instance)
    else:
        entity = instance or "all"
    return Seen(host, foreign, entity, type_ == "percent")


def counted(series: Sequence[tuple[Seen, pd.DataFrame]]) -> Iterator[tuple[Seen, pd.DataFrame]]:
    """All series of one host, `utc_ns` and `value`; rates per second are converted to their counters."""
    sent = [s for s in series if s[0].foreign.cumulative and not s[0].per_second]
    rates = _are_rates(rows[["utc_ns", "value"]] for _, rows in sent)
    for seen, rows in series:
        again = seen.per_second or (rates and seen.foreign.cumulative)
        yield seen, _counter(rows) if again else rows


def _are_rates(series: Iterable[pd.DataFrame]) -> bool:
    """True if values of counters are per second.

    Counters are integers, or means of them if a Carbon aggregates points, and decrease only at a restart.
    Rates are fractions; those of a processor have a constant sum, so some decrease when others increase.
    """
    steps = [rows.assign(value=rows["value"].diff()).iloc[1:] for rows in series]
    every = pd.concat([pd.DataFrame({"utc_ns": [], "value": []}), *steps])
    every = every[every["value"] != 0]
    falls = every.groupby("utc_ns")["value"].min() < 0
    return bool((every["value"] % 1 != 0).any()) and 4 * int(falls.sum()) > len(falls)


def _counter(rows: pd.DataFrame) -> pd.DataFrame:
    """The counter of a rate, which covers the time since the previous point; the first has none."""
    rows = rows.sort_values("utc_ns", kind="stable")
    passed_s = np.diff(rows["utc_ns"].to_numpy(np.int64), prepend=rows["utc_ns"].iloc[0]) / 1e9
    return rows.assign(value=np.cumsum(rows["value"].to_numpy(float) * passed_s))
