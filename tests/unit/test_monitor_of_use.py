"""Reduction of samples: all of a short recording, one per interval of a longer one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.observe.sampler.monitor import _of_use

S = 1_000_000_000


def _recorded(length_s: float) -> tuple[pa.Table, dict[str, int]]:
    """Two series: every 100 ms for ten seconds, then every second, each 60 µs late."""
    due = np.concatenate([np.arange(0, 10 * S, S // 10), np.arange(10 * S, 60 * S, S)])
    times = np.repeat(7 + due[due < length_s * S] + 60_000, 2)
    columns = {"entity": ["a", "b"] * (len(times) // 2), "source": ["cpu"] * len(times)}
    table = pa.table({"t_ns": times, **columns})
    end_ns = 7 + round(length_s * S)
    window = {"start_ns": 7, "end_ns": end_ns, "interval_ns": S, "close_ns": S // 10}
    return table, {**window, "beginning_ns": 10 * S}


@pytest.mark.parametrize(("length_s", "used_ns", "count"), [(1.25, S // 10, 13), (30.5, S, 31)])
def test_samples_are_evenly_spaced(length_s: float, used_ns: int, count: int) -> None:
    table, receipt = _recorded(length_s)
    reduced, interval_ns = _of_use(table, receipt)
    assert interval_ns == used_ns
    times = reduced.column("t_ns").to_numpy()
    assert len(times) == 2 * count
    assert set(np.diff(np.unique(times))) == {used_ns}


def test_interval_without_a_sample_uses_the_next_one() -> None:
    table, receipt = _recorded(30.5)
    third = (table.column("t_ns").to_numpy() - 7) // (S // 10) == 30
    reduced, _ = _of_use(table.filter(pa.array(~third)), receipt)
    times = np.unique(reduced.column("t_ns").to_numpy())
    assert len(times) == 31
    assert 7 + 3 * S + S // 10 + 60_000 in times
