"""Counters of Ceph's daemons, which `perf schema` lists; `perf dump` has their values.

The counter NAME of the collection COLLECTION is the metric `ceph_COLLECTION_NAME`, as in Ceph's own exporter
for Prometheus; an average becomes two metrics, `…_sum` and `…_count`. For collections with several instances
(`librbd-ID-POOL-IMAGE`, `throttle-NAME`) the text after the hyphen is the label `entity` (docs.ceph.com, Perf
counters).
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import printable

ALL = "all"
#: default counters as COLLECTION.NAME; they have the names of several versions of Ceph
USUAL = (
    *(
        f"osd.{name}"
        for name in (
            "op_wip op_r op_w op_rw op_r_out_bytes op_w_in_bytes op_rw_in_bytes op_rw_out_bytes op_latency "
            "op_r_latency op_w_latency op_rw_latency subop_w subop_w_in_bytes subop_w_latency recovery_ops "
            "recovery_bytes stat_bytes stat_bytes_used"
        ).split()
    ),
    *("bluestore.commit_lat", "bluestore.txc_commit_lat", "bluestore.kv_commit_lat"),
    *("bluestore.kv_flush_lat", "bluestore.read_lat"),
    *("filestore.journal_latency", "filestore.apply_latency", "filestore.commitcycle_latency"),
    *("mds.request", "mds.reply", "mds.reply_latency", "mds.inodes", "mds.caps"),
    *("mds_server.handle_client_request", "mds_sessions.session_count"),
    *("mon.num_sessions", "paxos.commit", "paxos.commit_latency", "cluster.num_osd"),
    *("cluster.num_osd_up", "cluster.osd_bytes", "cluster.osd_bytes_used"),
    *("client.reply", "client.lat", "client.rdlat", "client.wrlat", "client.fsync"),
    *("objecter.op_active", "objecter.op_r", "objecter.op_w", "objecter.op_rmw"),
    *("objectcacher-*.cache_bytes_hit", "objectcacher-*.cache_bytes_miss"),
    *(
        f"librbd-*.{name}"
        for name in "rd rd_bytes rd_latency wr wr_bytes wr_latency flush flush_latency".split()
    ),
)
#: maximum number of counters of one daemon
MOST_COUNTERS = 5_000
_MOST_NAME = 200
#: bits of a type (src/common/perf_counters.h)
_TIME, _AVERAGE, _COUNTER, _HISTOGRAM = 1, 4, 8, 16
_ODD = re.compile(r"[^A-Za-z0-9_]+")
#: parts of an average in a dump, and the suffixes of their metrics
_PARTS = (("sum", "_sum"), ("avgcount", "_count"))


class Series(NamedTuple):
    """Metric of a counter or of a part of an average. `grows`: it decreases only by a reset."""

    collection: str
    counter: str
    part: str
    metric: str
    entity: str
    unit: str
    grows: bool


class Counters:
    """The chosen counters of one daemon."""

    def __init__(self, schema: bytes, chosen: Sequence[str]) -> None:
        """`chosen`: patterns of COLLECTION.NAME, or `all`. ValueError for an invalid schema."""
        collections = _collections(schema)
        #: collections of the schema, and those of dumps that it lacks
        self.seen = set(collections)
        pattern = re.compile("|".join(fnmatch.translate(p) for p in chosen))
        all_counters = ALL in chosen
        by_name: dict[tuple[str, str], Series] = {}
        #: number of counters beyond the maximum
        self.omitted = 0
        for collection, counters in collections.items():
            for name, about in counters.items():
                if not (all_counters or pattern.match(f"{collection}.{name}")):
                    continue
                for series in _series(collection, name, about):
                    if len(by_name) < MOST_COUNTERS:
                        by_name.setdefault((series.metric, series.entity), series)
                    else:
                        self.omitted += 1
        self.series = tuple(by_name.values())

    def read(self, dump: bytes) -> tuple[list[tuple[Series, float]], set[str]]:
        """Values of a dump, and its new collections. ValueError for an invalid dump."""
        collections = _collections(dump)
        values: list[tuple[Series, float]] = []
        for series in self.series:
            value = collections.get(series.collection, {}).get(series.counter)
            if series.part:
                value = value.get(series.part) if isinstance(value, dict) else None
            if (number := _number(value)) is not None:
                values.append((series, number))
        return values, set(collections) - self.seen


def _series(collection: str, name: str, about: Any) -> Iterator[Series]:
    kind = about.get("type") if isinstance(about, dict) else None
    if not isinstance(kind, int) or kind & _HISTOGRAM:
        return
    head, _, entity = collection.partition("-")
    metric = f"ceph_{_ODD.sub('_', head)}_{_ODD.sub('_', name)}"
    if len(metric) > _MOST_NAME or len(entity) > _MOST_NAME or not entity.isprintable():
        return
    unit = "s" if kind & _TIME else ""
    if about.get("units") == "bytes" or name.endswith("_bytes"):
        unit = "B"
    if not kind & _AVERAGE:
        yield Series(collection, name, "", metric, entity, unit, bool(kind & _COUNTER))
        return
    for part, ending in _PARTS:
        # a sum may decrease by negative values, so resets are detected by the count
        count = part == "avgcount"
        own = "" if count else unit
        yield Series(collection, name, part, f"{metric}{ending}", entity, own, count)


def _collections(text: bytes) -> Mapping[str, Mapping[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = printable(" ".join(text[:200].decode("utf-8", "replace").split())[:60])
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{shown!r}, which is no JSON ({reason})") from None
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} and no object")
    return {name: own for name, own in document.items() if isinstance(own, dict)}


def _number(raw: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
