"""Steps of the analysis of a study: each writes tables of all runs, in the order of the table.

A step receives the analysis and writes to its `out`. PenstockError if its tables cannot be computed.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from penstock.archive.bundle import write_parquet
from penstock.archive.schemas import described
from penstock.campaign.analysis import Analysis
from penstock.errors import PenstockError
from penstock.study.resolve import needs_cluster


def effects(analysis: Analysis) -> None:
    """Effects, residuals and trends of each response."""
    from penstock.analyse.statistics.effects import effects as effects_of
    from penstock.analyse.statistics.fit import fitted, usable
    from penstock.analyse.statistics.residuals import residual_table
    from penstock.analyse.statistics.scale import analysis_scale
    from penstock.analyse.surface.polynomials import trends

    study, plan = analysis.study, analysis.plan
    path = analysis.out / "effects.parquet"
    path.unlink(missing_ok=True)
    tables, faults = [], []
    parts: dict[str, list[pd.DataFrame]] = {"residuals": [], "trends": []}
    for declared in study.responses:
        response = declared.name
        try:
            scale = analysis_scale(analysis.runs, study, declared)
            fit = fitted(analysis.runs, plan, response, scale)
            tables.append(effects_of(analysis.runs, plan, response, scale=scale, fit=fit))
            data = usable(analysis.runs, plan, response)
            parts["residuals"].append(residual_table(fit, data, response, scale, study.outliers))
            parts["trends"].append(trends(fit, plan, response, scale))
        except PenstockError as error:
            faults.append(f"{response}: {error}")
    if tables:
        analysis.effects = pd.concat(tables, ignore_index=True)
        table = pa.Table.from_pandas(analysis.effects, preserve_index=False)
        write_parquet(path, described("effects", table.replace_schema_metadata(None)))
    for name, frames in parts.items():
        write_frame(analysis.out, name, [f for f in frames if len(f)])
    if faults:
        raise PenstockError("; ".join(faults))


def write_frame(out: Path, name: str, frames: list[pd.DataFrame]) -> None:
    """Write a table of the study; remove it if there are no rows."""
    path = out / f"{name}.parquet"
    path.unlink(missing_ok=True)
    if frames:
        table = pa.Table.from_pandas(pd.concat(frames, ignore_index=True), preserve_index=False)
        write_parquet(path, described(name, table.replace_schema_metadata(None)))


def surface(analysis: Analysis) -> None:
    """Response surfaces and their optima."""
    from penstock.analyse.surface.optimum import seeks_optimum, tables

    results = (
        tables(analysis.tables) if seeks_optimum(analysis.tables) and analysis.valid_runs else None
    )
    write_frame(analysis.out, "surface", [results[0]] if results and len(results[0]) else [])
    write_frame(analysis.out, "optimum", [results[1]] if results and len(results[1]) else [])
    if results and results[2]:
        raise PenstockError("; ".join(results[2]))


def means(analysis: Analysis) -> None:
    """Means of treatments and levels."""
    from penstock.analyse.treatments.means import means_table

    write_parquet(analysis.out / "means.parquet", means_table(analysis.tables))


def ledger(analysis: Analysis) -> None:
    """Costs and gains of the runs of a sequential study."""
    from penstock.analyse.sequential.ledger import ledger as ledger_of

    path = analysis.out / "ledger.parquet"
    path.unlink(missing_ok=True)
    frame = ledger_of(analysis.tables)
    if frame is not None:
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        write_parquet(path, described("ledger", table))


def predictions(analysis: Analysis) -> None:
    """Predictions of the treatments from traces of other treatments."""
    from penstock.study_prediction.predict import predict_study

    study = analysis.study
    path = analysis.out / "predictions.parquet"
    path.unlink(missing_ok=True)
    trace = study.observers.trace
    if trace is None or trace.mode != "trace" or trace.filtered:
        return
    disks = [disk for node in study.platform.nodes for disk in node.disks]
    if not disks or not all(d.profile is not None for d in disks) or not analysis.valid_runs:
        return
    if needs_cluster(study.platform):
        analysis.notes.append(
            "no predictions: runs on several nodes are not replayed; `penstock predict` takes their platform"
        )
        return
    frame = predict_study(analysis.out)
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    write_parquet(path, described("predictions", table))
