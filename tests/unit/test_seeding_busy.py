"""Seeding on a host that is too busy: a reason for each round, and an end after five in a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.parts.stores.calibration import trials


def test_seeding_gives_up_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(trials, "execute", lambda *arguments, **options: executed.append(arguments))
    monkeypatch.setattr(trials, "busy_share", lambda before, after: 0.97)
    store: Any = SimpleNamespace(
        roles=SimpleNamespace(clients=["a", "b"], storage=["b", "c"]),
        cluster=SimpleNamespace(nodes={}),
    )
    notes: list[str] = []
    with pytest.raises(
        PenstockError, match=r"too busy .*round 5: processors 97 % busy, limit 70 %"
    ):
        trials.measure(store, 3600.0, notes.append)
    assert notes == [
        f"round {i}: discarded (processors 97 % busy, limit 70 %)" for i in range(1, 6)
    ]
    assert len(executed) == 15
