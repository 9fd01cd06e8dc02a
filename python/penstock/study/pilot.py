"""Variation of runs in an earlier study, for the power of a plan."""

from __future__ import annotations

import math
from pathlib import Path as FilePath
from typing import Any

from penstock.spec.source import Path, Source, read_source


def pilot_of(source: Source, path: Path, out: FilePath) -> dict[str, Any] | None:
    """`{variation, runs}` of the results in `out`; None, with a mistake recorded at `path`.

    The largest, over its responses, of the pooled standard deviation of valid runs within treatments, each
    relative to its treatment's mean; `runs` is the degrees of freedom plus 1.
    """
    import pandas as pd

    expected = "the directory of a study's results with two valid runs of one treatment"
    if not (out / "runs.parquet").is_file() or not (out / "study.yaml").is_file():
        source.mistake(path, f"{out}, where there are none", expected)
        return None
    try:
        runs = pd.read_parquet(out / "runs.parquet")
        names = list(read_source((out / "study.yaml").read_bytes(), str(out)).value["responses"])
        runs = runs[runs["valid"].eq(True)]
        if "validity" in runs.columns:
            runs = runs[runs["validity"].eq("valid")]
        treatments = runs["treatment_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        source.mistake(path, f"{out}: {type(error).__name__} {error}", expected)
        return None
    pooled = [_pooled(runs, treatments, name) for name in names if name in runs]
    usable = [(s, df) for s, df in pooled if df > 0 and math.isfinite(s)]
    if not usable:
        source.mistake(path, f"{out} without replicates", expected)
        return None
    largest, freedom = max(usable)
    return {"variation": f"{100 * largest:.6g}%", "runs": freedom + 1}


def _pooled(runs: Any, treatments: Any, name: str) -> tuple[float, int]:
    import pandas as pd

    values = pd.to_numeric(runs[name], errors="coerce")
    means = values.groupby(treatments).transform("mean")
    share = ((values - means) / means).where(means != 0).dropna()
    freedom = len(share) - treatments[share.index].nunique()
    return (math.sqrt(float((share**2).sum()) / freedom) if freedom > 0 else math.nan), freedom
