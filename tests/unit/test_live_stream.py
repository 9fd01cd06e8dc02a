"""Event stream of the live page: delivery, reconnection, limits, slow clients and announcements."""

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
    """Live state with one source that changes with every poll."""

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
    """Return the events of a piece of a stream as (id, name, data)."""
    events = []
    for message in piece.decode().split("\n\n"):
        keys = dict(line.split(": ", 1) for line in message.splitlines() if ": " in line)
        if "event" in keys:
            events.append((keys["id"], keys["event"], json.loads(keys["data"])))
    return events


async def receive(hub: Hub, last: str | None, number: int, interval_s: float = 0.0) -> list[Any]:
    events: list[Any] = []
    stream = hub.follow(last, interval_s)
    async with contextlib.aclosing(stream):  # type: ignore[type-var]
        async for piece in stream:
            events += read(piece)
            if len(events) >= number:
                break
    return events


def test_reconnecting_client_receives_each_event_once() -> None:
    async def act() -> None:
        parts = Counting()
        hub = Hub(parts, poll_s=0.01)  # type: ignore[arg-type]
        watcher = asyncio.create_task(receive(hub, None, 10_000))
        first = await receive(hub, None, 6)
        assert first[0][1] == "now"
        after = await receive(hub, first[-1][0], 6)
        assert all(name != "now" for _, name, _ in after)
        numbers = [value for _, name, value in first + after if name == "use"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        for invalid_id in ("", "x", f"{'0' * 8}-3", first[-1][0] + "9", "²-²"):
            assert (await receive(hub, invalid_id, 1))[0][1] == "now"
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        assert not parts.active
        async with asyncio.timeout(
            60
        ):  # without a client there are no polls, but one may be running
            polls = -1
            while not parts.rests or parts.count != polls:
                polls = parts.count
                await asyncio.sleep(0.1)
        assert parts.rests == 1
        # an id from before the pause cannot be continued
        assert (await receive(hub, after[-1][0], 1))[0][1] == "now"

    asyncio.run(act())


def test_hanging_poll_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if samples wait for a supervisor, a tracer or a catalogue that does not respond."""
    monkeypatch.setattr(hubs, "_FIRST_POLL_S", 0.2)
    released = threading.Event()

    class Hanging(Counting):
        @property
        def polls(self) -> list[Any]:
            return [self.tick, lambda: [("late", released.wait(60))]]

    async def act() -> None:
        hub = Hub(Hanging(), poll_s=0.01)  # type: ignore[arg-type]
        names = [name for _, name, _ in await receive(hub, None, 5)]
        released.set()
        assert names.count("use") >= 2

    asyncio.run(act())


def test_slow_client_receives_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_MOST_EVENTS", 8)

    async def act() -> None:
        parts = Counting()
        hub = Hub(parts, poll_s=0.01)  # type: ignore[arg-type]
        stream = hub.follow(None, 0.0)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            assert [n for _ in range(2) for _, n, _ in read(await anext(stream))] == ["now"]
            polls = parts.count + 10
            while parts.count < polls:
                await asyncio.sleep(0.01)
            assert len(hub._ring) <= 8
            assert read(await anext(stream))[0][1] == "now"

    asyncio.run(act())


def test_states_respect_the_requested_interval() -> None:
    async def act() -> None:
        hub = Hub(Counting(), poll_s=0.02)  # type: ignore[arg-type]
        names = [name for _, name, _ in await receive(hub, None, 30, interval_s=60.0)]
        assert "state" not in names
        assert names.count("use") == 29

    asyncio.run(act())


def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a client that reads nothing keeps its stream open."""
    monkeypatch.setattr(hubs, "SEND_TIMEOUT_S", 0.1)

    async def act() -> None:
        hub = Hub(Counting(), poll_s=0.01)  # type: ignore[arg-type]
        never = asyncio.Event()
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)
            if len(sent) > 3:
                await never.wait()

        await asyncio.wait_for(EventStreamResponse(hub.follow(None, 0.0)).stream_response(send), 60)
        assert len(sent) == 4
        assert hub._streams == 0

    asyncio.run(act())


def test_number_of_streams_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hubs.Hub, "full", True)
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    app = application(Served([]), "a-word-of-many-letters", ["testserver"])
    with TestClient(app) as client:
        headers = {"Authorization": "Bearer a-word-of-many-letters"}
        answer = client.get("/api/v1/live", headers=headers)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        assert client.get("/api/v1/live").status_code == 401


def test_stream_ends_when_its_token_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user has a limited number of streams. A revoked token receives no further events."""
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


def test_view_hides_errors_of_the_host() -> None:
    rows = [{"name": "", "trouble": "/var/lib/secret: no such file"}]
    (row,) = View("a", None, lambda: True).of("experiments", rows)
    assert "secret" not in str(row)


def test_slow_parts_are_polled_less_often() -> None:
    """CPU use of a part is bounded. Fails if the interval does not follow the cost of a poll."""

    def slow() -> int:
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass
        return 1

    throttled = Throttled(slow, 0.0)
    before_s = time.monotonic()
    assert throttled.refresh()
    assert throttled._due - before_s > 0.02 / 0.02
    throttled._due += 60  # also if the host pauses this process
    assert not throttled.refresh()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    return tmp_path / "run"


def test_announcement_disappears_with_its_process(runtime: Path) -> None:
    announced = Announced()
    with Announcement("study", "x", out="/nowhere") as announcement:
        assert [s["name"] for s in announced.look()] == ["x"]
        (path,) = runtime.glob("live-*.json")
        assert path.stat().st_mode & 0o077 == 0
        announcement.say(left=3)
        assert announced.look()[0]["left"] == 3
        for number in range(300):
            announcement.add("ended", number)
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
    # without a watcher no log remains
    assert [p.name for p in runtime.glob("live-*")] == ["live-x-beef.json"]


def test_events_between_two_polls_are_delivered(runtime: Path) -> None:
    """All events of a study that starts and ends between two polls are delivered."""
    announced = Announced()
    with Announcement("study", "earlier") as running:
        assert [e["event"] for e in announced.events()] == ["begun"]
        running.note("phase", run_id="r001", phase="arm")
        with Announcement("study", "short", out="/nowhere") as announcement:
            for phase in ("prepare", "workload", "collect"):
                announcement.note("phase", run_id="r001", attempt=1, phase=phase)
            announcement.add("ended", {"run_id": "r001", "attempt": 1})
        events = [e for e in announced.events() if e["name"] == "short"]
        assert [e["event"] for e in events] == ["begun", *["phase"] * 3, "ended", "closed"]
        assert [e.get("phase") for e in events[1:4]] == ["prepare", "workload", "collect"]
        assert {e["out"] for e in events} == {"/nowhere"}
        running.note("phase", run_id="r001", phase="disarm")
    assert [e.get("phase") for e in announced.events()] == ["disarm", None]
    assert announced.events() == []
    announced.close()
    assert list(runtime.iterdir()) == []


def test_log_of_an_earlier_process_is_not_repeated(runtime: Path) -> None:
    first, second = Announced(), Announced()
    first.events()
    with Announcement("study", "x") as announcement:
        announcement.note("phase", run_id="r001", phase="arm")
    assert second.events() == []  # it started to watch after the end
    assert [e["event"] for e in first.events()] == ["begun", "phase", "closed"]
    for watcher in (second, first):
        watcher.close()
    assert list(runtime.iterdir()) == []


def test_full_runtime_directory_is_tolerated(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Announcement("study", "x") as announcement:
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        announcement.say(left=3)


def test_announcements_are_thread_safe(runtime: Path) -> None:
    with Announcement("study", "x") as announcement:
        threads = [
            threading.Thread(target=lambda n=n: [announcement.add(f"k{n}", i) for i in range(50)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (document,) = Announced().look()
        assert [document[f"k{n}"][-1] for n in range(4)] == [49] * 4


def test_parts_send_only_changes(runtime: Path) -> None:
    parts = LiveState(
        LiveExperiments(lambda: (_ for _ in ()).throw(OSError(2, "no catalogue"))).documents
    )
    try:
        with Announcement("study", "x", planned=2, left=2, out="/nowhere") as announcement:
            quick, slow = parts.polls
            assert quick() == []  # no client yet
            parts.active = True
            names = [name for name, _ in quick()]
            assert names.count("now") == 1
            assert "now" not in [name for name, _ in quick()]
            announcement.say(left=1)
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


def test_stream_switches_to_the_next_run_s_trace(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the stream keeps the first run's trace when the next run starts within one poll."""
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
    monkeypatch.setattr(
        "penstock.parts.server.live.parts.Throttled", lambda compute, _: Unpaced(compute)
    )
    parts = LiveState(
        LiveExperiments(lambda: (_ for _ in ()).throw(OSError(2, "no catalogue"))).documents
    )
    parts.active = True
    quick, slow = parts.polls
    with Announcement("study", "x") as announcement:
        for run in ("r001", "r002"):
            announcement.say(sources={"trace": run})
            quick()
            slow()
    parts.suspend()
    assert events == ["look at r001", "close r001", "look at r002", "close r002"]


class Unpaced:
    """Value that is computed again with each refresh."""

    def __init__(self, compute: Any) -> None:
        self._compute, self.value = compute, None

    def refresh(self) -> bool:
        self.value = self._compute()
        return True
