"""Counters of Ceph's daemons: what `perf schema` says that there are, and `perf dump` how they stand.

The counter NAME of the collection COLLECTION is the metric `ceph_COLLECTION_NAME`, as Ceph's own exporter of
Prometheus calls it; an average is two, `…_sum` and `…_count`, which only grow. Of a collection that may be
there several times (`librbd-ID-POOL-IMAGE`, `throttle-NAME`) what comes after the hyphen is the label
`entity` (docs.ceph.com, Perf counters).
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
#: what is taken unless a configuration says otherwise, as COLLECTION.NAME; of each version its own names
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
#: of one daemon
MOST_COUNTERS = 5_000
_MOST_NAME = 200
#: bits of a type (src/common/perf_counters.h)
_TIME, _AVERAGE, _COUNTER, _HISTOGRAM = 1, 4, 8, 16
_ODD = re.compile(r"[^A-Za-z0-9_]+")
#: parts of an average in a dump, and how its metric ends
_PARTS = (("sum", "_sum"), ("avgcount", "_count"))


class Series(NamedTuple):
    """What becomes of a counter, or of a part of an average. `grows`: it never falls but by a reset."""

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
        """By its schema, and patterns of COLLECTION.NAME or `all`. ValueError for what is no schema."""
        said = _collections(schema)
        #: collections that it had, and whatever else it is known not to have
        self.known = set(said)
        right = re.compile("|".join(fnmatch.translate(p) for p in chosen))
        every = ALL in chosen
        found: dict[tuple[str, str], Series] = {}
        #: counters that were more than are taken
        self.left_out = 0
        for collection, counters in said.items():
            for name, about in counters.items():
                if not (every or right.match(f"{collection}.{name}")):
                    continue
                for one in _series(collection, name, about):
                    if len(found) < MOST_COUNTERS:
                        found.setdefault((one.metric, one.entity), one)
                    else:
                        self.left_out += 1
        self.series = tuple(found.values())

    def read(self, dump: bytes) -> tuple[list[tuple[Series, float]], set[str]]:
        """Values of a dump, and its collections that are not known. ValueError for no dump."""
        said = _collections(dump)
        found: list[tuple[Series, float]] = []
        for one in self.series:
            value = said.get(one.collection, {}).get(one.counter)
            if one.part:
                value = value.get(one.part) if isinstance(value, dict) else None
            if (number := _number(value)) is not None:
                found.append((one, number))
        return found, set(said) - self.known


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
        # a sum may be of numbers below 0: that it began anew is told by its count
        count = part == "avgcount"
        own = "" if count else unit
        yield Series(collection, name, part, f"{metric}{ending}", entity, own, count)


def _collections(text: bytes) -> Mapping[str, Mapping[str, Any]]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = printable(" ".join(text[:200].decode("utf-8", "replace").split())[:60])
        what = "too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{shown!r}, which is no JSON ({what})") from None
    if not isinstance(said, dict):
        raise ValueError(f"a {type(said).__name__} and no object")
    return {name: own for name, own in said.items() if isinstance(own, dict)}


def _number(said: Any) -> float | None:
    """A finite number, None for what is none."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    try:
        value = float(said)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
