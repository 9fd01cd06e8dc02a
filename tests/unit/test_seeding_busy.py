"""Seeding on a host that is too busy: each round has its reason, and five in a row are enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.parts.stores.calibration import trials


def test_it_gives_up_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(trials, "execute", lambda *words, **more: executed.append(words))
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
