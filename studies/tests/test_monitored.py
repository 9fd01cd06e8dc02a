"""Evaluations of the monitored studies on complete and on incomplete series."""

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


def test_wrong_offsets_are_reported(tmp_path: Path) -> None:
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


def test_interval_of_a_correlation_has_its_nominal_coverage() -> None:
    draws = np.random.default_rng(11)
    covered = 0
    for _ in range(400):
        x = draws.normal(size=50)
        y = 0.8 * x + 0.6 * draws.normal(size=50)
        _, low, high = offsets.correlation(x, y)
        covered += low <= 0.8 <= high
    # 380 are expected; below 364 or above 394 in fewer than 1 of 1,000 such tests
    assert 364 <= covered <= 394


def test_busy_share_covers_the_preceding_second() -> None:
    # idle for five seconds, then busy for half of each
    counter = pd.Series(np.maximum(0, np.arange(12) - 5) * 0.5, index=times(12))
    at = pd.to_datetime(T0 + np.array([0, 3, 5.5, 9, 11, 12]) * SECOND, unit="ns", utc=True)
    percent = power.busy_percent(counter, at)
    assert np.isnan(percent[[0, 5]]).all()
    assert percent[1:5] == pytest.approx([0, 25, 50, 50])


def test_monitoring_adds_exactly_two_lines() -> None:
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


def test_incomplete_series_of_a_swarm_are_reported() -> None:
    end_ns = T0 + round(20.4 * SECOND)
    early = pd.DataFrame({"a": np.minimum(100.0, np.arange(21) * 6.0)}, index=times(21))
    late = early["a"].where(np.arange(21) >= 4)
    both = early.assign(late=late)
    assert swarm.incomplete(both) == []
    assert swarm.missing(both, end_ns) == {}
    down = both.copy()
    down.iloc[10, 0] = 3.0
    assert swarm.incomplete(down) == ["a"]
    lost = both.copy()
    lost.iloc[8:11, 1] = np.nan
    assert swarm.missing(lost, end_ns) == {"late": -3}
    assert swarm.missing(both, end_ns + 3 * SECOND) == {"a": -3, "late": -3}
    assert swarm.incomplete(both.iloc[:10]) == ["a", "late"]
    assert swarm.earliest_s(5_000_000, 50_000, 3028) == pytest.approx(99.94, abs=0.01)


def test_the_exporter_of_the_swarm_has_ten_lines_at_most() -> None:
    text = (STUDIES / "monitored" / "exporter.py").read_text()
    code = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) <= 10
    compile(text, "exporter.py", "exec")


def test_only_packets_of_the_port_are_counted_each_once() -> None:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0):
            pass
    except PermissionError:
        pytest.skip("needs root: packet sockets")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        port = receiver.getsockname()[1]
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other_port,
        ):
            other_port.bind(("127.0.0.1", 0))
            with wire.Packets("lo", port) as packets:
                assert packets.count() == 0
                for _ in range(7):
                    sender.sendto(b"x", ("127.0.0.1", port))
                    sender.sendto(b"x", other_port.getsockname())
                assert packets.count() == 7
                receiver.sendto(b"x", sender.getsockname())
                assert packets.count() == 8


def test_missed_goals_and_undetected_failures_give_an_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["it"])
    met = lines.line("a", "b", 1, "s", True, "at most 2 s")
    missed = lines.line("a", "c", 3, "s", False, "at most 2 s")
    absent = lines.line("a", "d", float("nan"), "s", True, "at most 2 s")
    wide = lines.interval("a", "e", (1.0, -9.0, 9.0), "s", 2, "", True)
    undecided = record.at_most(wide, 2)

    def status_of(rows: list[record.Row], planted: dict[str, bool]) -> int:
        return lines.program("it", "Told.", "", "less", lambda *_: (rows, planted))

    assert status_of([met], {"p": True}) == 0
    assert status_of([met, missed], {"p": True}) == 3
    assert "it: not met: a: c: 3 s" in capsys.readouterr().err
    assert status_of([met, absent], {"p": True}) == 3
    assert "it: not measured: a: d: no valid run of a" in capsys.readouterr().err
    assert status_of([met, undecided], {"p": True}) == 3
    assert status_of([], {"p": True}) == 3
    assert status_of([met], {"p": False}) == 1
    assert "NOT DETECTED" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["shards", "swarm", "offsets"])
def test_help_of_the_studies_lists_their_options(name: str) -> None:
    script = STUDIES / f"monitored_{name}.py"
    result = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert all(option in result.stdout for option in ("--out", "--quick", "--json", "--record"))
