"""Experiments and a study to share, compare and derive from, in a store of the test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import local_user, open_index
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels, points

T0 = 1_700_000_000_000_000_000
S = 10**9


def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    """The store that `penstock` uses in this test."""
    monkeypatch.setenv("PENSTOCK_ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    return Experiments(open_index(), experiments_home())


def made(
    store: Experiments,
    name: str,
    series: Mapping[tuple[str, str], tuple[Any, Any]],
    *,
    phases: Mapping[str, tuple[float, float]] | None = None,
    lasted_s: float = 60.0,
    unit: str = "B/s",
    start_ns: int = T0,
    params: Mapping[str, Any] | None = None,
) -> Experiment:
    """An experiment that has ended, with times [s] and values by (metric, node)."""
    running = store.start(name, local_user(), at_ns=start_ns, params=params)
    for number, ((metric, node), (at_s, values)) in enumerate(series.items()):
        utc_ns = start_ns + np.round(np.asarray(at_s, float) * S).astype(np.int64)
        label = canonical_labels({"node": node}) if node else "{}"
        table = points(metric=metric, labels=label, utc_ns=utc_ns, float=values, unit=unit)
        if len(utc_ns) != len(values):
            table = pa.table(table)
        store.sink(running).write(Batch("test", number, table))
    for phase, (low, high) in (phases or {}).items():
        store.mark(running, "begin", phase, start_ns + round(low * S))
        store.mark(running, "end", phase, start_ns + round(high * S))
    return store.stop(running, at_ns=start_ns + round(lasted_s * S))


def study(place: Path, walls: Mapping[str, list[float]]) -> Path:
    """Results of a study, with wall times [s] of the runs of each treatment."""
    number = 0
    for treatment, times in walls.items():
        for wall in times:
            number += 1
            manifest = {
                "study_id": "s",
                "run_id": f"r{number:03}",
                "treatment_id": treatment,
                "run_order": number,
                "levels": {"disk": treatment},
                "responses": {"wall_s": {"value": wall, "unit": "s"}},
                "times": {"wall_s": wall, "end_realtime_ns": T0 + number * S},
            }
            with Bundle.create(place / "runs" / f"r{number:03}", manifest) as bundle:
                (bundle.path / "stdout.txt").write_text(f"{wall}\n")
    return place


def penstock(*arguments: str) -> Result:
    """Result of a command."""
    result = CliRunner().invoke(_build(), list(arguments))
    if isinstance(result.exception, Exception) and not isinstance(result.exception, BadInput):
        raise result.exception
    return result


def refused(*arguments: str) -> str:
    """The one line of a command's refusal."""
    result = penstock(*arguments)
    assert isinstance(result.exception, BadInput), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)
