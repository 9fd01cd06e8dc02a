"""The stream of the live page: what is sent once, where it goes on, how many watch, who is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from penstock.errors import Away
from penstock.host.journal.announce import Announced, Announcement, forget_dead
from penstock.parts.monitoring.http.live_experiments import LiveExperiments
from penstock.parts.server.app import application
from penstock.parts.server.live import hub as hubs
from penstock.parts.server.live.hub import EventStreamResponse, Hub
from penstock.parts.server.live.parts import LiveState, Throttled
from penstock.parts.server.live.view import View
from penstock.parts.server.traces import Served


class Counting:
    """A live state with one source that changes with every poll."""

    def __init__(self) -> None:
        self.count = 0
        self.active = False
        self.rests = 0

    @property
    def polls(self) -> list[Any]:
        return [self.tick]

    def tick(self) -> list[tuple[str, Any]]:
        self.count += 1
        return [("use", self.count), ("state", {"t_ns": self.count})]

    def snapshot(self) -> list[tuple[str, Any]]:
        return [("now", f"all up to {self.count}")]

    def suspend(self) -> None:
        self.rests += 1


def read(piece: bytes) -> list[tuple[str, str, Any]]:
    """Events of a piece of a stream: id, name, data."""
    found = []
    for message in piece.decode().split("\n\n"):
        keys = dict(line.split(": ", 1) for line in message.splitlines() if ": " in line)
        if "event" in keys:
            found.append((keys["id"], keys["event"], json.loads(keys["data"])))
    return found


async def some(hub: Hub, last: str | None, number: int, interval_s: float = 0.0) -> list[Any]:
    found: list[Any] = []
    stream = hub.follow(last, interval_s)
    async with contextlib.aclosing(stream):  # type: ignore[type-var]
        async for piece in stream:
            found += read(piece)
            if len(found) >= number:
                break
    return found


def test_who_comes_back_has_every_event_once_and_no_snapshot() -> None:
    async def act() -> None:
        parts = Counting()
        hub = Hub(parts, poll_s=0.01)  # type: ignore[arg-type]
        keeper = asyncio.create_task(some(hub, None, 10_000))
        first = await some(hub, None, 6)
        assert first[0][1] == "now"
        after = await some(hub, first[-1][0], 6)
        assert all(name != "now" for _, name, _ in after)
        numbers = [value for _, name, value in first + after if name == "use"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        for strange in ("", "x", f"{'0' * 8}-3", first[-1][0] + "9", "²-²"):
            assert (await some(hub, strange, 1))[0][1] == "now"
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        looks = parts.count
        assert not parts.active
        await asyncio.sleep(0.1)
        assert (parts.count, parts.rests) == (looks, 1)  # nobody watches, nothing is looked at
        # what it had before that rest is no place to go on from
        assert (await some(hub, after[-1][0], 1))[0][1] == "now"

    asyncio.run(act())


def test_a_look_that_hangs_keeps_no_other_from_being_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails where samples wait for a supervisor, a tracer or a catalogue that does not answer."""
    monkeypatch.setattr(hubs, "_FIRST_POLL_S", 0.2)
    ended = threading.Event()

    class Hanging(Counting):
        @property
        def polls(self) -> list[Any]:
            return [self.tick, lambda: [("late", ended.wait(60))]]

    async def act() -> None:
        hub = Hub(Hanging(), poll_s=0.01)  # type: ignore[arg-type]
        names = [name for _, name, _ in await some(hub, None, 5)]
        ended.set()
        assert names.count("use") >= 2

    asyncio.run(act())


def test_who_lags_behind_the_ring_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_MOST_EVENTS", 8)

    async def act() -> None:
        hub = Hub(Counting(), poll_s=0.01)  # type: ignore[arg-type]
        stream = hub.follow(None, 0.0)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            assert [n for _ in range(2) for _, n, _ in read(await anext(stream))] == ["now"]
            await asyncio.sleep(0.5)
            assert len(hub._ring) <= 8
            assert read(await anext(stream))[0][1] == "now"

    asyncio.run(act())


def test_states_come_no_closer_than_asked() -> None:
    async def act() -> None:
        hub = Hub(Counting(), poll_s=0.02)  # type: ignore[arg-type]
        names = [name for _, name, _ in await some(hub, None, 30, interval_s=60.0)]
        assert "state" not in names
        assert names.count("use") == 29

    asyncio.run(act())


def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a client that reads nothing keeps its place for ever."""
    monkeypatch.setattr(hubs, "SEND_TIMEOUT_S", 0.1)

    async def act() -> None:
        hub = Hub(Counting(), poll_s=0.01)  # type: ignore[arg-type]
        never = asyncio.Event()
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)
            if len(sent) > 3:
                await never.wait()

        await asyncio.wait_for(EventStreamResponse(hub.follow(None, 0.0)).stream_response(send), 20)
        assert len(sent) == 4
        assert hub._streams == 0

    asyncio.run(act())


def test_no_more_than_so_many_may_watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hubs.Hub, "full", True)
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    app = application(Served([]), "a-word-of-many-letters", ["testserver"])
    with TestClient(app) as client:
        right = {"Authorization": "Bearer a-word-of-many-letters"}
        answer = client.get("/api/v1/live", headers=right)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        assert client.get("/api/v1/live").status_code == 401


def test_a_stream_of_a_user_s_token_ends_where_it_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And holds only so many places; breaks where a revoked token goes on being told."""
    monkeypatch.setattr(hubs, "_TOKEN_CHECK_S", 0.05)
    monkeypatch.setattr(hubs, "MOST_USER_STREAMS", 1)
    answers = [True, True, Away("the catalogue"), True, False]

    def allowed() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    class Two(Counting):
        def tick(self) -> list[tuple[str, Any]]:
            rows = [{"user": u, "name": u, "repeat": self.count, "shared": False} for u in "ab"]
            return [*super().tick(), ("experiments", rows)]

    async def act() -> None:
        hub = Hub(Two(), poll_s=0.01)  # type: ignore[arg-type]
        names = set()
        async for piece in hub.follow(None, 0.0, View("a", None, allowed)):
            assert hub.full_for_users
            for line in piece.decode().splitlines():
                if line.startswith("data: ["):
                    names |= {e["user"] for e in json.loads(line[6:])}
                assert not line.startswith(("event: use", "event: state", "event: now"))
        assert names == {"a"}
        assert answers == []
        assert not hub.full
        assert not hub.full_for_users
        await hub.close()

    asyncio.run(asyncio.wait_for(act(), 120))


def test_a_view_hides_what_is_wrong_with_the_host() -> None:
    rows = [{"name": "", "trouble": "/var/lib/secret: no such file"}]
    (told,) = View("a", None, lambda: True).of("experiments", rows)
    assert "secret" not in str(told)


def test_what_takes_long_is_looked_at_less_often() -> None:
    """The share of a processor that a part takes is bounded: fails where pace does not follow cost."""

    def slow() -> int:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return 1

    paced = Throttled(slow, 0.0)
    assert paced.refresh()
    assert paced._due - time.monotonic() > 0.02 / 0.02
    assert not paced.refresh()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    return tmp_path / "run"


def test_what_is_announced_goes_with_its_process(runtime: Path) -> None:
    announced = Announced()
    with Announcement("study", "x", out="/nowhere") as said:
        assert [s["name"] for s in announced.look()] == ["x"]
        (path,) = runtime.glob("live-*.json")
        assert path.stat().st_mode & 0o077 == 0
        said.say(left=3)
        assert announced.look()[0]["left"] == 3
        for number in range(300):
            said.add("ended", number)
        assert len(announced.look()[0]["ended"]) == 100
        forget_dead()
        assert path.exists()
        dead = json.loads(path.read_text()) | {"start": 1}
        (runtime / f"live-{os.getpid()}-beef.json").write_text(json.dumps(dead))
        (runtime / "live-x-beef.json").write_text("no JSON")
        assert len(announced.look()) == 1
        forget_dead()
        assert sorted(p.name for p in runtime.glob("live-*")) == sorted(
            [path.name, path.with_suffix(".log").name, "live-x-beef.json"]
        )
    assert announced.look() == []
    # nobody watched: no log stays
    assert [p.name for p in runtime.glob("live-*")] == ["live-x-beef.json"]


def test_events_between_two_looks_are_not_missed(runtime: Path) -> None:
    """A study that begins, goes through its phases and ends while nobody looks is told whole."""
    announced = Announced()
    with Announcement("study", "earlier") as running:
        assert [e["event"] for e in announced.events()] == ["begun"]
        running.note("phase", run_id="r001", phase="arm")
        with Announcement("study", "short", out="/nowhere") as said:
            for phase in ("prepare", "workload", "collect"):
                said.note("phase", run_id="r001", attempt=1, phase=phase)
            said.add("ended", {"run_id": "r001", "attempt": 1})
        found = [e for e in announced.events() if e["name"] == "short"]
        assert [e["event"] for e in found] == ["begun", *["phase"] * 3, "ended", "closed"]
        assert [e.get("phase") for e in found[1:4]] == ["prepare", "workload", "collect"]
        assert {e["out"] for e in found} == {"/nowhere"}
        running.note("phase", run_id="r001", phase="disarm")
    assert [e.get("phase") for e in announced.events()] == ["disarm", None]
    assert announced.events() == []
    announced.close()
    assert list(runtime.iterdir()) == []


def test_a_log_of_an_earlier_process_is_not_told_again(runtime: Path) -> None:
    first, second = Announced(), Announced()
    first.events()
    with Announcement("study", "x") as said:
        said.note("phase", run_id="r001", phase="arm")
    assert second.events() == []  # it began to watch when all was over
    assert [e["event"] for e in first.events()] == ["begun", "phase", "closed"]
    for watcher in (second, first):
        watcher.close()
    assert list(runtime.iterdir()) == []


def test_a_runtime_directory_that_is_full_disturbs_nobody(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Announcement("study", "x") as said:
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        said.say(left=3)


def test_threads_may_say_things_at_once(runtime: Path) -> None:
    with Announcement("study", "x") as said:
        threads = [
            threading.Thread(target=lambda n=n: [said.add(f"k{n}", i) for i in range(50)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (found,) = Announced().look()
        assert [found[f"k{n}"][-1] for n in range(4)] == [49] * 4


def test_parts_tell_what_changed_and_no_more(runtime: Path) -> None:
    parts = LiveState(
        LiveExperiments(lambda: (_ for _ in ()).throw(OSError(2, "no catalogue"))).documents
    )
    try:
        with Announcement("study", "x", planned=2, left=2, out="/nowhere") as said:
            quick, slow = parts.polls
            assert quick() == []  # nobody looks yet
            parts.active = True
            names = [name for name, _ in quick()]
            assert names.count("now") == 1
            assert "now" not in [name for name, _ in quick()]
            said.say(left=1)
            (now,) = [value for name, value in quick() if name == "now"]
            assert now[0]["left"] == 1
            assert "out" not in now[0]
            assert "pid" not in now[0]
        assert ("now", []) in quick()
        slow()
        assert dict(parts.snapshot())["experiments"][0]["trouble"]
    finally:
        parts.suspend()
    assert not list(runtime.glob("live-use-*"))


def test_the_next_run_s_trace_takes_the_place_of_the_last_one_s(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: runs followed each other within one look, and the stream kept to the first run's trace."""
    events: list[str] = []

    class Followed:
        def __init__(self, spool: str, sample: Path, *, named: bool) -> None:
            self.spool = spool

        def look(self) -> tuple[dict[str, Any], list[Any]]:
            events.append(f"look at {self.spool}")
            return {}, []

        def close(self) -> None:
            events.append(f"close {self.spool}")

    monkeypatch.setattr("penstock.parts.server.live.parts.Look", Followed)
    monkeypatch.setattr("penstock.parts.server.live.parts.Throttled", lambda made, _: Unpaced(made))
    parts = LiveState(
        LiveExperiments(lambda: (_ for _ in ()).throw(OSError(2, "no catalogue"))).documents
    )
    parts.active = True
    quick, slow = parts.polls
    with Announcement("study", "x") as said:
        for run in ("r001", "r002"):
            said.say(sources={"trace": run})
            quick()
            slow()
    parts.suspend()
    assert events == ["look at r001", "close r001", "look at r002", "close r002"]


class Unpaced:
    """A value that is computed anew whenever it is asked for."""

    def __init__(self, made: Any) -> None:
        self._made, self.value = made, None

    def refresh(self) -> bool:
        self.value = self._made()
        return True
