"""Dashboards of compute hosts, object storage, volumes, tenants, one run: plots of a row and their series.

The page of `penstock serve`, Grafana's files and its data source are all generated from `DASHBOARDS`.
The first four are those of IOStack: a row for each host, or for all tenants, each tenant and each of its
nodes. That of a run has one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

#: lines of one plot; the busiest are shown
MOST_LINES = 12
#: plots side by side
MOST_BESIDE = 4
_NO_DISK = re.compile(r"^(loop|ram|zram|sr|fd)\d+$")
_PART = re.compile(r"^(?:(.*\d)p|(.*?[a-z]))\d+$")
#: intervals for which the last value of an entity is used for others' times
_LONGEST_HOLD = 5
ALL_TENANTS, NO_TENANT = "all tenants", "no tenant"
#: the row of a run, and the host of rows of the complete run (`run_usage.py`)
RUN, OF_RUN = "run", ""


@dataclass(frozen=True)
class Quantity:
    """Rows of `usage.py`: a kind and a metric; `scale` from their unit to the plot's."""

    kind: str
    metric: str
    name: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class Plot:
    """One plot of a row; `grafana` is the id that Grafana has for its unit.

    One that is `extra` is shown only where there is something in it. `needs`: why nothing may be in it.
    """

    key: str
    title: str
    unit: str
    grafana: str
    quantities: tuple[Quantity, ...]
    most: float | None = None
    extra: bool = False
    needs: str = ""


@dataclass(frozen=True)
class Dashboard:
    """Rows of plots, one `per` host, or per tenant and node, or one of the whole run."""

    key: str
    title: str
    about: str
    per: str
    plots: tuple[Plot, ...]

    def plot(self, key: str) -> Plot | None:
        return next((p for p in self.plots if p.key == key), None)


@dataclass(frozen=True)
class Line:
    """A series of a plot; times in ns since 1970 UTC."""

    name: str
    utc_ns: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]


_LINK = "not recorded; it needs the links' capacity, monitor start -p link_bps=BYTES_PER_SECOND"
_HOST = (
    Plot(
        "load",
        "Load",
        "",
        "short",
        tuple(Quantity("load", f"{k} min", f"{k} min") for k in (1, 5, 15)),
    ),
    Plot("cpu", "Processors busy", "%", "percent", (Quantity("cpu", "busy", "busy"),), 100),
    Plot(
        "network",
        "Network used",
        "%",
        "percent",
        (
            Quantity("network", "used", "both ways"),
            Quantity("network", "used_out", "out"),
            Quantity("network", "used_in", "in"),
        ),
        needs=_LINK,
    ),
    # of a second, by the clock: 100 % are 1000 ms
    Plot("io-time", "Disk I/O time", "ms/s", "ms", (Quantity("disk", "busy_of_time", "", 10),)),
    Plot(
        "throughput",
        "Disk throughput",
        "B/s",
        "Bps",
        tuple(
            Quantity(kind, f"{way}_rate", way)
            for kind in ("disk", "emulated_disk")
            for way in ("read", "write")
        ),
    ),
    Plot(
        "disk",
        "Disks busy",
        "%",
        "percent",
        (Quantity("disk", "busy"), Quantity("emulated_disk", "busy")),
        100,
    ),
)
_FREE = Plot("free", "Free space", "B", "bytes", (Quantity("filesystem", "free"),))
_OBJECTS = Plot(
    "objects", "Object store, by device", "MB/s", "MBs", (Quantity("swift", "bandwidth"),)
)
_READ_WRITE = ("read", "write")
_CEPH = tuple(
    Plot(
        f"ceph-{key}",
        f"Ceph: {title}",
        unit,
        grafana,
        tuple(Quantity("ceph", metric, name) for metric, name in metrics.items()),
        extra=True,
    )
    for key, title, unit, grafana, metrics in (
        ("operations", "operations", "1/s", "ops", {"osd_reads": "read", "osd_writes": "write"}),
        ("throughput", "throughput", "B/s", "Bps", {f"osd_{w}_rate": w for w in _READ_WRITE}),
        ("latency", "latency", "s", "s", {f"osd_{w}_latency": w for w in _READ_WRITE}),
        ("store", "OSDs' stores", "s", "s", {f"{w}_latency": w for w in ("commit", "apply")}),
        ("metadata", "requests for metadata", "1/s", "ops", {"mds_requests": ""}),
        ("metadata-latency", "latency of metadata", "s", "s", {"mds_latency": ""}),
        ("clients", "clients", "1/s", "ops", {"client_reads": "read", "client_writes": "write"}),
        (
            "clients-latency",
            "latency at clients",
            "s",
            "s",
            {f"client_{w}_latency": w for w in _READ_WRITE},
        ),
    )
)
_TENANT = (
    Plot("cores", "Virtual cores used", "cores", "short", (Quantity("tenant", "cores"),)),
    Plot(
        "allocated", "Virtual cores allocated", "cores", "short", (Quantity("tenant", "allocated"),)
    ),
    Plot("network", "Network used", "%", "percent", (Quantity("tenant", "network"),), needs=_LINK),
    Plot("disk", "Disks busy", "%", "percent", (Quantity("tenant", "disk"),), 100),
)
_CPU, _IO, _DISK = (next(p for p in _HOST if p.key == k) for k in ("cpu", "throughput", "disk"))
_RUN = (
    Plot("phases", "Phases, one above the other", "", "short", (Quantity("phase", "lasts"),)),
    _CPU,
    Plot(
        "memory",
        "Memory",
        "B",
        "bytes",
        (Quantity("memory", "available", "available"), Quantity("memory", "used", "used")),
    ),
    Plot(
        "traffic",
        "Network",
        "B/s",
        "Bps",
        (Quantity("network", "send_rate", "out"), Quantity("network", "receive_rate", "in")),
    ),
    _DISK,
    _IO,
    Plot("processes", "Processes: cores used", "cores", "short", (Quantity("process", "cores"),)),
    Plot(
        "process-bytes",
        "Processes: from and to devices",
        "B/s",
        "Bps",
        (Quantity("process", "read", "read"), Quantity("process", "written", "written")),
    ),
    Plot("operations", "Program: operations", "1/s", "ops", (Quantity("program", "operations"),)),
    Plot("bytes", "Program: throughput", "B/s", "Bps", (Quantity("program", "throughput"),)),
    Plot("latency", "Program: latency", "s", "s", (Quantity("program", "latency"),)),
    Plot("complete", "Points recorded", "%", "percent", (Quantity("recorded", "share"),), 100),
    Plot("clocks", "Clocks, how far apart", "ms", "ms", (Quantity("clock", "offset"),)),
    Plot("valid", "Disks as requested", "", "short", (Quantity("certificate", "valid"),), 1),
    Plot("observers", "Observers' processor", "%", "percent", (Quantity("observer", "cpu"),)),
)

DASHBOARDS: dict[str, Dashboard] = {
    d.key: d
    for d in (
        Dashboard("compute", "Compute", "Hosts that compute, one row each.", "host", _HOST),
        Dashboard(
            "object-storage",
            "Object storage",
            "Hosts that store objects, one row each.",
            "host",
            (*_HOST, _FREE, _OBJECTS),
        ),
        Dashboard(
            "volumes",
            "Volumes",
            "Hosts that serve volumes, one row each.",
            "host",
            (*_HOST, _FREE, *_CEPH),
        ),
        Dashboard(
            "tenants",
            "Tenants",
            "All tenants, then each of them, then its nodes.",
            "tenant",
            _TENANT,
        ),
        Dashboard(
            "run",
            "Run",
            "One run: phases, utilisation, metrics of its program, completeness.",
            RUN,
            _RUN,
        ),
    )
}


@dataclass(frozen=True)
class Tenancy:
    """Tenant of each node and its number of cores, by its name; `None`: all cores of the host."""

    tenant: Mapping[str, str]
    cores: Mapping[str, float | None]


NO_TENANCY = Tenancy({}, {})


def rows_of(
    dashboard: Dashboard, uses: pd.DataFrame, tenancy: Tenancy = NO_TENANCY
) -> dict[str, list[tuple[Plot, list[Line]]]]:
    """The rows of a dashboard by name, each with its plots and their lines, none where none is recorded.

    Extra plots are left out where they have none.
    """
    if dashboard.per == "tenant":
        return {
            name: [(p, _lines(p, rows)) for p in dashboard.plots]
            for name, rows in _tenants(uses, tenancy).items()
        }
    if dashboard.per == RUN:
        return {RUN: [(p, _lines(p, uses)) for p in dashboard.plots]} if len(uses) else {}
    uses = uses[uses["host"] != OF_RUN]
    return {
        str(host): [(p, ls) for p in dashboard.plots if (ls := _lines(p, rows)) or not p.extra]
        for host, rows in uses.groupby("host", sort=True)
    }


def names_of(dashboard: Dashboard, uses: pd.DataFrame, tenancy: Tenancy = NO_TENANCY) -> list[str]:
    """The names of its rows."""
    if dashboard.per == "tenant":
        return list(_tenants(uses, tenancy))
    if dashboard.per == RUN:
        return [RUN] if len(uses) else []
    return sorted(set(map(str, uses["host"].unique())) - {OF_RUN})


def lines_of(
    dashboard: Dashboard, plot: Plot, uses: pd.DataFrame, row: str, tenancy: Tenancy = NO_TENANCY
) -> list[Line]:
    """The lines of one plot of one row; none where there is no such row."""
    if dashboard.per == "tenant":
        rows = _tenants(uses, tenancy).get(row)
        return [] if rows is None else _lines(plot, rows)
    if dashboard.per == RUN:
        return _lines(plot, uses) if row == RUN else []
    return _lines(plot, uses[uses["host"] == row])


def _lines(plot: Plot, rows: pd.DataFrame) -> list[Line]:
    hosts = sorted(set(rows["host"]) - {OF_RUN}) if "host" in rows else []
    if len(hosts) < 2:
        lines = _of_host(plot, rows, "")
    else:
        lines = [
            line
            for host in [OF_RUN, *hosts]
            for line in _of_host(plot, rows[rows["host"] == host], host)
        ]
    if len(lines) > MOST_LINES:
        # the busiest, in their order
        by_use = sorted(lines, key=lambda line: -float(np.mean(line.value)))[:MOST_LINES]
        lines = [line for line in lines if line in by_use]
    return lines


def _of_host(plot: Plot, rows: pd.DataFrame, host: str) -> list[Line]:
    """The lines of one host, with its name, if there is one, as prefix."""
    lines: list[Line] = []
    for quantity in plot.quantities:
        matching = rows[(rows["kind"] == quantity.kind) & (rows["metric"] == quantity.metric)]
        entities = [str(e) for e in matching["entity"].unique()]
        shown = [e for e in entities if _shown(quantity.kind, e, entities)]
        for entity in shown:
            one = matching[matching["entity"] == entity]
            totals = ("all", "", "host") if quantity.kind == "memory" else ("all", "")
            bare = entity in totals or quantity.kind == "cpu"
            parts = [host, "" if bare else entity, quantity.name]
            lines.append(
                Line(
                    " ".join(filter(None, parts)) or plot.title,
                    one["utc_ns"].to_numpy(np.int64),
                    one["value"].to_numpy(float) * quantity.scale,
                )
            )
    return lines


def _shown(kind: str, entity: str, entities: list[str]) -> bool:
    """True for the sum of all processors, external links, and disks that are neither partitions nor files."""
    if kind == "cpu":
        return entity == "all"
    if kind == "network":
        return entity != "lo" and not entity.startswith("ifb")
    if kind == "disk":
        part = _PART.match(entity)
        parent = (part.group(1) or part.group(2)) if part else None
        return not _NO_DISK.match(entity) and parent not in entities
    return True


def _tenants(uses: pd.DataFrame, tenancy: Tenancy) -> dict[str, pd.DataFrame]:
    """Rows of kind `tenant`: of all, of each tenant (`T`), and of each of its nodes (`T / node`).

    Cores are summed over nodes; shares of network and disks are the mean over them. The names of a node's
    disks and links begin with its name.
    """
    groups = uses[(uses["kind"] == "cgroup_cpu") & (uses["metric"] == "cores")]
    nodes = sorted({str(e) for e in groups["entity"].unique()} - {"run"})
    if not nodes:
        return {}
    host = sorted(set(uses.loc[uses["kind"] == "cpu", "entity"].astype(str)) - {"all"})
    per_node = {n: _node(uses, n, tenancy.cores.get(n), len(host) or None) for n in nodes}
    of_tenant: dict[str, list[str]] = {}
    for node in nodes:
        of_tenant.setdefault(tenancy.tenant.get(node) or NO_TENANT, []).append(node)
    by_tenant = {ALL_TENANTS: _together([per_node[n] for n in nodes])}
    for tenant in sorted(of_tenant):
        by_tenant[tenant] = _together([per_node[n] for n in of_tenant[tenant]])
        for node in of_tenant[tenant]:
            by_tenant[f"{tenant} / {node}"] = per_node[node]
    return by_tenant


def _node(
    uses: pd.DataFrame, node: str, cores: float | None, host_cores: int | None
) -> pd.DataFrame:
    """Usage of a node: metrics cores, allocated, network, disk."""
    used = uses[(uses["kind"] == "cgroup_cpu") & (uses["metric"] == "cores")]
    used = used[used["entity"] == node]
    parts = [("cores", used)]
    allocated = cores if cores is not None else host_cores
    if allocated is not None:
        parts.append(("allocated", used.assign(value=float(allocated))))
    links = (uses["kind"] == "network") & (uses["metric"] == "used")
    disks = uses["kind"].isin(["emulated_disk"]) & (uses["metric"] == "busy")
    for metric, here, head in (("network", links, f"{node} "), ("disk", disks, f"{node}.")):
        matching = uses[here & uses["entity"].str.startswith(head)]
        parts.append((metric, matching))
    frames = [_mean(rows).assign(metric=metric) for metric, rows in parts if len(rows)]
    return pd.concat(frames, ignore_index=True).assign(kind="tenant", entity="")


def _mean(rows: pd.DataFrame) -> pd.DataFrame:
    return _over_time(rows, lambda wide: wide.mean(axis=1))


def _together(nodes: list[pd.DataFrame]) -> pd.DataFrame:
    """Usage of several nodes together: sum of cores, mean of shares."""
    every = pd.concat(
        [rows.assign(entity=str(i)) for i, rows in enumerate(nodes)], ignore_index=True
    )
    frames = []
    for metric, rows in every.groupby("metric", sort=True):
        how: Callable[[pd.DataFrame], pd.Series[float]] = (
            (lambda wide: wide.sum(axis=1))
            if metric in ("cores", "allocated")
            else (lambda wide: wide.mean(axis=1))
        )
        frames.append(_over_time(rows, how).assign(metric=metric))
    return pd.concat(frames, ignore_index=True).assign(kind="tenant", entity="")


def _over_time(rows: pd.DataFrame, how: Callable[[pd.DataFrame], pd.Series[float]]) -> pd.DataFrame:
    """Aggregate of entities at the times of all their samples, each with its last value until then.

    A value holds for `_LONGEST_HOLD` of its entity's intervals: one that ended counts no longer.
    """
    wide = rows.pivot_table(
        index="utc_ns", columns="entity", values="value", aggfunc="last", observed=True
    ).sort_index()
    times = pd.Series(wide.index.to_numpy(np.int64), wide.index).astype(float)
    current = wide.ffill()
    for entity in wide.columns:
        own = times.where(wide[entity].notna())
        longest = _LONGEST_HOLD * own.dropna().diff().median()
        current[entity] = current[entity].mask(times - own.ffill() > longest)
    combined = how(current)
    return pd.DataFrame(
        {"utc_ns": combined.index.to_numpy(np.int64), "value": combined.to_numpy(float)}
    )
