"""A certificate of a cluster's disks over some seconds from now, as a study's run has one."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.analyse.fidelity.fidelity import is_valid
from penstock.archive.schemas import TABLES
from penstock.emulate.cluster.cluster import Cluster
from penstock.emulate.disks.recorded import Recorded
from penstock.errors import BadInput
from penstock.host.cgroups.busy import busy_share, busy_ticks
from penstock.state import state_dir

_UTILISATION = TABLES["utilisation"].arrow
#: clusters that are being watched: their disks count from zero meanwhile
_watched: set[str] = set()
_lock = threading.Lock()


def certify(cluster: Cluster, length_s: float) -> dict[str, Any]:
    """Watches the disks for `length_s` and judges each: rows of `fidelity` and of its windows.

    Their counters begin anew. Raises BadInput while another certificate of the cluster is being made.
    """
    with _lock:
        if cluster.name in _watched:
            raise BadInput(f"a certificate of {cluster.name} is being made already")
        _watched.add(cluster.name)
    try:
        with tempfile.TemporaryDirectory(prefix="certificate-", dir=state_dir()) as place:
            spool = Path(place)
            began_ns = time.monotonic_ns()
            cluster.begin(spool)
            utilisation = _watch_processors(length_s)
            disks = {i: _judged(one, utilisation) for i, one in cluster.end(spool).items()}
        return {"from_ns": began_ns, "to_ns": time.monotonic_ns(), "disks": disks}
    finally:
        with _lock:
            _watched.discard(cluster.name)


def _watch_processors(length_s: float) -> pa.Table:
    """How busy all processors were together, five times a second: rows as a monitor's `utilisation`."""
    rows = []
    until = time.monotonic() + length_s
    before = busy_ticks()
    while (left_s := until - time.monotonic()) > 0:
        time.sleep(min(0.2, left_s))
        now = busy_ticks()
        if now[0] > before[0]:
            of = {"kind": "cpu", "entity": "all", "unit": "%"}
            share = 100 * busy_share(before, now)
            rows.append({**of, "t_ns": time.monotonic_ns(), "value": share})
            before = now
    return pa.Table.from_pylist(rows, schema=_UTILISATION)


def _judged(disk: Recorded, utilisation: pa.Table) -> dict[str, Any]:
    judged = disk.certificate(utilisation)
    if judged is None:
        return {"backend": disk.backend, "valid": None, "reason": "nothing was recorded"}
    valid, reason = is_valid(judged.whole)
    return {
        "backend": disk.backend,
        "valid": valid,
        "reason": reason,
        "fidelity": judged.whole.to_pylist(),
        "windows": judged.windows.to_pylist(),
    }
