"""Energy of a run by the power model: busy times that the monitor sampled, and powers of the study.

No power is measured. Each virtual node is a host of the model; in a run without nodes, this host is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError, printable
from penstock.spec.study import ResponseSource
from penstock.spec.units import convert
from penstock.workload.measured import IncompleteError

if TYPE_CHECKING:
    from penstock.archive.bundle import Bundle

_Array = npt.NDArray[np.float64]
_PHASE = "workload"
#: entity of a run that has no virtual nodes
_OWN = "run"


def modelled_energy(bundle: Bundle, source: ResponseSource, unit: str) -> float:
    """Energy of all hosts during the workload, in `unit`.

    PenstockError without samples of the monitor; IncompleteError if a counter went back meanwhile.
    """
    assert source.power is not None
    if not {"utilisation", "phases"} <= set(bundle.tables):
        raise PenstockError("found no samples of the run; expected observers.monitor")
    begin_ns, end_ns = _phase(bundle)
    use = _Use(bundle.table("utilisation").to_pandas(), begin_ns, end_ns)
    hosts = use.entities("cgroup_cpu")
    if not hosts:
        raise PenstockError("found no processor time of the run; expected observers.monitor")
    processors = source.processors or use.processors
    elapsed_s = (end_ns - begin_ns) / 1e9
    total_j = 0.0
    for host in hosts:
        disks = [d for d in use.entities("emulated_disk") if host == _OWN or _of(d, host, ".")]
        links = [n for n in use.entities("network") if _of(n, host, " ")]
        app_s = use.busy_s("cgroup_cpu", [host], "cores", 1 / processors)
        storage_s = use.busy_s("emulated_disk", disks, "busy", 0.01)
        network_s = use.busy_s("network", links, "used", 0.01)
        total_j += source.power.energy_j(elapsed_s, app_s, storage_s, network_s)
    return convert(total_j, "J", unit)


def _phase(bundle: Bundle) -> tuple[int, int]:
    for row in bundle.table("phases", ["phase_id", "start_ns", "end_ns"]).to_pylist():
        if row["phase_id"] == _PHASE:
            return int(row["start_ns"]), int(row["end_ns"])
    raise PenstockError(f"found no phase {_PHASE} of the run; expected one")


def _of(entity: str, host: str, mark: str) -> bool:
    """True for `HOST.DISK` or `HOST INTERFACE`."""
    return entity.startswith(f"{host}{mark}")


class _Use:
    """Utilisations during a phase."""

    def __init__(self, frame: Any, begin_ns: int, end_ns: int) -> None:
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._rows = {
            (str(kind), str(entity), str(metric)): rows
            for (kind, entity, metric), rows in frame.groupby(["kind", "entity", "metric"])
        }

    def entities(self, kind: str) -> list[str]:
        return sorted({entity for k, entity, _ in self._rows if k == kind})

    @property
    def processors(self) -> int:
        """Number of processors of this host."""
        return max(1, len([one for one in self.entities("cpu") if one != "all"]))

    def busy_s(self, kind: str, entities: Sequence[str], metric: str, scale: float) -> float:
        """Busy seconds of a host: values × `scale`, summed over entities, at most 1 at any time."""
        recorded = [
            self._rows[kind, e, metric] for e in entities if (kind, e, metric) in self._rows
        ]
        if not recorded:
            return 0.0
        edges = np.unique(np.concatenate([rows["t_ns"].to_numpy() for rows in recorded]))
        edges = edges[(edges > self._begin_ns) & (edges < self._end_ns)]
        ends = np.append(edges, self._end_ns)
        seconds = np.diff(np.append(self._begin_ns, ends)) / 1e9
        total = sum(self._at(rows, ends) for rows in recorded) * scale
        if not np.isfinite(total).all():
            names = printable(", ".join(entities))
            raise IncompleteError(f"found gaps in {kind} {metric} of {names}; expected none")
        return float(np.sum(np.minimum(total, 1.0) * seconds))

    def _at(self, rows: Any, ends: npt.NDArray[np.int64]) -> _Array:
        """Value of the interval that contains each end; the last interval lasts until the end."""
        ordered = rows.sort_values("t_ns")
        places = np.searchsorted(ordered["t_ns"].to_numpy(), ends)
        values: _Array = ordered["value"].to_numpy(float)
        return values[np.minimum(places, len(values) - 1)]
