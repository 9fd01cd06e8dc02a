"""The answer of a study: a first sentence and at most four labelled points; the report has the rest.

The question comes first (whether and how much, or which). Points are findings under one of a few labels;
those that could change the conclusion precede those that explain it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.findings import findings
from penstock.analyse.findings.question import kind
from penstock.analyse.outcome import Outcome
from penstock.analyse.treatments.means import ranking
from penstock.text import COLUMNS, labelled, wrapped

#: maximum number of points of an answer
MOST_POINTS = 4
#: maximum number of findings under one label
_MOST_MERGED = 2
NEXT_STEP = "Next step"
_COMMAND = re.compile(r"(?<=`)(penstock |OUT/)[^`]*(?=`)")

#: label → codes of its findings; the order in which points are printed
LABELS = {
    "Remedy": ("remedy",),
    "Best": ("optimum", "recommendation", "tie-decided", "compromise", "responses-agree"),
    "Confirmation": ("confirmation",),
    "Main factor": ("screening", "effect-dominant", "effect-interaction"),
    "Why": ("why",),
    "Cost": ("responses-conflict", "fewer-flushes"),
    "No effect": ("tie", "screened-out"),
    "Not shown": ("not-shown",),
    "Runs": ("runs-lost", "outlier", "run-left-out"),
    "Host": ("run-degraded", "host-busy"),
    "Unknown": (
        "effect-few-runs",
        "time-scales-differ",
        "effect-or-drift",
        "optimum-edge",
        "effect-aliased",
        "screening-open",
        "effect-undetermined",
        "tie-open",
        "not-known",
    ),
}
#: codes whose point is never left out: they may change the conclusion
_CAUTIONS = (
    "effect-few-runs",
    "time-scales-differ",
    "effect-or-drift",
    "optimum-edge",
    "effect-aliased",
    "screening-open",
    "effect-undetermined",
)
#: codes whose next step is that of the answer if the first finding has none, most important first
_STEPS = ("confirmation", "effect-aliased", "optimum-edge")
#: labels by kind of question, most important first
_FIRST = {
    "which": (
        "Cost",
        "Best",
        "Confirmation",
        "No effect",
        "Not shown",
        "Why",
        "Main factor",
        "Unknown",
    ),
    "other": ("Remedy", "Best", "Confirmation", "Cost", "Why", "Main factor", "Unknown"),
}


@dataclass(frozen=True)
class Answer:
    """The first finding, (label, text) of each point, and the findings that both state."""

    first: Finding
    points: list[tuple[str, str]]
    findings: list[Finding]

    @property
    def headline(self) -> str:
        """The first sentence with its confidence: `Choose sata-ssd: … Clear.`; with what it rests on, if the
        evidence has `unless`."""
        sentence, confidence = self.first.statement, self.first.confidence
        if not confidence or sentence.startswith("Open:"):
            return sentence
        unless = self.first.evidence.get("unless")
        return f"{sentence} {confidence.capitalize()}{f', unless {unless}' if unless else ''}."

    @property
    def sentences(self) -> list[str]:
        """The headline, then each point after its label: `Why: with …`."""
        return [self.headline, *(f"{label}: {text}" for label, text in self.points)]

    def lines(
        self, width: int = COLUMNS, out: Path | None = None, study: Path | None = None
    ) -> list[str]:
        """The answer for a terminal: the headline, then the points in two columns.

        `out` and `study` replace OUT and STUDY in its commands.
        """
        paths = {name: path for name, path in (("OUT", out), ("STUDY", study)) if path is not None}

        def with_paths(command: re.Match[str]) -> str:
            parts = [word.partition("/") for word in command[0].split(" ")]
            return " ".join(
                shlex.quote(f"{paths[name]}{slash}{rest}")
                if name in paths
                else f"{name}{slash}{rest}"
                for name, slash, rest in parts
            )

        points = [
            line
            for label, text in self.points
            for line in labelled(label, _COMMAND.sub(with_paths, text), width)
        ]
        return [*wrapped(self.headline, width), *([""] if points else []), *points]


def answer(outcome: Outcome, results: list[Finding] | None = None) -> Answer | None:
    """The answer from the findings of a study; None if no response was measured."""
    relevant = answering(outcome, findings(outcome) if results is None else results)
    if not relevant:
        return None
    first, *rest = relevant
    points: dict[str, list[Finding]] = {}
    for finding in rest:
        points.setdefault(label_of(finding), []).append(finding)
    order = _FIRST["which" if kind(outcome.question) == "which" else "other"]
    cautions = ["Unknown"] if any(f.code in _CAUTIONS for f in rest) else []
    cautions += [label for label in ("Runs", "Host") if label in points]
    # repeat runs that are lost, or that the host delayed, before adding others
    steps = {f.code: f.what_to_do for f in reversed(rest)}
    next_step = steps.get("runs-lost") or steps.get("run-degraded") or first.what_to_do
    next_step = next_step or next((s for code in _STEPS if (s := steps.get(code))), "")
    step = [NEXT_STEP] if next_step else []
    chosen = [*step, *cautions, *(o for o in order if o in points and o not in cautions)]
    chosen = chosen[:MOST_POINTS]
    stated = {label: points[label][:_MOST_MERGED] for label in LABELS if label in chosen}
    texts = [
        (label, f"{'; '.join(f.statement.rstrip('.') for f in merged)}.")
        for label, merged in stated.items()
    ]
    texts += [(NEXT_STEP, next_step)] if step else []
    return Answer(first, texts, [first, *(f for merged in stated.values() for f in merged)])


def label_of(finding: Finding) -> str:
    """The label of a finding as a point of the answer; empty if it is not a point."""
    return next((label for label, codes in LABELS.items() if finding.code in codes), "")


def answering(outcome: Outcome, results: list[Finding]) -> list[Finding]:
    """The findings that answer the study's question: the first sentence, then candidates for points.

    Empty if no response was measured.
    """

    def of(*codes: str, most: int = 99) -> list[Finding]:
        return [f for code in codes for f in results if f.code == code][:most]

    def of_main(code: str) -> list[Finding]:
        main = outcome.responses[0].name if outcome.responses else ""
        return [f for f in of(code) if f.evidence.get("response") == main][:1]

    if nothing := of("nothing-valid", most=1):
        return nothing
    deciding = [f for f in of("outlier", "run-left-out") if _decides(outcome, f)]
    of_runs = [*of("runs-lost"), *deciding, *of("run-degraded", "host-busy")]
    which_matter = of("screening", most=1)
    if fitted := of("optimum", most=1):
        return [
            *fitted,
            *(which_matter or of_main("effect-dominant")),
            *of("effect-few-runs", "time-scales-differ", most=2),
            *of_main("effect-or-drift"),
            *of("optimum-edge", "confirmation"),
            *of_main("effect-aliased"),
            *of("screening-open", "screened-out", "not-shown"),
            *of("why", "effect-undetermined", "not-known"),
            *of_runs,
        ]
    if which_matter:
        return [
            *which_matter,
            *of("effect-few-runs", "time-scales-differ", most=2),
            *of_main("effect-or-drift"),
            *of("confirmation"),
            *of("screening-open", "screened-out", "not-shown"),
            *of_runs,
        ]
    which = kind(outcome.question) == "which"
    effect = [] if which else of("cost", "remedy", most=2)
    best = of(
        "recommendation", "responses-conflict", "tie-decided", "compromise", "responses-agree"
    )
    if effect and _repeats_cost(outcome, effect[0], best):
        best = [f for f in best if f.code != "recommendation"]
    matters = of("effect-dominant", most=1) if len(outcome.factors) > 1 else []
    return [
        *effect,
        *best,
        *of("effect-few-runs", "time-scales-differ", most=2),
        *of_main("effect-or-drift"),
        *of("optimum-edge", "confirmation"),
        *of_main("effect-aliased"),
        *of("tie", "tie-open"),
        *matters,
        *(of_main("effect-interaction") if which else []),
        *of("why", "fewer-flushes"),
        *of("effect-undetermined", most=1),
        *of("not-known"),
        *of_runs,
    ]


def _decides(outcome: Outcome, finding: Finding) -> bool:
    """True if the verdict on a main effect on the first response depends on the runs of this finding."""
    changed = finding.evidence.get("changed") or []
    name = outcome.responses[0].name if outcome.responses else ""
    if isinstance(changed, dict):
        changed = changed.get(name, [])
    elif finding.evidence.get("response") != name:
        return False
    return any(":" not in term for term in changed)


def _repeats_cost(outcome: Outcome, cost: Finding, best: list[Finding]) -> bool:
    """True if the comparison of the only factor's two levels states all of the recommendation."""
    if len(outcome.factors) > 1 or any(f.code == "responses-conflict" for f in best):
        return False
    ranked = ranking(outcome, outcome.responses[0])
    (factor,) = outcome.factors
    ends = {t.levels[factor.name] for t in (ranked.treatments[0], ranked.treatments[-1])}
    two = len(factor.levels) == 2
    none_apart = bool(ranked.of("undecided")) and not ranked.of("worse")
    return set(cost.evidence.get("levels", ())) == ends and (two or none_apart)
