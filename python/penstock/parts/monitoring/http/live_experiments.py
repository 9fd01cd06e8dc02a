"""Running experiments as the live page shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.routes.server import Document
from penstock.routes.throttled import Throttled

_MOST_EXPERIMENTS = 50
#: limit for checks of the completeness of a running experiment
_MOST_CHECKED_BYTES = 16 << 20


class LiveExperiments:
    """Running experiments of a store, with the completeness of their recordings."""

    def __init__(self, store: Callable[[], Experiments]) -> None:
        self._store = store
        self._completeness: dict[Path, Throttled] = {}

    def find(self, name: str, reader: str | None) -> tuple[str, str, int]:
        """Owner, name and repeat of an experiment. Raises Unknown if `reader` cannot read it."""
        experiment = self._store().find(name, reader)
        return experiment.owner, experiment.name, experiment.repeat

    def documents(self) -> list[Document]:
        """The running experiments; one with `trouble` if the catalogue is unavailable."""
        try:
            store = self._store()
            running = store.listed(None, state="running")[-_MOST_EXPERIMENTS:]
            rows = []
            for experiment in running:
                with contextlib.suppress(PenstockError):
                    rows.append(self._experiment(store, experiment))
        except (PenstockError, OSError) as error:
            return [{"name": "", "trouble": str(error)}]
        running_paths = {e.path for e in running}
        self._completeness = {p: c for p, c in self._completeness.items() if p in running_paths}
        return rows

    def _experiment(self, store: Experiments, experiment: Experiment) -> Document:
        details = store.find(f"{experiment.name}#{experiment.repeat}", experiment.owner)
        completeness = self._completeness.setdefault(
            experiment.path, Throttled(lambda: _completeness(store, details), 5.0)
        )
        completeness.refresh()
        open_phases = [p for p in details.phases if p.end_ns is None]
        return {
            "name": details.name,
            "repeat": details.repeat,
            "user": details.owner,
            "shared": details.shared,
            "start_ms": details.start_ns / 1e6,
            "tags": list(details.tags),
            "phase": open_phases[-1].name if open_phases else "",
            "phases": len(details.phases),
            "notes": [text for _, text in details.notes[-3:]],
            "recorded": completeness.value,
        }


def _completeness(store: Experiments, experiment: Experiment) -> Document:
    """Counts of recorded series and points, and completeness; above `_MOST_CHECKED_BYTES` only the size."""
    live = experiment.live
    size = sum(f.stat().st_size for f in live.iterdir()) if live.is_dir() else 0
    if size > _MOST_CHECKED_BYTES:
        return {"bytes": size}
    recording = store.recorded(experiment)
    return {
        "verdict": recording.verdict,
        "series": recording.series.num_rows,
        "points": int(pc.sum(recording.series["stored"]).as_py() or 0),
        "lost": recording.lost,
    }
