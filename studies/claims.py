"""Claims of a study: wording, criterion, treatments that they need, evidence and result.

A claim is evaluated only if every treatment that it needs has a valid run; otherwise it is *not measured*. A
plan is not a run. If the criterion was relaxed, the claim is evaluated both ways; its result is that of the
wording.

The check of a study ends with status 0 if every claim is met or not comparable, with 3 if one is not met,
undecided or not measured, and with 1 if a planted failure was not detected.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import record

#: treatments that are named in a message
NAMED = 4


class Result(StrEnum):
    """Result of a claim."""

    MET = "met"
    NOT_MET = "not met"
    #: the runs agree with it, but the difference is not significant
    UNDECIDED = "undecided"
    #: a treatment has no valid run
    NOT_MEASURED = "not measured"
    #: the runs are valid, but under conditions that the claim does not cover
    NOT_COMPARABLE = "not comparable"


FAILING = (Result.NOT_MET, Result.UNDECIDED, Result.NOT_MEASURED)
_VERDICTS = {
    Result.MET: record.MET,
    Result.NOT_MET: record.MISSED,
    Result.UNDECIDED: record.UNDECIDED,
    Result.NOT_MEASURED: record.NOT_MEASURED,
    Result.NOT_COMPARABLE: record.NOT_COMPARABLE,
}
_RESULTS = {verdict: result for result, verdict in _VERDICTS.items()}


@dataclass(frozen=True)
class Finding:
    """Result by the wording, the numbers that it rests on, and the result by the relaxed criterion."""

    result: Result
    evidence: str
    relaxed: Result | None = None


@dataclass(frozen=True)
class Relaxed:
    """Criterion that is weaker than the wording, and the result by it."""

    criterion: str
    result: Result


@dataclass(frozen=True)
class Claim:
    """Statement about treatments.

    `missing`: treatments without a valid run; `criterion`: empty if it is the wording.
    """

    of: str
    wording: str
    published: str
    criterion: str
    evidence: str
    result: Result
    missing: tuple[str, ...] = ()
    relaxed: Relaxed | None = None

    @property
    def bar(self) -> str:
        """Goal, as it is recorded."""
        return self.criterion or self.published or "holds"


def met_if(holds: bool, evidence: str, *, relaxed: bool | None = None) -> Finding:
    """Finding of a criterion that holds or does not."""

    def result(value: bool) -> Result:
        return Result.MET if value else Result.NOT_MET

    return Finding(result(holds), evidence, None if relaxed is None else result(relaxed))


def valid_runs(treatments: Iterable[str], runs: Iterable[str]) -> dict[str, int]:
    """Number of valid runs of each treatment; `runs`: the treatment of each valid run."""
    count = Counter(runs)
    return {treatment: count[treatment] for treatment in treatments}


def claim(
    of: str,
    wording: str,
    needs: Mapping[str, int],
    evaluate: Callable[[], Finding],
    *,
    published: str = "",
    criterion: str = "",
    relaxed: str = "",
    least: int = 1,
) -> Claim:
    """Evaluate a claim, if each treatment of `needs` has at least `least` valid runs.

    `evaluate` is not called otherwise. `relaxed`: the weaker criterion, whose result `evaluate` returns, too.
    """
    missing = tuple(treatment for treatment, runs in needs.items() if runs < least)
    if missing or not needs:
        finding = Finding(Result.NOT_MEASURED, _without_run(missing, least), None)
    else:
        finding = evaluate()
    weaker = None
    if relaxed:
        weaker = Relaxed(relaxed, finding.relaxed or Result.NOT_MEASURED)
    result, evidence = finding.result, finding.evidence
    return Claim(of, wording, published, criterion, evidence, result, missing, weaker)


def over_all(
    of: str,
    wording: str,
    needs: Mapping[str, int],
    evaluate: Callable[[], Finding],
    *,
    published: str = "",
    criterion: str = "",
    relaxed: str = "",
) -> Claim:
    """Claim on all of its treatments. Those with a valid run can contradict it, but not establish it."""
    claim_ = claim(
        of, wording, needs, evaluate, published=published, criterion=criterion, relaxed=relaxed
    )
    if not claim_.missing or len(claim_.missing) == len(needs):
        return claim_
    rest = evaluate()
    contradicted = rest.result is Result.NOT_MET
    weaker = claim_.relaxed
    if weaker is not None and rest.relaxed is Result.NOT_MET:
        weaker = replace(weaker, result=Result.NOT_MET)
    return replace(
        claim_,
        evidence=f"{claim_.evidence}; of the rest: {rest.evidence}",
        result=Result.NOT_MET if contradicted else claim_.result,
        relaxed=weaker,
    )


def of_row(row: record.Row, needs: Mapping[str, int], least: int = 1) -> Claim:
    """Claim of a row that has a goal; *not measured* if a treatment has too few valid runs."""
    missing = tuple(treatment for treatment, runs in needs.items() if runs < least)
    result, evidence = _RESULTS[row["verdict"]], figure(row)
    if missing or not needs:
        rest = f"; of the rest: {evidence}" if len(missing) < len(needs) else ""
        evidence = f"{_without_run(missing, least)}{rest}"
        result = Result.NOT_MEASURED
    wording = f"{row['engine']}: {row['metric']}" if row["engine"] else row["metric"]
    return Claim(row["case"], wording, "", row["bar"], evidence, result, missing)


def marked(row: record.Row, claim_: Claim) -> record.Row:
    """The row with the verdict of its claim."""
    absent = {"missing": list(claim_.missing)} if claim_.missing else {}
    return {**row, "verdict": _VERDICTS[claim_.result], **absent}


def figure(row: record.Row) -> str:
    """Value of a row with its spread."""
    value = row["value"]
    text = value if isinstance(value, str) else f"{value:.5g}"
    if not isinstance(value, str) and row.get("n", 1) > 1:
        text += f" ({row['low']:.4g} to {row['high']:.4g}, n = {row['n']})"
    return f"{text} {row['unit']}".rstrip()


def _without_run(missing: Sequence[str], least: int) -> str:
    if not missing:
        return "no run"
    names = ", ".join(missing[:NAMED])
    if len(missing) > NAMED:
        names += f" and {len(missing) - NAMED} more"
    return f"{'no valid run' if least == 1 else f'fewer than {least} valid runs'} of {names}"


def with_invalid(valid: Sequence[Claim], every: Sequence[Claim]) -> list[Claim]:
    """Claims on the valid runs, with the result of all runs as a relaxed criterion.

    `every`: the same claims, evaluated on all runs.
    """
    return [
        replace(
            valid_claim,
            evidence=f"{valid_claim.evidence}; with invalid runs: {every_claim.evidence}",
            relaxed=Relaxed("invalid runs included", every_claim.result),
        )
        for valid_claim, every_claim in zip(valid, every, strict=True)
    ]


def status(claims: Iterable[Claim], planted: Mapping[str, bool | None] | None = None) -> int:
    """Exit status of the check of a study; 3 if there is no claim."""
    results = [claim_.result for claim_ in claims]
    if False in (planted or {}).values():
        return 1
    return 3 if not results or any(result in FAILING for result in results) else 0


def summary(claims: Sequence[Claim]) -> str:
    """Number of claims by result."""
    count = Counter(claim_.result for claim_ in claims)
    parts = [f"{count[result]} {result}" for result in Result if count[result]]
    return f"{len(claims)} claims: {', '.join(parts) or 'none'}"


def finish(
    study: str, claims: Sequence[Claim], planted: Mapping[str, bool | None] | None = None
) -> int:
    """Print the claims that fail and the summary on stderr; return the exit status."""
    for claim_ in claims:
        if claim_.result in FAILING:
            text = f"{study}: {claim_.result}: {claim_.of}: {claim_.wording}: {claim_.evidence}"
            print(text, file=sys.stderr)
    for failure, detected in (planted or {}).items():
        if detected is False:
            print(f"{study}: planted: {failure}: NOT DETECTED", file=sys.stderr)
    print(f"{study}: {summary(claims)}", file=sys.stderr)
    return status(claims, planted)


def show(claims: Sequence[Claim], width: int = 120) -> None:
    """Print a table: published figure, evidence and result of each claim."""
    table = Table(box=None, pad_edge=False)
    for heading in ("of", "claim", "published", "evidence (95 % interval)", "result"):
        table.add_column(heading, overflow="fold")
    for claim_ in claims:
        wording = f"{claim_.wording} [{claim_.criterion}]" if claim_.criterion else claim_.wording
        table.add_row(claim_.of, wording, claim_.published, claim_.evidence, result_text(claim_))
    Console(width=width, highlight=False, markup=False).print(table)


def result_text(claim_: Claim) -> str:
    """Result by the wording, and by the relaxed criterion."""
    if claim_.relaxed is None:
        return str(claim_.result)
    return f"{claim_.result}; relaxed, {claim_.relaxed.criterion}: {claim_.relaxed.result}"


def as_json(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Claims as JSON values."""
    return [asdict(claim_) for claim_ in claims]


def rows(claims: Iterable[Claim], *, quoted: bool = False) -> list[record.Row]:
    """Claims as rows of a result; a relaxed criterion has a separate row."""
    result = []
    for claim_ in claims:
        result.append(_row(claim_, claim_.wording, claim_.bar, claim_.result))
        if claim_.relaxed is not None:
            wording = f"{claim_.wording} (relaxed)"
            result.append(_row(claim_, wording, claim_.relaxed.criterion, claim_.relaxed.result))
    return [{**row, "quoted": True} for row in result] if quoted else result


def _row(claim_: Claim, wording: str, bar: str, result: Result) -> record.Row:
    return record.evaluated(claim_.of, wording, claim_.evidence, bar, _VERDICTS[result])
