"""Claims of studies: their evaluation, and the exit status of a check."""

from __future__ import annotations

import pytest

from bench import record
from studies import claims as checks
from studies.claims import Claim, Finding, Result, claim, met_if, over_all, valid_runs


def met_finding() -> Finding:
    return met_if(True, "1.2")


def failed() -> Finding:
    return met_if(False, "0.8")


def not_reached() -> Finding:
    raise AssertionError("a claim without a valid run was evaluated")


def claim_of(result: Result) -> Claim:
    return Claim("study", "a is faster than b", "", "", "1.2", result)


def test_a_claim_is_evaluated_only_if_every_treatment_has_a_valid_run() -> None:
    needs = valid_runs(["a", "b"], ["a", "a", "b", "c"])
    assert needs == {"a": 2, "b": 1}
    assert claim("study", "w", needs, met_finding).result is Result.MET
    assert claim("study", "w", needs, failed).result is Result.NOT_MET
    missing = claim("study", "w", valid_runs(["a", "b"], ["a"]), not_reached)
    assert (missing.result, missing.missing) == (Result.NOT_MEASURED, ("b",))
    assert missing.evidence == "no valid run of b"
    few = claim("study", "w", needs, not_reached, least=2)
    assert few.evidence == "fewer than 2 valid runs of b"
    assert claim("study", "w", {}, not_reached).result is Result.NOT_MEASURED


def test_a_relaxed_criterion_is_evaluated_in_addition() -> None:
    def weak() -> Finding:
        return met_if(False, "38 of 64", relaxed=True)

    criterion = "no cell contradicts it"
    relaxed_claim = claim("study", "in every cell", {"a": 1}, weak, relaxed=criterion)
    assert relaxed_claim.result is Result.NOT_MET
    assert relaxed_claim.relaxed == checks.Relaxed(criterion, Result.MET)
    assert checks.result_text(relaxed_claim) == f"not met; relaxed, {criterion}: met"
    assert checks.status([relaxed_claim]) == 3
    wording, relaxed = checks.rows([relaxed_claim])
    assert (wording["metric"], wording["verdict"]) == ("in every cell", record.MISSED)
    assert (relaxed["bar"], relaxed["verdict"]) == (criterion, record.MET)
    missing = claim("study", "in every cell", {"a": 0}, not_reached, relaxed=criterion)
    assert missing.relaxed == checks.Relaxed(criterion, Result.NOT_MEASURED)


def test_some_treatments_can_contradict_a_claim_on_all_but_not_establish_it() -> None:
    assert over_all("study", "w", {"a": 1, "b": 1}, met_finding).result is Result.MET
    part = over_all("study", "w", {"a": 1, "b": 0}, met_finding)
    assert (part.result, part.evidence) == (
        Result.NOT_MEASURED, "no valid run of b; of the rest: 1.2",
    )  # fmt: skip
    assert over_all("study", "w", {"a": 1, "b": 0}, failed).result is Result.NOT_MET
    assert over_all("study", "w", {"a": 0, "b": 0}, not_reached).result is Result.NOT_MEASURED


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (Result.MET, 0),
        (Result.NOT_COMPARABLE, 0),
        (Result.NOT_MET, 3),
        (Result.UNDECIDED, 3),
        (Result.NOT_MEASURED, 3),
    ],
)
def test_one_claim_that_fails_is_reported_and_fails_the_check(
    result: Result, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checks.finish("study", [claim_of(Result.MET), claim_of(result)], {"p": True}) == status
    error = capsys.readouterr().err
    assert (f"study: {result}: study: a is faster than b: 1.2" in error) == (status == 3)
    assert error.splitlines()[-1].startswith("study: 2 claims: ")
    assert checks.finish("study", [claim_of(Result.MET), claim_of(result)], {"p": False}) == 1
    assert "planted: p: NOT DETECTED" in capsys.readouterr().err


def test_a_check_without_claims_fails() -> None:
    assert checks.status([]) == 3
    assert checks.summary([]) == "0 claims: none"


def test_invalid_runs_never_meet_a_claim() -> None:
    valid = [claim("study", "w", {"a": 0}, not_reached)]
    with_invalid = [claim("study", "w", {"a": 3}, met_finding)]
    (combined,) = checks.with_invalid(valid, with_invalid)
    assert combined.result is Result.NOT_MEASURED
    assert combined.relaxed == checks.Relaxed("invalid runs included", Result.MET)
    assert combined.evidence == "no valid run of a; with invalid runs: 1.2"


def test_a_row_with_a_goal_is_a_claim() -> None:
    row = record.at_most(record.row("case", "", "time", [1.0, 2.0, 3.0], "s"), 2.5)
    met = checks.of_row(row, {"a": 1})
    assert (met.result, met.evidence) == (Result.MET, "2 (1 to 3, n = 3) s")
    missing = checks.of_row(row, {"a": 1, "b": 0})
    assert missing.result is Result.NOT_MEASURED
    marked = checks.marked(row, missing)
    assert (marked["verdict"], marked["missing"]) == (record.NOT_MEASURED, ["b"])
    assert marked["value"] == 2.0
