"""Order of effects of a campaign, with an executor that records its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.campaign.conductor import (
    Attempt,
    Outcome,
    PriorAttempts,
    conduct,
    once_more,
    still_to_make,
)

STEPS = ["prepare", "attach", "settle", "arm", "launch", "disarm", "detach", "collect"]


@dataclass(frozen=True)
class Planned:
    run_id: str
    block: int


class Recorder:
    """Records each call; raises at `fail_at`; `judge` returns the outcome of an attempt."""

    def __init__(
        self,
        fail_at: tuple[str, str] | None = None,
        error: type[BaseException] = RuntimeError,
        judge: Callable[[str, int], Outcome] | None = None,
    ) -> None:
        self.calls: list[str] = []
        self._fail_at = fail_at
        self._error = error
        self._judge = judge or (lambda run, number: Outcome(run, number, "finished", True))

    def _step(self, name: str, attempt: Attempt[Planned]) -> None:
        self.calls.append(f"{name} {attempt.run.run_id}.{attempt.number}")
        if self._fail_at == (name, attempt.run.run_id):
            raise self._error(name)

    def open(self) -> None:
        self.calls.append("open")
        if self._fail_at == ("open", ""):
            raise self._error("open")

    def close(self) -> None:
        self.calls.append("close")

    def room(self, attempt: Attempt[Planned]) -> None:
        if self._fail_at == ("room", attempt.run.run_id):
            raise self._error("room")

    def prepare(self, attempt: Attempt[Planned]) -> None:
        self._step("prepare", attempt)

    def attach(self, attempt: Attempt[Planned]) -> None:
        self._step("attach", attempt)

    def settle(self, attempt: Attempt[Planned]) -> None:
        self._step("settle", attempt)

    def arm(self, attempt: Attempt[Planned]) -> None:
        self._step("arm", attempt)

    def launch(self, attempt: Attempt[Planned]) -> None:
        self._step("launch", attempt)

    def disarm(self, attempt: Attempt[Planned]) -> None:
        self._step("disarm", attempt)

    def detach(self, attempt: Attempt[Planned]) -> None:
        self._step("detach", attempt)

    def collect(self, attempt: Attempt[Planned]) -> Outcome:
        self._step("collect", attempt)
        return self._judge(attempt.run.run_id, attempt.number)

    def discard(self, attempt: Attempt[Planned]) -> None:
        self.calls.append(f"discard {attempt.run.run_id}.{attempt.number}")

    def begun(self, run: Planned, attempt: int) -> None:
        pass

    def ended(self, run: Planned, outcome: Outcome) -> None:
        self.calls.append(f"ended {run.run_id}.{outcome.attempt}")


PLAN = [Planned("r001", 1), Planned("r002", 1), Planned("r003", 2)]


def launches(recorder: Recorder) -> list[str]:
    return [c.removeprefix("launch ") for c in recorder.calls if c.startswith("launch")]


def test_runs_execute_all_steps_in_the_order_of_the_plan() -> None:
    recorder = Recorder()
    outcomes = conduct(PLAN, {}, {}, recorder, recorder)
    expected = ["open"]
    for run in PLAN:
        expected += [f"{step} {run.run_id}.1" for step in [*STEPS, "ended"]]
    assert recorder.calls == [*expected, "close"]
    assert [o.run_id for o in outcomes] == ["r001", "r002", "r003"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_at_any_step_is_cleaned_up_and_stops(
    step: str, error: type[BaseException]
) -> None:
    recorder = Recorder((step, "r002"), error)
    with pytest.raises(error):
        conduct(PLAN, {}, {}, recorder, recorder)
    of_run = [c.split()[0] for c in recorder.calls if c.endswith("r002.1")]
    assert of_run == [
        *STEPS[: STEPS.index(step) + 1],
        *[s for s in ("disarm", "detach") if STEPS.index(s) > STEPS.index(step)],
        "discard",
    ]
    assert recorder.calls[-1] == "close"
    assert not any("r003" in c for c in recorder.calls)
    assert "ended r001.1" in recorder.calls


def test_two_failures_are_cleaned_up() -> None:
    class Twice(Recorder):
        def disarm(self, attempt: Attempt[Planned]) -> None:
            super().disarm(attempt)
            raise RuntimeError("disarm too")

    recorder = Twice(("launch", "r001"))
    with pytest.raises(RuntimeError, match=r"launch|disarm"):
        conduct(PLAN, {}, {}, recorder, recorder)
    assert recorder.calls[-4:] == ["disarm r001.1", "detach r001.1", "discard r001.1", "close"]


def test_without_free_space_no_run_starts() -> None:
    recorder = Recorder(("room", "r002"))
    with pytest.raises(RuntimeError):
        conduct(PLAN, {}, {}, recorder, recorder)
    assert recorder.calls[-2:] == ["ended r001.1", "close"]


def test_a_failed_open_is_closed() -> None:
    recorder = Recorder(("open", ""))
    with pytest.raises(RuntimeError):
        conduct(PLAN, {}, {}, recorder, recorder)
    assert recorder.calls == ["open", "close"]


def test_finished_runs_are_not_repeated_and_open_nothing() -> None:
    prior = {r.run_id: PriorAttempts(Outcome(r.run_id, 1, "finished", True), 1) for r in PLAN}
    recorder = Recorder()
    assert conduct(PLAN, prior, {}, recorder, recorder) == []
    assert recorder.calls == []
    del prior["r002"]
    conduct(PLAN, prior, {"r002": 1}, recorder, recorder)
    assert launches(recorder) == ["r002.2"]  # the interrupted attempt counts


def test_failed_runs_are_stored_and_not_repeated() -> None:
    recorder = Recorder(judge=lambda run, n: Outcome(run, n, "failed", False, "status 1"))
    outcomes = conduct(PLAN, {}, {}, recorder, recorder)
    assert launches(recorder) == ["r001.1", "r002.1", "r003.1"]
    assert [o.state for o in outcomes] == ["failed"] * 3


def test_invalid_runs_are_repeated_once_at_the_end_of_their_round() -> None:
    def judge(run: str, number: int) -> Outcome:
        bad = run in ("r001", "r003")
        return Outcome(run, number, "finished", not bad, "host saturated" if bad else "", bad)

    recorder = Recorder(judge=judge)
    conduct(PLAN, {}, {}, recorder, recorder)
    assert launches(recorder) == ["r001.1", "r002.1", "r001.2", "r003.1", "r003.2"]


def test_runs_are_repeated_as_often_as_their_policy_allows() -> None:
    """Fails if a run is repeated more or less often than allowed, or before its round ends."""

    def judge(run: str, number: int) -> Outcome:
        good = (run, number) in {("r002", 3), ("r003", 1)}
        return Outcome(run, number, "failed", good, "" if good else "status 1", again=2)

    recorder = Recorder(judge=judge)
    conduct(PLAN, {}, {}, recorder, recorder)
    assert launches(recorder) == [
        "r001.1", "r002.1", "r001.2", "r002.2", "r001.3", "r002.3", "r003.1",
    ]  # fmt: skip
    assert still_to_make(PLAN[:1], {"r001": PriorAttempts(judge("r001", 2), 2)}) == PLAN[:1]
    assert still_to_make(PLAN[:1], {"r001": PriorAttempts(judge("r001", 3), 3)}) == []


def test_a_resumed_campaign_repeats_an_invalid_run_once() -> None:
    invalid = Outcome("r001", 1, "finished", False, "lost events", True)
    repeated = Outcome("r001", 2, "finished", False, "lost events", True)
    valid = {
        "r002": PriorAttempts(Outcome("r002", 1, "finished", True), 1),
        "r003": PriorAttempts(Outcome("r003", 1, "finished", True), 1),
    }
    recorder = Recorder()
    conduct(PLAN, {"r001": PriorAttempts(invalid, 1), **valid}, {}, recorder, recorder)
    assert launches(recorder) == ["r001.2"]
    assert still_to_make(PLAN, {"r001": PriorAttempts(repeated, 2), **valid}) == []


def test_a_resumed_campaign_repeats_runs_that_the_host_disturbed() -> None:
    failed = Outcome("r001", 1, "failed", False, "status 1")
    spoilt = Outcome("r002", 2, "finished", False, "host saturated", True)
    prior = {
        "r001": PriorAttempts(failed, 1),
        "r002": PriorAttempts(spoilt, 2),
        "r003": PriorAttempts(Outcome("r003", 2, "finished", True), 2),
    }
    recorder = Recorder(judge=lambda run, n: Outcome(run, n, "finished", False, "again", True))
    conduct(PLAN, once_more(prior), {}, recorder, recorder)
    assert launches(recorder) == ["r002.3"]  # once in a call, and neither failed nor valid runs


def test_degraded_runs_are_repeated_only_on_request() -> None:
    def degraded(run: str, number: int, again: int = 0) -> Outcome:
        return Outcome(run, number, "finished", True, "busy host", again=again, degraded=True)

    prior = {run.run_id: PriorAttempts(degraded(run.run_id, 1), 1) for run in PLAN}
    assert still_to_make(PLAN, once_more(prior)) == []
    recorder = Recorder(judge=degraded)
    conduct(PLAN, once_more(prior, degraded=True), {}, recorder, recorder)
    assert launches(recorder) == [f"{run.run_id}.2" for run in PLAN]  # each once
    by_study = Recorder(judge=lambda run, number: degraded(run, number, again=1))
    conduct(PLAN[:1], {}, {}, by_study, by_study)
    assert launches(by_study) == ["r001.1", "r001.2"]


def test_own_time_excludes_the_user_s_phases() -> None:
    attempt = Attempt(PLAN[0], 1)
    for name in ("prepare", "workload", "rest"):
        with attempt.phase(name):
            pass
    assert attempt.own_s == 0
    with attempt.phase("attach"):
        pass
    assert attempt.own_s > 0
