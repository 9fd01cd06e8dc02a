"""Findings: plain statements on the tables of a study, each with a stable code.

A finding is a statement, the rows that support it and a next step. Codes never change their meaning;
`CODES` lists them. Everything is computed from the published tables of an OUT directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.plugins import STUDY_FINDINGS

#: code → what it states
CODES = {
    "recommendation": "the treatment to choose by the study's first response, or what is undecided",
    "tie": "treatments that equal the best",
    "tie-open": "treatments that these runs cannot distinguish from the best",
    "tie-decided": "the response that decides between equal treatments",
    "responses-conflict": "what the recommended treatment costs in another response",
    "compromise": "the treatment nearest to the best of every response",
    "responses-agree": "other responses for which the recommended treatment is as good as any",
    "effect-dominant": "the factor that most of a response's variation comes from",
    "effect-interaction": "two factors whose effects depend on each other",
    "hosts": "how much hosts that made the runs differ, beside runs of one host",
    "surface": "where a response is best by its surface, and whether the surface fits",
    "desirability": "the setting that serves several responses best together",
    "effect-untold": "effects that cannot be told, because combinations have no valid run",
    "effect-aliased": "effects that may be those of something else, and the cheapest step that would tell",
    "effect-few-runs": "a few runs that explain as many equal effects, and are to be repeated first",
    "effect-or-drift": "effects that a drift of the host over the runs would explain as well",
    "effect-unrivalled": "no effect has a plausible rival; aliases that are not excluded",
    "screening": "which of many factors matter for the study's first response",
    "screened-out": "factors that do not matter for it, and what their effects may still be",
    "screening-open": "factors and interactions that a screening leaves open",
    "confirmation": "what fresh interleaved runs say of a setting that earlier ones chose",
    "alert-fired": "an alert rule of the study fired, and which runs it ended",
    "limit-reached": "a limit that the study declares ended it",
    "stage-confounded": "what cannot be told from the difference between stages",
    "effect-none": "no effect on a response is significant",
    "effect-scale": "effects are told on another scale than that of the measurement",
    "stratum": "factors whose settings were kept over several runs, and what they are judged by",
    "stratum-untold": "factors with too few settings of their own to judge by",
    "residuals": "residuals that speak against what the intervals assume, and what other scales say",
    "outlier": "runs far from the others, and the effects without them",
    "run-left-out": "runs that somebody left out, why, and what the effects are with them",
    "effect-bound": "what a not significant effect may still be",
    "time-scale": "disks that were slowed down, and what of the run was not",
    "time-scales-differ": "disks that are compared and do not share one time scale",
    "why": "what the time of the compared treatments goes to",
    "fewer-flushes": "the faster treatment flushes less often: what a crash would lose",
    "not-known": "what the runs cannot tell",
    "cost": "what the level in question costs, where most and where least",
    "remedy": "what removes or eases that cost",
    "no-pure-error": "no replicates, hence no interval from the runs themselves",
    "straggler": "the node of several that is at work longest, and why as far as the tables say",
    "straggler-none": "no node of several stands out",
    "nothing-valid": "no run is valid: why, and what to do",
    "run-invalid": "runs left out because what was asked of the host was not delivered",
    "run-degraded": "runs that are used although the host delayed them, with a bound on that",
    "host-busy": "other programs ran beside runs whose disks are not emulated, so that no bound is known",
    "run-failed": "runs whose workload failed or timed out",
    "run-missing": "planned runs that were not made",
    "fidelity-honoured": "emulated disks delivered what their profile asks",
    "fidelity-not-honoured": "emulated disks did not deliver what their profile asks",
    "fidelity-host-saturated": "the host could not keep up with an emulated disk",
    "fidelity-undecided": "too few requests to judge an emulated disk",
    "device-not-at-rest": "runs that began while a device was still busy, or its credits not as stated",
    "tail-doubted": "the program saw another 99th percentile than was due from its disk",
    "observer-lost": "observers lost events or samples",
    "collected-incomplete": "collectors did not bring all that was due",
    "observer-cost": "processor time that the observers took",
    "prediction-agrees": "at least 85 % of predictions within 15 % of the measurement",
    "prediction-departs": "fewer than 85 % of predictions within 15 % of the measurement",
    "fraction-misleads": "where the half fraction of the same runs would have been wrong",
    "fraction-agrees": "the half fraction of the same runs would have said the same",
    "design-caution": "what the design cannot tell",
}


def findings(outcome: Outcome | Path | str) -> list[Finding]:
    """All findings of an OUT directory, the ones that answer the question first.

    Raises `BadInput` where the directory is not one of results.
    """
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    rules = [STUDY_FINDINGS.load(name) for name in STUDY_FINDINGS]
    stated = [finding for rule in rules for finding in rule(outcome)]
    if not any(finding.code == "host-busy" for finding in stated):
        return stated
    # no interval includes what other programs did to runs without a bound
    return [replace(f, confidence="likely") if f.confidence == "clear" else f for f in stated]


def findings_table(results: list[Finding]) -> pa.Table:
    """The findings as a table, a column per field of `Finding`; the evidence as JSON."""
    names = ("code", "severity", "statement", "evidence", "what_to_do", "detail", "confidence")
    rows = [{**asdict(f), "evidence": json.dumps(f.evidence, default=_plain)} for f in results]
    return pa.table({n: pa.array([str(r[n]) for r in rows], pa.string()) for n in names})


def write_findings(outcome: Outcome | Path | str) -> list[Finding]:
    """Compute the findings of OUT and write them to `OUT/findings.parquet`."""
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    results = findings(outcome)
    pq.write_table(findings_table(results), outcome.path / "findings.parquet")
    return results


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
