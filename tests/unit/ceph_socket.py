"""A daemon of Ceph that is nothing but its admin socket, with the answers of a real one; and a poller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.parts.monitoring.collectors.products.ceph import CephPoller
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.testing import MemorySink

OSD = '{"daemon":"osd.0"}'
#: what daemons of Ceph 16.2.15 said, one file for each: `perf schema` and `perf dump`, parts of them
GOLDEN = Path(__file__).parents[1] / "golden/ceph"


def said(daemon: str) -> dict[str, Any]:
    """The recorded answers of a daemon, by command."""
    found: dict[str, Any] = json.loads((GOLDEN / f"{daemon}.json").read_text())
    return found


def framed(answer: bytes) -> bytes:
    """As it is sent: with its length before it."""
    return len(answer).to_bytes(4, "big") + answer


class FakeDaemon:
    """Serves commands one after the other, as the thread of an admin socket does.

    `answer` may be changed while it is at work: it is given a command, and gives all bytes of the answer, or
    None for none before the daemon ends.
    """

    def __init__(self, path: Path, answers: dict[str, Any]) -> None:
        self.path, self.answers = path, answers
        self.asked: list[str] = []
        self.answer: Callable[[str], bytes | None] = self.recorded
        self._ended = threading.Event()
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(5)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def recorded(self, command: str) -> bytes:
        """What was recorded; of other commands what a daemon says."""
        found = self.answers.get(command)
        return framed(b"ERROR: (22) Invalid argument" if found is None else _json(found))

    def kill(self) -> None:
        """Ends it as a signal does: the socket stays where it is, and nobody listens."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._socket.close()

    def end(self) -> None:
        """Ends it as it ends by itself."""
        self.path.unlink(missing_ok=True)
        self.kill()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                command = b""
                while not command.endswith(b"\0"):
                    byte = connection.recv(1)
                    if not byte:
                        break
                    command += byte
                else:
                    asked = json.loads(command[:-1])
                    assert asked["format"] == "json"
                    self.asked.append(asked["prefix"])
                    answer = self.answer(asked["prefix"])
                    if answer is None:
                        self._ended.wait(60)
                    else:
                        connection.sendall(answer)


def _json(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@contextlib.contextmanager
def daemon(path: Path, answers: dict[str, Any]) -> Iterator[FakeDaemon]:
    """One at work."""
    made = FakeDaemon(path, answers)
    try:
        yield made
    finally:
        made.end()


def done(what: Callable[[], object]) -> Callable[[CephPoller], bool]:
    """A step that does something."""

    def step(_: CephPoller) -> bool:
        what()
        return True

    return step


class Run:
    """A poller at work for a while, and what it brought."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.settings = {
            "interval_s": 0.1,
            "timeout_s": 20,
            "sockets": [str(tmp_path / "*.asok")],
            **settings,
        }
        self.sink = MemorySink()

    def until(self, *steps: Callable[[CephPoller], bool]) -> CephPoller:
        """Until each of these was true, one after the other."""

        async def one() -> CephPoller:
            poller = CephPoller("ceph", self.settings)
            await poller.start(self.sink)
            for step in steps:
                while not step(poller):
                    assert not poller._task.done(), poller._task
                    await asyncio.sleep(0.01)
            await poller.stop()
            return poller

        self.begin_ns = time.time_ns()
        return asyncio.run(asyncio.wait_for(one(), 120))

    def values(self, metric: str, labels: str = OSD) -> list[float]:
        rows = self.sink.rows()
        return [r["float"] for r in rows if (r["metric"], r["labels"]) == (metric, labels)]

    def polls(self, count: int) -> Callable[[CephPoller], bool]:
        """That so many were kept since this was first asked."""
        before: list[int] = []

        def reached(_: CephPoller) -> bool:
            now = len(self.values("ceph_success"))
            before.append(now)
            return now >= before[0] + count

        return reached

    def made(self) -> Recorded:
        batches = [self.sink.batches[key] for key in sorted(self.sink.batches)]
        return recorded(batches, self.begin_ns, time.time_ns())

    def series(self, metric: str) -> dict[str, Any]:
        (found,) = [r for r in self.made().series.to_pylist() if r["metric"] == metric]
        return found

    def gaps(self, kind: str) -> list[str]:
        return [
            g["detail"] for g in self.made().gaps.to_pylist() if g["kind"] == kind and g["detail"]
        ]
