"""Detection of dead servers by the engine's replies, without a store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import PenstockError
from penstock.parts.stores import hang_guard
from penstock.parts.stores.store import Store
from penstock.spec.store import Roles

UP: dict[str, Any] = {"servers": [{"node": "n-0", "up": True}, {"node": "n-1", "up": False}]}
DOWN: dict[str, Any] = {"servers": [{"node": "n-0", "up": False}, {"node": "n-1", "up": False}]}
BOTH_UP: dict[str, Any] = {"servers": [{"node": "n-0", "up": True}, {"node": "n-1", "up": True}]}
SILENT: dict[str, Any] = {"trouble": "timed out", "servers": []}


class Replies:
    """Store whose engine returns these replies in turn and repeats the last one."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.requests = 0
        self._replies = iter(replies)
        self._last = replies[-1]

    def status(self) -> dict[str, Any]:
        self.requests += 1
        self._last = next(self._replies, self._last)
        return self._last


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_guard, "_LOOK_EVERY_S", 0.001)


@pytest.mark.parametrize(
    ("replies", "noticed", "requests"),
    [
        pytest.param([UP, UP, DOWN], True, 3, id="noticed after a while"),
        pytest.param([SILENT, SILENT, UP, DOWN], True, 4, id="busy for a while"),
        pytest.param([SILENT] * 3, True, 3, id="the engine itself died"),
        pytest.param([SILENT, UP], False, None, id="busy, nothing died"),
        pytest.param([UP], False, None, id="no server"),
    ],
)
def test_death_counts_once_the_engine_reports_it(
    replies: list[dict[str, Any]],
    noticed: bool,
    requests: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hang_guard, "_NOTICED_WITHIN_S", 60.0 if noticed else 0.05)
    store = Replies(*replies)
    before = frozenset({"n-1"})
    assert hang_guard._missed(cast(Store, store), before, threading.Event()) == noticed
    assert requests is None or store.requests == requests


class RemoteReplies(Replies):
    """Store whose servers run on other hosts."""

    roles = Roles(("n-0",), ("n-0", "n-1"), ("n-1",))

    @property
    def cluster(self) -> Any:
        nodes = {name: SimpleNamespace(here=name != "n-1") for name in ("n-0", "n-1")}
        return SimpleNamespace(nodes=nodes)


@pytest.mark.parametrize(
    ("replies", "deaths"),
    [
        pytest.param([UP, UP, DOWN], [["n-0"]], id="one more"),
        pytest.param([UP, SILENT], [["n-0"]], id="the engine itself"),
        pytest.param([BOTH_UP, UP, UP, DOWN], [["n-1"], ["n-1", "n-0"]], id="one after the other"),
    ],
)
def test_dead_servers_on_other_hosts(
    replies: list[dict[str, Any]], deaths: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_guard, "_ASK_EVERY_S", 0.001)
    noticed, dead = threading.Event(), list[list[str]]()

    def died(names: Sequence[str], nodes: Sequence[str]) -> None:
        dead.append(list(nodes))
        if len(dead) == len(deaths):
            noticed.set()

    with hang_guard.watched_servers(cast(Store, RemoteReplies(*replies)), died):
        assert noticed.wait(60)
    assert dead == deaths


def test_each_dead_server_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_guard, "_ASK_EVERY_S", 0.001)
    deaths = threading.Semaphore(0)
    monkeypatch.setattr(hang_guard, "_end_clients", lambda _: deaths.release())

    def command_of_a_client() -> None:
        with hang_guard.guarded(cast(Store, RemoteReplies(BOTH_UP, UP, UP, DOWN))):
            assert all(deaths.acquire(timeout=60) for _ in range(2))
            raise PenstockError("killed")

    expected = r"died \(n-1: its server, n-0: its server has ended\)"
    with pytest.raises(PenstockError, match=expected):
        command_of_a_client()
