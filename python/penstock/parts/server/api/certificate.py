"""Certificates of a live cluster's disks, in the same form as those of a study's runs."""

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
#: names of clusters that are being measured, whose disk counters were reset
_measured: set[str] = set()
_lock = threading.Lock()


def certify(cluster: Cluster, length_s: float) -> dict[str, Any]:
    """Measure the disks for `length_s` and certify each: rows of `fidelity` and of its windows.

    Resets the counters of the disks. Raises BadInput while another certificate of the cluster is measured.
    """
    with _lock:
        if cluster.name in _measured:
            raise BadInput(f"a certificate of {cluster.name} is being measured already")
        _measured.add(cluster.name)
    try:
        with tempfile.TemporaryDirectory(prefix="certificate-", dir=state_dir()) as folder:
            spool = Path(folder)
            start_ns = time.monotonic_ns()
            cluster.begin(spool)
            utilisation = _processor_utilisation(length_s)
            disks = {i: _certificate(disk, utilisation) for i, disk in cluster.end(spool).items()}
        return {"from_ns": start_ns, "to_ns": time.monotonic_ns(), "disks": disks}
    finally:
        with _lock:
            _measured.discard(cluster.name)


def _processor_utilisation(length_s: float) -> pa.Table:
    """Utilisation of all processors [%], every 0.2 s: rows of table `utilisation`."""
    rows = []
    end_s = time.monotonic() + length_s
    before = busy_ticks()
    while (remaining_s := end_s - time.monotonic()) > 0:
        time.sleep(min(0.2, remaining_s))
        now = busy_ticks()
        if now[0] > before[0]:
            labels = {"kind": "cpu", "entity": "all", "unit": "%"}
            share = 100 * busy_share(before, now)
            rows.append({**labels, "t_ns": time.monotonic_ns(), "value": share})
            before = now
    return pa.Table.from_pylist(rows, schema=_UTILISATION)


def _certificate(disk: Recorded, utilisation: pa.Table) -> dict[str, Any]:
    certificate = disk.certificate(utilisation)
    if certificate is None:
        return {"backend": disk.backend, "valid": None, "reason": "nothing was recorded"}
    valid, reason = is_valid(certificate.overall)
    return {
        "backend": disk.backend,
        "valid": valid,
        "reason": reason,
        "fidelity": certificate.overall.to_pylist(),
        "windows": certificate.windows.to_pylist(),
    }
