"""Findings: what the tables of a study say, in plain words, each with a stable code.

A finding is a statement, the rows that carry it and what to do about it. Codes never change their
meaning; `CODES` lists them. Everything is computed from the published tables of an OUT directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.analyse.finding import Finding
from penstock.analyse.means import ranking
from penstock.analyse.outcome import Outcome
from penstock.analyse.question import kind
from penstock.plugins import STUDY_FINDINGS

SEVERITIES = ("info", "warning", "error")

#: code → what it states
CODES = {
    "recommendation": "the treatment to choose by the study's first response, or what is undecided",
    "responses-conflict": "what the recommended treatment costs in another response",
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
    "not-known": "what the runs cannot tell",
    "cost": "what the level in question costs, where most and where least",
    "remedy": "what removes or eases that cost",
    "no-pure-error": "no replicates, hence no interval from the runs themselves",
    "straggler": "the node of several that is at work longest, and why as far as the tables say",
    "straggler-none": "no node of several stands out",
    "nothing-valid": "no run is valid: why, and what to do",
    "run-invalid": "runs left out because what was asked of the host was not delivered",
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
    return [finding for rule in rules for finding in rule(outcome)]


def findings_table(found: list[Finding]) -> pa.Table:
    """The findings as a table: code, severity, statement, evidence (JSON), what_to_do, detail."""
    names = ("code", "severity", "statement", "evidence", "what_to_do", "detail")
    rows = [{**asdict(f), "evidence": json.dumps(f.evidence, default=_plain)} for f in found]
    return pa.table({n: pa.array([str(r[n]) for r in rows], pa.string()) for n in names})


def write_findings(outcome: Outcome | Path | str) -> list[Finding]:
    """Computes the findings of OUT and leaves them in `OUT/findings.parquet`."""
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    found = findings(outcome)
    pq.write_table(findings_table(found), outcome.path / "findings.parquet")
    return found


#: codes of the findings that answer the question, in the order in which they are said
_ANSWER = ("recommendation", "responses-conflict", "responses-agree")


def answer(outcome: Outcome, found: list[Finding] | None = None) -> list[str]:
    """The study's question answered, a sentence each: the statements of `answering`."""
    found = findings(outcome) if found is None else found
    return [f.statement for f in answering(outcome, found)]


def answering(outcome: Outcome, found: list[Finding]) -> list[Finding]:
    """The findings that answer the study's question, in the order in which they are told.

    What the question asks comes first: whether and how much before which is best. Then what else the best
    means, what matters, why, and what is not known. Empty where no response was measured.
    """

    def said(*codes: str, most: int = 99) -> list[Finding]:
        return [f for code in codes for f in found if f.code == code][:most]

    if nothing := said("nothing-valid", most=1):
        return nothing
    which = kind(outcome.question) == "which"
    asked = [] if which else said("cost", "remedy", most=2)
    best = said(*_ANSWER)
    if asked and _said_by_cost(outcome, asked[0], best):
        best = [f for f in best if f.code != "recommendation"]
    matters = said("effect-dominant", most=1) if len(outcome.factors) > 1 else []
    depends = [f for f in said("effect-interaction") if _of_main(outcome, f)][:1] if which else []
    return [
        *said("effect-few-runs", most=1),
        *asked,
        *best,
        *said("time-scales-differ"),
        *matters,
        *depends,
        *[f for f in said("effect-or-drift") if _of_main(outcome, f)][:1],
        *[f for f in said("effect-aliased") if _of_main(outcome, f)][:1],
        *said("why", "time-scale"),
        *said("effect-untold", most=1),
        *said("not-known"),
    ]


def _of_main(outcome: Outcome, finding: Finding) -> bool:
    """Whether it is of the study's first response."""
    return finding.evidence.get("response") == outcome.responses[0].name


def _said_by_cost(outcome: Outcome, cost: Finding, best: list[Finding]) -> bool:
    """Whether comparing two levels of the only factor said all that the recommendation says."""
    if len(outcome.factors) > 1 or any(f.code == "responses-conflict" for f in best):
        return False
    ranked = ranking(outcome, outcome.responses[0])
    (factor,) = outcome.factors
    ends = {t.levels[factor.name] for t in (ranked.treatments[0], ranked.treatments[-1])}
    two = len(factor.levels) == 2
    none_apart = bool(ranked.of("undecided")) and not ranked.of("worse")
    return set(cost.evidence.get("levels", ())) == ends and (two or none_apart)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
