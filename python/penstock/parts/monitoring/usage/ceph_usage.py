"""Rates and latencies of Ceph's daemons from their counters, as dashboards of volumes show them.

The counters are those of the collector `ceph`, of Ceph's own exporter for Prometheus, which uses the same
names, or of collectd's plug-in (`collectd_usage.py`), which reports averages of its intervals. A counter that
decreased gives no value, and without operations there is no latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

KIND = "ceph"
#: by counter: the metric here and its unit
_RATES = {
    "ceph_osd_op_r": ("osd_reads", "1/s"),
    "ceph_osd_op_w": ("osd_writes", "1/s"),
    "ceph_osd_op_r_out_bytes": ("osd_read_rate", "B/s"),
    "ceph_osd_op_w_in_bytes": ("osd_write_rate", "B/s"),
    "ceph_mds_request": ("mds_requests", "1/s"),
    "ceph_objecter_op_r": ("client_reads", "1/s"),
    "ceph_objecter_op_w": ("client_writes", "1/s"),
    "ceph_librbd_rd": ("client_reads", "1/s"),
    "ceph_librbd_wr": ("client_writes", "1/s"),
}
#: by counter: the average between two samples [s]. Commit and apply are as in `ceph osd perf` (the stores'
#: `get_cur_stats`)
_MEANS = {
    "ceph_osd_op_r_latency": "osd_read_latency",
    "ceph_osd_op_w_latency": "osd_write_latency",
    "ceph_bluestore_commit_lat": "commit_latency",
    "ceph_bluestore_txc_commit_lat": "commit_latency",
    "ceph_filestore_journal_latency": "commit_latency",
    "ceph_filestore_apply_latency": "apply_latency",
    "ceph_mds_reply_latency": "mds_latency",
    "ceph_client_rdlat": "client_read_latency",
    "ceph_client_wrlat": "client_write_latency",
    "ceph_librbd_rd_latency": "client_read_latency",
    "ceph_librbd_wr_latency": "client_write_latency",
}
_SUM, _COUNT = "_sum", "_count"
#: counters, and averages
SHOWN = tuple(_RATES), tuple(_MEANS)
_ALL_SHOWN = frozenset((*_RATES, *(f"{m}{part}" for m in _MEANS for part in ("", _SUM, _COUNT))))


def is_ceph(metric: str) -> bool:
    """True if a series is a counter of Ceph, shown or not."""
    return metric.startswith("ceph_")


def is_shown(metric: str) -> bool:
    """True if `ceph_uses` uses a counter."""
    return metric in _ALL_SHOWN


def entity_of(labels: Mapping[str, str]) -> str:
    """The daemon and the part of it that the counter describes; empty for the complete cluster."""
    daemon = labels.get("daemon") or labels.get("ceph_daemon", "")
    more = [labels[k] for k in ("process", "entity") if labels.get(k)]
    return " ".join([daemon, *more]) if daemon else ""


def ceph_uses(entity: str, series: Mapping[str, pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Rows of `usage.py` without their host, from one daemon's series (`utc_ns`, `value`) by metric."""
    for metric, (name, unit) in _RATES.items():
        # daemons have an objecter, too, for requests among themselves
        internal = name.startswith("client_") and not entity.startswith("client.")
        if metric in series and not internal:
            yield _rows(entity, name, unit, _rate(_ordered(series[metric])))
    for metric, name in _MEANS.items():
        total, count = series.get(metric + _SUM), series.get(metric + _COUNT)
        if total is not None and count is not None:
            yield _rows(entity, name, "s", _mean(_ordered(total), _ordered(count)))
        elif metric in series:
            yield _rows(entity, name, "s", _ordered(series[metric]))


def _ordered(frame: pd.DataFrame) -> pd.Series[float]:
    one = frame.drop_duplicates("utc_ns", keep="last").set_index("utc_ns")["value"]
    return one.sort_index().astype(float)


def _rate(counter: pd.Series[float]) -> pd.Series[float]:
    step_s = np.diff(counter.index.to_numpy(np.int64)) / 1e9
    change = counter.diff().iloc[1:]
    return (change / step_s)[change >= 0]


def _mean(total: pd.Series[float], count: pd.Series[float]) -> pd.Series[float]:
    both = pd.DataFrame({"total": total, "count": count}).dropna().diff().iloc[1:]
    both = both[(both["count"] > 0) & (both["total"] >= 0)]
    return both["total"] / both["count"]


def _rows(entity: str, metric: str, unit: str, values: pd.Series[float]) -> pd.DataFrame:
    frame = pd.DataFrame({"utc_ns": values.index.to_numpy(np.int64), "value": values.to_numpy()})
    return frame.assign(kind=KIND, entity=entity, metric=metric, unit=unit)
