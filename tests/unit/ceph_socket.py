"""A fake daemon of Ceph: an admin socket with the answers of a real one; and a poller."""

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
#: excerpts of `perf schema` and `perf dump` of daemons of Ceph 16.2.15, one file for each
GOLDEN = Path(__file__).parents[1] / "golden/ceph"


def recorded_answers(daemon: str) -> dict[str, Any]:
    """Recorded answers of a daemon, by command."""
    answers: dict[str, Any] = json.loads((GOLDEN / f"{daemon}.json").read_text())
    return answers


def framed(answer: bytes) -> bytes:
    """The answer as sent: preceded by its length."""
    return len(answer).to_bytes(4, "big") + answer


class FakeDaemon:
    """Serves commands one after the other, as the thread of an admin socket does.

    `answer` may be changed while the daemon runs: it takes a command and returns all bytes of the
    answer, or None for no answer before the daemon ends.
    """

    def __init__(self, path: Path, answers: dict[str, Any]) -> None:
        self.path, self.answers = path, answers
        self.commands: list[str] = []
        self.answer: Callable[[str], bytes | None] = self.recorded
        self._ended = threading.Event()
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(5)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def recorded(self, command: str) -> bytes:
        """The recorded answer; for other commands a daemon's error."""
        recorded_answer = self.answers.get(command)
        return framed(
            b"ERROR: (22) Invalid argument" if recorded_answer is None else _json(recorded_answer)
        )

    def kill(self) -> None:
        """End it as a signal does: the socket remains, and nobody listens."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._socket.close()

    def end(self) -> None:
        """End it as it ends by itself."""
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
                    request = json.loads(command[:-1])
                    assert request["format"] == "json"
                    self.commands.append(request["prefix"])
                    answer = self.answer(request["prefix"])
                    if answer is None:
                        self._ended.wait(60)
                    else:
                        connection.sendall(answer)


def _json(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@contextlib.contextmanager
def daemon(path: Path, answers: dict[str, Any]) -> Iterator[FakeDaemon]:
    """A running daemon."""
    running = FakeDaemon(path, answers)
    try:
        yield running
    finally:
        running.end()


def action_step(action: Callable[[], object]) -> Callable[[CephPoller], bool]:
    """A step that runs an action."""

    def step(_: CephPoller) -> bool:
        action()
        return True

    return step


class Run:
    """A poller that runs for a while, and its points."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.settings = {
            "interval_s": 0.1,
            "timeout_s": 20,
            "sockets": [str(tmp_path / "*.asok")],
            **settings,
        }
        self.sink = MemorySink()

    def until(self, *steps: Callable[[CephPoller], bool]) -> CephPoller:
        """Run until each of these conditions held, one after the other."""

        async def poll() -> CephPoller:
            poller = CephPoller("ceph", self.settings)
            await poller.start(self.sink)
            for step in steps:
                while not step(poller):
                    assert not poller._task.done(), poller._task
                    await asyncio.sleep(0.01)
            await poller.stop()
            return poller

        self.begin_ns = time.time_ns()
        return asyncio.run(asyncio.wait_for(poll(), 120))

    def values(self, metric: str, labels: str = OSD) -> list[float]:
        rows = self.sink.rows()
        return [r["float"] for r in rows if (r["metric"], r["labels"]) == (metric, labels)]

    def polls(self, count: int) -> Callable[[CephPoller], bool]:
        """True after `count` more polls were stored since the first call."""
        before: list[int] = []

        def reached(_: CephPoller) -> bool:
            now = len(self.values("ceph_success"))
            before.append(now)
            return now >= before[0] + count

        return reached

    def result(self) -> Recorded:
        batches = [self.sink.batches[key] for key in sorted(self.sink.batches)]
        return recorded(batches, self.begin_ns, time.time_ns())

    def series(self, metric: str) -> dict[str, Any]:
        (row,) = [r for r in self.result().series.to_pylist() if r["metric"] == metric]
        return row

    def gaps(self, kind: str) -> list[str]:
        return [
            g["detail"] for g in self.result().gaps.to_pylist() if g["kind"] == kind and g["detail"]
        ]
