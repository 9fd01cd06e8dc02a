"""Residuals of a study's predictions, stored with the study and used for later intervals."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.statistics.calibration import Pair, calibrated
from penstock.analyse.statistics.prediction_intervals import LEVEL, Interval
from penstock.archive.bundle import write_parquet
from penstock.archive.schemas import described

FILE = "calibration.parquet"


def calibrated_by_others(frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions with intervals calibrated by the residuals of other treatments, by response.

    A treatment's own measurement is never used for its interval. Adds `calibration`: `calibrated`, or
    `insufficient calibration` if the rank k = ceil((n+1) · 0.9) exceeds the number n of pairs; the
    simulated interval then remains.
    """
    simulated = frame
    frame = frame.copy()
    statuses: list[str] = []
    for at in frame.index:
        row = frame.loc[at]
        if not np.isfinite(row["predicted"]):
            statuses.append("")
            continue
        same = simulated["response"] == row["response"]
        others = simulated[same & ~simulated["is_basis"]]
        pairs = _pairs("", others.drop(index=at, errors="ignore"))
        interval = Interval(row["ci_low"], row["ci_high"], LEVEL, LEVEL, 0, "simulated runs")
        wider = calibrated(interval, float(row["predicted"]), pairs)
        status = wider.calibration.status if wider.calibration else "insufficient calibration"
        statuses.append(status)
        if status == "calibrated":
            frame.loc[at, ["ci_low", "ci_high"]] = [wider.low, wider.high]
    frame["calibration"] = statuses
    return frame


def write_pairs(out_dir: Path, study: str, frame: pd.DataFrame) -> int:
    """Write the pairs of all treatments but the basis to `calibration.parquet`; return their number.

    `frame` has the simulated intervals, before calibration. Without pairs no file is written, and an
    existing one is removed.
    """
    path = out_dir / FILE
    pairs = _pairs(study, frame[~frame["is_basis"]])
    path.unlink(missing_ok=True)
    if pairs:
        table = pa.Table.from_pylist([asdict(p) for p in pairs])
        write_parquet(path, described("calibration", table))
    return len(pairs)


def _pairs(study: str, frame: pd.DataFrame) -> list[Pair]:
    """One pair for each positive prediction with a measurement; `platform` is the treatment."""
    pairs = []
    for row in frame.to_dict("records"):
        predicted, measured = float(row["predicted"]), float(row["measured_mean"])
        if not (np.isfinite([predicted, measured]).all() and predicted > 0 and measured > 0):
            continue
        pairs.append(
            Pair(
                workload=f"{study}: {row['response']}",
                platform=str(row["treatment_id"]),
                predicted=predicted,
                measured=measured,
                low=float(row["ci_low"]),
                high=float(row["ci_high"]),
                model=str(row["source"]),
                source=f"trace of {row['basis_treatment']}",
            )
        )
    return pairs
