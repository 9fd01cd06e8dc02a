"""The comparison of the filter on and off, on a simulated store with known times."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from bench import record, swift_monitor
from studies.swift.saio import MIDDLEWARE


class Store:
    """A simulated Swift: requests take 10 ms of its own clock, and `on_s` more if the filter is on."""

    def __init__(self, place: Path, on_s: float, planted_s: float) -> None:
        self.off, self.planted = place / "off", place / "planted"
        self.now, self._on_s, self._planted_s = 0.0, on_s, planted_s
        self._drift = 0.0

    def client(self) -> Store:
        return self

    def make(self, container: str) -> None:
        pass

    def put(self, container: str, name: str, content: bytes) -> None:
        self._drift += 1e-6  # the store becomes slower, independent of the filter
        self.now += 0.010 + self._drift
        self.now += 0 if self.off.exists() else self._on_s
        self.now += self._planted_s if self.planted.exists() else 0

    def get(self, container: str, name: str) -> bytes:
        self.put(container, name, b"")
        return b""


def compared(monkeypatch: pytest.MonkeyPatch, place: Path, on_s: float, planted_s: float) -> Any:
    store = Store(place, on_s, planted_s)
    clock = types.SimpleNamespace(perf_counter=lambda: store.now, sleep=lambda s: None)
    monkeypatch.setattr(swift_monitor, "time", clock)
    by_size = swift_monitor.measured(store, store.off, store.planted, 24)  # type: ignore[arg-type]
    return by_size, swift_monitor.rows_of(by_size, 24)


def test_a_cost_is_detected_and_no_cost_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    costs, rows = compared(monkeypatch, tmp_path, 0.0005, 0.003)
    on = [r for r in rows if r["engine"] == "filter on"]
    assert [r["verdict"] for r in on] == [record.MISSED] * 2  # 5 % more
    assert all(figures["planted"].low > swift_monitor.LIMIT for figures in costs.values())
    without = [r for r in rows if r["engine"] == "off (A/A)"]
    assert all(r["low"] <= 0.5 and r["high"] >= -0.5 for r in without)
    free, rows = compared(monkeypatch, tmp_path, 0.0, 0.0)
    assert [r["verdict"] for r in rows if r["engine"] == "filter on"] == [record.MET] * 2
    assert not any(figures["planted"].low > swift_monitor.LIMIT for figures in free.values())


def test_every_arm_is_first_and_last_equally_often() -> None:
    orders = [swift_monitor.turned(n) for n in range(8)]
    assert {o[0] for o in orders} == {o[-1] for o in orders} == set(swift_monitor.ARMS)


def test_the_planted_filter_does_additional_work(tmp_path: Path) -> None:
    # fails if the planted filter does not run, or runs only without a planted failure
    mark = tmp_path / "planted"
    module = types.ModuleType("planted")
    text = MIDDLEWARE.read_text(encoding="utf-8") + swift_monitor.PLANTED.format(mark=str(mark))
    exec(compile(text, "planted", "exec"), module.__dict__)
    readings: list[float] = []

    def perf_counter() -> float:
        readings.append(len(readings) * 0.001)
        return readings[-1]

    module._time = types.SimpleNamespace(perf_counter=perf_counter)  # type: ignore[attr-defined]
    app = module.filter_factory({})(lambda environ, start_response: [b"served"])
    request = {"REQUEST_METHOD": "HEAD", "PATH_INFO": "/sdb1/1/a/c/o"}
    assert app(request, None) == [b"served"]
    assert readings == []
    mark.touch()
    assert app(request, None) == [b"served"]
    assert len(readings) >= 10
