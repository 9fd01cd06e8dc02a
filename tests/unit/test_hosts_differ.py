"""Variance between hosts as a random effect, compared with statsmodels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.findings.hosts import host_variance, hosts
from penstock.analyse.outcome import Outcome
from penstock.campaign.analysis import analyse
from tests.unit.recorded_study import record, study_text


def outcome_of(folder: Path, spread: float, count: int = 4) -> Outcome:
    """Eight blocks, on `count` hosts in turn."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    shift = spread * rng.normal(size=count)
    text = study_text(
        {"a": "{levels: [x, y]}", "b": "{levels: [1, 2, 4]}"}, "{kind: full, replicates: 8}"
    )
    out = record(
        folder,
        text,
        lambda r: {"y": 50 + 3 * r.coded["a"] + shift[r.block % count] + rng.normal()},
    )
    analyse(out, report=False)
    runs = pd.read_parquet(out / "runs.parquet")
    runs["host_id"] = [f"h{b % count}" for b in runs["replicate"]]
    runs.to_parquet(out / "runs.parquet")
    return Outcome.read(out)


def test_variances_equal_those_of_statsmodels(tmp_path: Path) -> None:
    import statsmodels.formula.api as smf

    outcome = outcome_of(tmp_path / "far", 4.0)
    variance = host_variance(outcome, outcome.responses[0])
    assert variance is not None
    runs = outcome.measured
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = smf.mixedlm("y ~ treatment_id", runs, groups=runs["host_id"]).fit(reml=True)
    assert variance.within**2 == pytest.approx(expected.scale, rel=1e-3)
    assert variance.between**2 == pytest.approx(float(expected.cov_re.iloc[0, 0]), rel=1e-2)


def test_hosts_that_differ_are_a_warning_and_equal_ones_are_not(tmp_path: Path) -> None:
    """Fails if treatments or runs of one host count as differences between hosts."""
    (far,) = hosts(outcome_of(tmp_path / "far", 4.0))
    (near,) = hosts(outcome_of(tmp_path / "near", 0.0))
    assert (far.severity, near.severity) == ("warning", "info")
    assert far.statement.startswith("4 hosts made the runs: y differs between hosts")
    assert near.evidence["share"] < 0.2 < 0.5 < far.evidence["share"]


def test_every_response_has_a_finding(tmp_path: Path) -> None:
    """Hosts differ only in the second response."""
    (tmp_path / "two").mkdir()
    rng = np.random.default_rng(5)
    shift = 4 * rng.normal(size=4)
    responses = {n: f"{{from: {{regex: '{n}: ([0-9.]+)'}}, unit: s, better: lower}}" for n in "yz"}
    text = study_text({"a": "{levels: [x, y]}"}, "{kind: full, replicates: 8}", responses)
    out = record(
        tmp_path / "two",
        text,
        lambda r: {
            "y": 50 + rng.normal(),
            "z": 50 + shift[r.block % 4] + rng.normal(),
        },
    )
    analyse(out, report=False)
    runs = pd.read_parquet(out / "runs.parquet")
    runs["host_id"] = [f"h{b % 4}" for b in runs["replicate"]]
    runs.to_parquet(out / "runs.parquet")
    severities = {f.evidence["response"]: f.severity for f in hosts(Outcome.read(out))}
    assert severities == {"y": "info", "z": "warning"}


def test_one_host_has_no_finding(tmp_path: Path) -> None:
    assert not list(hosts(outcome_of(tmp_path / "one", 0.0, count=1)))
