"""Time-outs that an emulated rate makes unreachable."""

from __future__ import annotations

import pytest

from penstock.analyse.fidelity.timeouts import TIME_OUTS, application_of, applied, warnings_of


def test_the_published_case_is_warned_about() -> None:
    """TeraSort of 120 GB failed at 30 MB/s and ended at 60 and 120 MB/s."""
    texts = [str(w) for w in warnings_of(30e6, "hadoop")]
    assert any("mapreduce.task.timeout (600 s) will trip" in w for w in texts)
    assert not [w for w in warnings_of(120e6, "hadoop") if w.timeout.application == "hadoop"]


def test_twice_the_failing_rate_is_a_possible_time_out() -> None:
    warnings = warnings_of(60e6, "hadoop")
    (task,) = [w for w in warnings if w.timeout.setting == "mapreduce.task.timeout"]
    assert not task.certain
    assert task.takes_s == pytest.approx(20e9 / 60e6)
    assert task.least_bps == pytest.approx(20e9 / 300)


def test_the_named_rate_causes_no_warning() -> None:
    for timeout in TIME_OUTS:
        slow = warnings_of(timeout.bytes / timeout.seconds / 2, timeout.application)
        own_warnings = [w for w in slow if w.timeout == timeout]
        assert own_warnings
        assert own_warnings[0].certain
        at_named_rate = warnings_of(own_warnings[0].least_bps * 1.001, timeout.application)
        assert timeout not in [w.timeout for w in at_named_rate]


def test_a_known_amount_replaces_that_of_the_table() -> None:
    assert not [
        w
        for w in warnings_of(5e6, "hadoop", step_bytes=1 << 20)
        if w.timeout.application == "hadoop"
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("java org.apache.hadoop.examples.ExampleDriver terasort /in /out", "hadoop"),
        ("pgbench -T 5", "postgresql"),
        ("fio --name=a", None),
    ],
)
def test_the_application_of_a_command(command: str, name: str | None) -> None:
    assert application_of(command) == name


def test_no_limit_no_warning_and_no_rate_is_an_error() -> None:
    assert warnings_of(None, "hadoop") == []
    assert warnings_of(float("inf"), "hadoop") == []
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            warnings_of(rate, "hadoop")


def test_limit_passed_by_a_third_is_not_applied() -> None:
    assert applied(1.3e6, 1e6)
    assert not applied(1.31e6, 1e6)


def test_every_time_out_has_a_source() -> None:
    assert all(t.source and t.step and t.seconds > 0 and t.bytes > 0 for t in TIME_OUTS)
