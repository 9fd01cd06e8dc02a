"""The monitored studies: what they say of series that are whole, and of those that are not."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

STUDIES = Path(__file__).resolve().parents[2] / "studies"
sys.path.insert(0, str(STUDIES))

from monitored import lines, offsets, power, swarm, wire  # noqa: E402

from bench import record  # noqa: E402

SECOND = 10**9
T0 = 1_700_000_000 * SECOND


def times(count: int, step_ns: int = SECOND) -> pd.DatetimeIndex:
    return pd.to_datetime(T0 + step_ns * np.arange(count), unit="ns", utc=True)


def test_offsets_are_those_of_the_truth_or_it_is_said(tmp_path: Path) -> None:
    truth = np.random.default_rng(3).permutation(5000) * 4096
    index = np.arange(5000)
    assert offsets.wrong(truth, index, truth) == []
    assert "4999 stored, 5000 requested" in offsets.wrong(truth[1:], index[1:], truth)
    assert offsets.wrong(np.roll(truth, 1), index, truth)[0].startswith("request 0 is the first")
    assert offsets.wrong(truth, index + 1, truth) == ["the index is not 0, 1, 2, …"]
    r, low, high = offsets.lag_one(truth)
    assert low < r < high
    assert abs(r) < 0.05
    assert offsets.successors(truth, 4096) < 0.01
    assert offsets.successors(index * 4096, 4096) == 1
    log = tmp_path / "log"
    log.write_text("".join(f"{n}, 5, 0, 4096, {o}, 0\n" for n, o in enumerate(truth)))
    assert (offsets.of_fio_log(log) == truth).all()


def test_the_interval_of_a_correlation_holds_as_often_as_it_says() -> None:
    draws = np.random.default_rng(11)
    held = 0
    for _ in range(400):
        x = draws.normal(size=50)
        y = 0.8 * x + 0.6 * draws.normal(size=50)
        _, low, high = offsets.correlation(x, y)
        held += low <= 0.8 <= high
    # 380 are expected; below 364 or above 394 in fewer than 1 of 1,000 such tests
    assert 364 <= held <= 394


def test_busy_is_taken_over_the_second_before() -> None:
    # idle for five seconds, then busy for half of each
    counter = pd.Series(np.maximum(0, np.arange(12) - 5) * 0.5, index=times(12))
    at = pd.to_datetime(T0 + np.array([0, 3, 5.5, 9, 11, 12]) * SECOND, unit="ns", utc=True)
    found = power.busy_percent(counter, at)
    assert np.isnan(found[[0, 5]]).all()
    assert found[1:5] == pytest.approx([0, 25, 50, 50])


def test_two_lines_are_two_lines() -> None:
    plain, monitored = (
        (STUDIES / "monitored" / f"{n}.sh").read_text() for n in ("shards", "shards-monitored")
    )
    added = power.added_lines(plain, monitored)
    assert added == ["+ penstock monitor start shards", "+ penstock monitor stop shards"]
    assert len(power.added_lines(plain, monitored.replace("sleep", "sleep "))) > 2


def test_a_slowdown_has_the_interval_of_its_pairs() -> None:
    value, low, high = power.slowdown([102, 101, 103, 102, 102], [100, 100, 100, 100, 100])
    assert value == pytest.approx(2.0, abs=0.01)
    # t of 4 degrees of freedom, 2.776, times the standard error 0.316 %
    assert (low, high) == (pytest.approx(1.13, abs=0.02), pytest.approx(2.88, abs=0.02))
    assert power.slowdown([1], [1])[1:] == (-np.inf, np.inf)


def test_series_of_a_swarm_that_are_not_whole_are_named() -> None:
    end_ns = T0 + round(20.4 * SECOND)
    good = pd.DataFrame({"a": np.minimum(100.0, np.arange(21) * 6.0)}, index=times(21))
    late = good["a"].where(np.arange(21) >= 4)
    both = good.assign(late=late)
    assert swarm.not_whole(both) == []
    assert swarm.missing(both, end_ns) == {}
    down = both.copy()
    down.iloc[10, 0] = 3.0
    assert swarm.not_whole(down) == ["a"]
    lost = both.copy()
    lost.iloc[8:11, 1] = np.nan
    assert swarm.missing(lost, end_ns) == {"late": -3}
    assert swarm.missing(both, end_ns + 3 * SECOND) == {"a": -3, "late": -3}
    assert swarm.not_whole(both.iloc[:10]) == ["a", "late"]
    assert swarm.earliest_s(5_000_000, 50_000, 3028) == pytest.approx(99.94, abs=0.01)


def test_the_exporter_of_the_swarm_has_ten_lines_at_most() -> None:
    text = (STUDIES / "monitored" / "exporter.py").read_text()
    code = [one for one in text.splitlines() if one.strip() and not one.startswith("#")]
    assert len(code) <= 10
    compile(text, "exporter.py", "exec")


def test_packets_of_a_port_are_counted_once_and_others_are_not() -> None:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0):
            pass
    except PermissionError:
        pytest.skip("needs root: packet sockets")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.bind(("127.0.0.1", 0))
        port = there.getsockname()[1]
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        ):
            other.bind(("127.0.0.1", 0))
            with wire.Packets("lo", port) as packets:
                assert packets.count() == 0
                for _ in range(7):
                    here.sendto(b"x", ("127.0.0.1", port))
                    here.sendto(b"x", other.getsockname())
                assert packets.count() == 7
                there.sendto(b"x", here.getsockname())
                assert packets.count() == 8


def test_a_goal_that_is_not_met_or_a_failure_that_is_not_found_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["it"])
    met = lines.line("a", "b", 1, "s", True, "at most 2 s")
    missed = lines.line("a", "c", 3, "s", False, "at most 2 s")
    absent = lines.line("a", "d", float("nan"), "s", True, "at most 2 s")
    wide = lines.interval("a", "e", (1.0, -9.0, 9.0), "s", 2, "", True)
    undecided = record.at_most(wide, 2)

    def ended(rows: list[record.Row], planted: dict[str, bool]) -> int:
        return lines.program("it", "Told.", "", "less", lambda *_: (rows, planted))

    assert ended([met], {"p": True}) == 0
    assert ended([met, missed], {"p": True}) == 3
    assert "it: not met: a: c: 3 s" in capsys.readouterr().err
    assert ended([met, absent], {"p": True}) == 3
    assert "it: not measured: a: d: no valid run of a" in capsys.readouterr().err
    assert ended([met, undecided], {"p": True}) == 3
    assert ended([], {"p": True}) == 3
    assert ended([met], {"p": False}) == 1
    assert "NOT DETECTED" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["shards", "swarm", "offsets"])
def test_the_studies_tell_what_they_are(name: str) -> None:
    script = STUDIES / f"monitored_{name}.py"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("--out", "--quick", "--json", "--record"))
