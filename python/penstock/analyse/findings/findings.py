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
from penstock.text import without_nan

#: code → description
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
    "hosts": "differences between the hosts of the runs, compared with runs of one host",
    "surface": "where a response is best by its surface, and whether the surface fits",
    "optimum": "the setting to choose by the fitted surface, compared with the best that was run",
    "optimum-edge": "the optimum of the surface is at the edge of the levels",
    "desirability": "the setting that serves several responses best together",
    "effect-undetermined": "effects that cannot be determined, because combinations have no valid run",
    "effect-aliased": "effects that may belong to another term, and the cheapest step to separate them",
    "effect-few-runs": "a few runs that explain as many equal effects, and should be repeated first",
    "effect-or-drift": "effects that a drift of the host over the runs would explain as well",
    "effect-unambiguous": "no effect has a plausible rival, and the terms that explain the runs",
    "screening": "which of many factors matter for the study's first response",
    "screened-out": "factors whose effects are below the smallest one that matters, as declared",
    "not-shown": "factors without a significant effect, and what their effects may still be",
    "screening-open": "factors and interactions that a screening cannot decide",
    "confirmation": "new interleaved runs of a setting that earlier runs chose",
    "alert-fired": "an alert rule of the study fired, and which runs it ended",
    "limit-reached": "a limit that the study declares ended it",
    "stage-confounded": "effects that cannot be distinguished from the difference between stages",
    "effect-none": "no effect on a response is significant",
    "effect-scale": "effects are reported on another scale than that of the measurement",
    "stratum": "factors whose settings stayed the same over several runs, and their error",
    "stratum-undetermined": "factors with too few settings of their own for a test",
    "residuals": "residuals that contradict the assumptions of the intervals, and results on other scales",
    "outlier": "runs far from the others, and the effects without them",
    "runs-differ": "runs of one treatment differ, and what else differs between them in the same order",
    "runs-differ-open": "runs of one treatment differ, and follow nothing that was recorded",
    "run-left-out": "excluded runs, the reason, and the effects with them",
    "effect-bound": "the range of an effect that is not significant",
    "time-scale": "disks that were slowed down, and the parts of the run that were not",
    "time-scales-differ": "disks that are compared and do not share one time scale",
    "why": "where the time of the compared treatments goes",
    "fewer-flushes": "the faster treatment flushes less often: what a crash would lose",
    "not-known": "questions that the runs do not answer",
    "cost": "cost of the level in question, largest and smallest",
    "remedy": "changes that remove or reduce that cost",
    "no-pure-error": "no replicates, so no interval from the runs themselves",
    "straggler": "the node that works longest, and the reason as far as it was recorded",
    "straggler-none": "no node works longer than the others",
    "nothing-valid": "no run is valid: why, and what to do",
    "run-invalid": "runs excluded because the host did not deliver what the study requires",
    "run-degraded": "runs that are used although the host delayed them, with a bound on that",
    "host-busy": "other programs ran during runs whose disks are not emulated, so there is no bound",
    "run-failed": "runs whose workload failed or timed out",
    "runs-lost": "many planned runs have no valid result, so the others may be a biased selection",
    "run-missing": "planned runs that did not take place",
    "fidelity-honoured": "emulated disks delivered what their profile specifies",
    "fidelity-not-honoured": "emulated disks did not deliver what their profile specifies",
    "fidelity-host-saturated": "the host could not keep up with an emulated disk",
    "fidelity-undecided": "too few requests to evaluate an emulated disk",
    "device-not-at-rest": "runs that began while a device was still busy, or its credits not as stated",
    "tail-disputed": "the program measured another 99th percentile than its disk",
    "observer-lost": "observers lost events or samples",
    "collected-incomplete": "collectors did not deliver all expected points",
    "observer-cost": "processor time that the observers took",
    "prediction-agrees": "at least 85 % of predictions within 15 % of the measurement",
    "prediction-departs": "fewer than 85 % of predictions within 15 % of the measurement",
    "fraction-misleads": "a half fraction of the same runs would have given a wrong result",
    "fraction-agrees": "a half fraction of the same runs would have given the same result",
    "design-caution": "questions that the design cannot answer",
}


def findings(outcome: Outcome | Path | str) -> list[Finding]:
    """All findings of an OUT directory, the ones that answer the question first.

    BadInput if it is not a directory of results.
    """
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    rules = [STUDY_FINDINGS.load(name) for name in STUDY_FINDINGS]
    stated = [finding for rule in rules for finding in rule(outcome)]
    if not any(finding.code in ("host-busy", "runs-lost") for finding in stated):
        return stated
    # intervals include neither the effect of other programs on runs without a bound, nor a selection
    return [replace(f, confidence="likely") if f.confidence == "clear" else f for f in stated]


def findings_table(results: list[Finding]) -> pa.Table:
    """The findings as a table, a column per field of `Finding`; the evidence as JSON."""
    names = ("code", "severity", "statement", "evidence", "what_to_do", "detail", "confidence")
    rows = [
        {**asdict(f), "evidence": json.dumps(without_nan(f.evidence), default=_plain)}
        for f in results
    ]
    return pa.table({n: pa.array([str(r[n]) for r in rows], pa.string()) for n in names})


def write_findings(outcome: Outcome | Path | str) -> list[Finding]:
    """Compute the findings of OUT and write them to `OUT/findings.parquet`."""
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    results = findings(outcome)
    pq.write_table(findings_table(results), outcome.path / "findings.parquet")
    return results


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
