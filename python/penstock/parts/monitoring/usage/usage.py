"""Usage of hosts, nodes and their disks, from the tables of a run or the points of an experiment.

All have one form: rows of (host, kind, entity, metric, unit, utc_ns, value), as `utilisation` has them, and
levels that need no interval (load, space of file systems). Points of our own recorder, of Prometheus'
node_exporter and of collectd are understood; utilisations are computed from counters by `utilisation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.archive.selection import names_runs, select
from penstock.errors import BadInput
from penstock.observe.sampler.utilisation import utilisation
from penstock.parts.monitoring.experiments.recorded import (
    Recorded,
    labels_of,
    recorded_in,
    shift_ns,
)
from penstock.parts.monitoring.usage.ceph_usage import KIND as CEPH
from penstock.parts.monitoring.usage.ceph_usage import ceph_uses, entity_of, is_ceph, is_shown
from penstock.parts.monitoring.usage.collectd_usage import Seen, counted, seen_by_collectd
from penstock.parts.monitoring.usage.dashboards import Tenancy
from penstock.parts.monitoring.usage.foreign import NODE_EXPORTER, Foreign

COLUMNS = ["host", "kind", "entity", "metric", "unit", "utc_ns", "value"]
#: sources of the recorder's samples, longer names first: `emulated_disk_busy` is not of `disk`
SOURCES = ("emulated_disk", "filesystem", "network", "cgroup", "memory", "disk", "cpu", "psi")
#: kinds of utilisations
KINDS = ("emulated_disk", "block_latency", "cgroup_cpu", "network", "disk", "cpu")
#: samples that are levels, of (source, metric), as (kind, metric) here
LEVELS = {
    ("cpu", "load_1min"): ("load", "1 min"),
    ("cpu", "load_5min"): ("load", "5 min"),
    ("cpu", "load_15min"): ("load", "15 min"),
    ("filesystem", "free"): ("filesystem", "free"),
    ("filesystem", "size"): ("filesystem", "size"),
    ("memory", "available"): ("memory", "available"),
    ("memory", "used"): ("memory", "used"),
    ("cgroup", "memory"): ("memory", "used"),
}
#: labels that name a host, in order of precedence
HOST_LABELS = ("host", "exported_instance", "instance", "node")

#: a host, and the collector of its series; empty for our own sampler
Origin = tuple[str, str]
#: the sources of our own sampler, which have the same counters
OWN = ("samples", "utilisation")

#: of rates, by which parts of a tick passed
_FINE_HZ = 1e6
_CPU_SECONDS, _LINK_SPEED = "node_cpu_seconds_total", "node_network_speed_bytes"


def is_of_host(metric: str, labels: Mapping[str, str], source: str) -> bool:
    """True if a series describes the usage of a host or device, as `uses_of_points` accepts it."""
    own = source == "utilisation" or metric in ("swift_bandwidth", _LINK_SPEED)
    return (
        own
        or metric.startswith("node_")
        or is_ceph(metric)
        or seen_by_collectd(metric, labels) is not None
        or _sample(metric, labels) is not None
    )


def uses_of_bundle(bundle: Bundle) -> pd.DataFrame:
    """Usage of a run, or of an ended experiment."""
    collected = (bundle.path / "points.parquet").is_file()
    levels = bundle.manifest.get("levels") or {}
    if "utilisation" not in bundle.tables:
        return uses_of_points(recorded_in(bundle), levels)
    host = str((bundle.manifest.get("host") or {}).get("host_id") or "this host")
    names: list[str] = [n for n in ("utilisation", "samples") if n in bundle.tables]
    tables = {n: bundle.table(n, TABLES[n].arrow.names) for n in names}
    uses = uses_of_tables(tables, host, shift_ns(bundle))
    if not collected:
        return uses
    # series of collectors, of other hosts or of this one; those of the monitor are included already
    recorded = recorded_in(bundle)
    rest = recorded.series.filter(pc.not_equal(recorded.series["source"], "monitor"))
    beside = uses_of_points(Recorded(rest, recorded.points, recorded.gaps), levels)
    return _tidy(pd.concat([f for f in (uses, beside) if len(f)] or [uses], ignore_index=True))


def uses_of_tables(tables: Mapping[str, pa.Table], host: str, shift: int = 0) -> pd.DataFrame:
    """Usage of a monitor's tables; `shift` from their clock to the time of day [ns]."""
    frames = [tables["utilisation"].to_pandas().drop(columns="reset")]
    if "samples" in tables:
        frames.append(_levels(tables["samples"].to_pandas()))
    combined = pd.concat([f.astype({"value": float}) for f in frames], ignore_index=True)
    return _tidy(combined.assign(host=host, utc_ns=combined["t_ns"] + shift))


def uses_of(what: str) -> pd.DataFrame:
    """Usage of a bundle, a run of a study's results, or an experiment of the user."""
    if names_runs(what):
        return uses_of_bundle(Bundle.open(_only(what)))
    from penstock.archive.catalogue import local_user, open_index
    from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home

    store = Experiments(open_index(), experiments_home())
    experiment = store.find(what, local_user())
    return uses_of_points(store.recorded(experiment), experiment.params)


def uses_of_points(recorded: Recorded, params: Mapping[str, object]) -> pd.DataFrame:
    """Usage of an experiment, ended or running.

    `params` of the experiment: `link_bps` is the capacity of links that do not report it [bytes/s].
    Each source is computed separately: counters of two collectors of one host give no rate together.
    """
    points = recorded.points.to_pandas()
    value = points["float"].fillna(points["integer"]).astype(float)
    points = points.assign(value=value)[points["utc_ns"].notna() & value.notna()]
    by_series = dict(tuple(points.groupby("series_id")[["utc_ns", "value"]]))
    frames: list[pd.DataFrame] = []
    samples: dict[Origin, list[pd.DataFrame]] = {}
    speeds: dict[str, dict[str, float]] = {}
    ceph: dict[tuple[Origin, str], dict[str, pd.DataFrame]] = {}
    collectd: dict[Origin, list[tuple[Seen, pd.DataFrame]]] = {}
    rows = [{**row, "labels": labels_of(row["labels"])} for row in recorded.series.to_pylist()]
    places = _places(rows)
    for row in rows:
        frame = by_series.get(row["series_id"])
        if frame is None:
            continue
        labels = row["labels"]
        host, device = places[row["series_id"]]
        metric, source = str(row["metric"]), str(row["source"])
        origin = host, "" if source in OWN else source
        frame = frame.assign(host=host, origin=origin[1], unit=row["unit"])
        if source == "utilisation" and (pair := _parted(metric, KINDS)):
            entity = labels.get("entity", "")
            frames.append(frame.assign(kind=pair[0], metric=pair[1], entity=entity))
        elif metric == "swift_bandwidth":
            frames.append(
                frame.assign(kind="swift", metric="bandwidth", entity=labels.get("device", ""))
            )
        elif is_ceph(metric):
            if entity := entity_of(labels):
                ceph.setdefault((origin, entity), {})[metric] = frame
        elif metric == _LINK_SPEED:
            speeds.setdefault(host, {})[labels.get("device", "")] = float(frame["value"].iloc[-1])
        elif (seen := seen_by_collectd(metric, labels)) is not None:
            collectd.setdefault((seen.host, origin[1]), []).append((seen, frame))
        elif (one := _sample(metric, labels)) is not None:
            foreign, entity = one
            samples.setdefault(origin, []).append(_sampled(frame, foreign, f"{entity}{device}"))
    for origin, series in collectd.items():
        for seen, frame in counted(series):
            if seen.foreign.source == CEPH:
                ceph.setdefault((origin, seen.entity), {})[seen.foreign.metric] = frame
            else:
                of_host = _sampled(frame.assign(host=origin[0]), seen.foreign, seen.entity)
                samples.setdefault(origin, []).append(of_host)
    computed = {(f["host"].iloc[0], f["origin"].iloc[0]) for f in frames}
    for ((host, source), entity), counters in ceph.items():
        of_ceph = ceph_uses(entity, counters)
        frames += [rows.assign(host=host, origin=source) for rows in of_ceph if len(rows)]
    for (host, source), parts in _joined(samples).items():
        sampled = pd.concat(parts, ignore_index=True).rename(columns={"utc_ns": "t_ns"})
        sampled["t_ns"] = sampled["t_ns"].astype(np.int64)
        uses = [_levels(sampled)]
        if (host, source) not in computed:
            links = _links(sampled, speeds.get(host, {}), params.get("link_bps"))
            hz = _FINE_HZ if any(h == host and source in ("", o) for h, o in collectd) else None
            uses.append(_busy(_with_all_cpus(sampled), links, hz))
        frames += [
            u.rename(columns={"t_ns": "utc_ns"}).assign(host=host, origin=source) for u in uses
        ]
    return _tidy(_apart(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame())


def _places(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, str]]:
    """Host of each series by its number, and an addition to its entity.

    `rows` are those of `series`, with their labels as mappings. Several series of a collector and host
    may be of the same counter, as those of a federation without labels of hosts: the labels in which they
    differ then distinguish hosts, or their file systems.
    """
    places: dict[int, tuple[str, str]] = {}
    alike: dict[tuple[Any, ...], list[tuple[int, Mapping[str, str]]]] = {}
    for row in rows:
        labels = row["labels"]
        host = next((labels[k] for k in HOST_LABELS if labels.get(k)), "this host")
        places[row["series_id"]] = host, ""
        counter = _counter_of(str(row["metric"]), labels)
        if counter is not None:
            alike.setdefault((host, row["source"], *counter), []).append((row["series_id"], labels))
    differing: dict[tuple[str, str, bool], dict[str, None]] = {}
    for (host, source, kind, *_), members in alike.items():
        names = sorted({name for _, labels in members for name in labels})
        differ = [n for n in names if len({labels.get(n, "") for _, labels in members}) > 1]
        differing.setdefault((host, source, kind == "filesystem"), {}).update(dict.fromkeys(differ))
    for (host, source, kind, *_), members in alike.items():
        of_host = differing.get((host, source, False), {})
        of_device = differing[host, source, True] if kind == "filesystem" else {}
        for number, own in members:
            addition = _listed(own, [n for n in of_device if n not in of_host])
            places[number] = f"{host}{_listed(own, of_host)}", addition
    return places


def _listed(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """Values of labels in brackets after a name; empty without any."""
    values = ", ".join(labels[n] for n in names if labels.get(n))
    return f" ({values})" if values else ""


def _counter_of(metric: str, labels: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Kind, metric and entity of a series that no other of its host has; None for other series."""
    if is_ceph(metric):
        entity = entity_of(labels)
        return (CEPH, metric, entity) if is_shown(metric) and entity else None
    if metric == _LINK_SPEED:
        return "speed", metric, labels.get("device", "")
    if (one := _sample(metric, labels)) is not None:
        return one[0].source, one[0].metric, one[1]
    return None


def _joined(samples: Mapping[Origin, list[pd.DataFrame]]) -> dict[Origin, list[pd.DataFrame]]:
    """Samples by host; also by collector, if several collectors have the same series of a host."""
    joined: dict[Origin, list[pd.DataFrame]] = {}
    for host in dict.fromkeys(host for host, _ in samples):
        of_host = {source: parts for (h, source), parts in samples.items() if h == host}
        series = [
            one
            for parts in of_host.values()
            for one in {tuple(p[["source", "entity", "metric"]].iloc[0]) for p in parts}
        ]
        if len(series) == len(set(series)):
            of_host = {"": [part for parts in of_host.values() for part in parts]}
        joined |= {(host, source): parts for source, parts in of_host.items()}
    return joined


def _apart(uses: pd.DataFrame) -> pd.DataFrame:
    """Split a host with the same series from several sources into hosts `HOST (SOURCE)`."""
    series = uses[["host", "kind", "entity", "metric", "origin"]].drop_duplicates()
    twice = series[series.duplicated(["host", "kind", "entity", "metric"], keep=False)]
    names = {
        (host, source): f"{host} ({source or 'sampler'})"
        for host, source in zip(twice["host"], twice["origin"], strict=True)
    }
    origins = zip(uses["host"], uses["origin"], strict=True)
    return uses.assign(host=[names.get(o, o[0]) for o in origins]) if names else uses


def tenancy_of(manifest: Mapping[str, Any]) -> Tenancy:
    """Tenants of the nodes of a run, and the number of cores of each."""
    nodes = (manifest.get("place") or {}).get("nodes") or {}
    return Tenancy(
        {name: str(spec.get("tenant") or "") for name, spec in nodes.items()},
        {name: spec.get("cpus") for name, spec in nodes.items()},
    )


def _only(what: str) -> Path:
    runs = select(what).runs
    if len(runs) != 1:
        raise BadInput(f"{what}: found {len(runs)} runs; expected one, as OUT:r001")
    return runs[0]


def _parted(metric: str, heads: Iterable[str]) -> tuple[str, str] | None:
    for head in heads:
        if metric.startswith(f"{head}_"):
            return head, metric[len(head) + 1 :]
    return None


def _sample(metric: str, labels: Mapping[str, str]) -> tuple[Foreign, str] | None:
    """Counterpart of a metric among the recorder's samples, and its entity; None if there is none."""
    if metric == _CPU_SECONDS and "mode" in labels:
        return Foreign("cpu", labels["mode"], "s"), f"cpu{labels.get('cpu', '')}"
    if (foreign := NODE_EXPORTER.get(metric)) is not None:
        return foreign, labels.get(foreign.entity, "") if foreign.entity else "all"
    if "entity" in labels and (pair := _parted(metric, SOURCES)):
        return Foreign(pair[0], pair[1], ""), labels["entity"]
    return None


def _sampled(rows: pd.DataFrame, foreign: Foreign, entity: str) -> pd.DataFrame:
    """Points of a series as samples."""
    return rows.assign(
        source=foreign.source,
        entity=entity,
        metric=foreign.metric,
        unit=foreign.unit or rows["unit"],
        value=rows["value"] * foreign.scale,
        cumulative=foreign.cumulative,
    )


def _levels(samples: pd.DataFrame) -> pd.DataFrame:
    """Samples of load and space, and free space as a share."""
    keys = list(zip(samples["source"].astype(str), samples["metric"].astype(str), strict=True))
    here = pd.Series([k in LEVELS for k in keys], index=samples.index, dtype=bool)
    names = [LEVELS[k] for k in keys if k in LEVELS]
    levels = samples[here].assign(kind=[n[0] for n in names], metric=[n[1] for n in names])
    levels = levels.reindex(columns=["t_ns", "kind", "entity", "metric", "unit", "value"])
    space = levels[levels["kind"] == "filesystem"]
    if space.empty:
        return levels
    wide = space.pivot_table(
        index=["t_ns", "entity"], columns="metric", values="value", aggfunc="last", observed=True
    ).reindex(columns=["free", "size"])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (100.0 * wide["free"] / wide["size"]).rename("value").reset_index()
    share = share[np.isfinite(share["value"])]
    share = share.assign(kind="filesystem", metric="free share", unit="%")
    both: pd.DataFrame = pd.concat([levels, share], ignore_index=True)
    return both


def _with_all_cpus(samples: pd.DataFrame) -> pd.DataFrame:
    """Samples with the sum of processors as `all`, if only single ones were reported.

    It is the growth since the first sample of each processor, at times with all processors: a sum without
    one of them would fall, and rise by all of its time afterwards.
    """
    cpus = samples[(samples["source"] == "cpu") & (samples["unit"] == "s")]
    if cpus.empty or (cpus["entity"] == "all").any():
        return samples
    wide = cpus.pivot_table(
        index="t_ns", columns=["metric", "entity"], values="value", aggfunc="last", observed=True
    ).sort_index()
    before, after = wide.ffill(), wide.bfill()
    lacking = wide.isna() & before.notna() & after.notna()
    grown = (before - after.iloc[0]).fillna(0.0)[~lacking.any(axis=1)]
    total = grown.T.groupby(level="metric").sum().T.rename_axis(columns=None).reset_index()
    rows = total.melt(id_vars="t_ns", var_name="metric", value_name="value")
    rows = rows.assign(source="cpu", entity="all", unit="s", cumulative=True)
    every: pd.DataFrame = pd.concat([samples, rows], ignore_index=True)
    return every


def _links(
    samples: pd.DataFrame, speeds: Mapping[str, float], otherwise: object
) -> dict[str, float]:
    names = samples.loc[samples["source"] == "network", "entity"].astype(str).unique()
    try:
        rate = float(str(otherwise)) if otherwise is not None else 0.0
    except ValueError:
        rate = 0.0
    return {n: speeds[n] if speeds.get(n, 0) > 0 else rate for n in names}


def _busy(
    samples: pd.DataFrame, links: Mapping[str, float], hz: float | None = None
) -> pd.DataFrame:
    schema = TABLES["samples"].arrow
    table = pa.Table.from_pandas(samples[schema.names], schema=schema, preserve_index=False)
    frame: pd.DataFrame = utilisation(table, hz=hz, link_bps=links).to_pandas()
    return frame.drop(columns="reset")


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.reindex(columns=COLUMNS)
    for name in ("host", "kind", "entity", "metric", "unit"):
        frame[name] = frame[name].astype(str)
    frame["utc_ns"] = frame["utc_ns"].fillna(0).astype(np.int64)
    frame = frame[frame["value"].notna()]
    order = ["host", "kind", "entity", "metric", "utc_ns"]
    return frame.sort_values(order, kind="stable").reset_index(drop=True)
