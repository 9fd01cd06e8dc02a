"""Feeds targets inputs in processes of their own; what ends otherwise than it should is written down.

Every input is a function of the seed, the target and its number. A process has a bound on its memory and each
input one on its time; an input that ends its process is found by what the process left in shared memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.mutate import Input

Feed = Callable[[bytes], None]
#: memory that a process may take beyond what it had [bytes]
ROOM = 2 << 30
#: what may be left of it when all inputs are done [bytes]
KEPT = 400 << 20
#: longest that one input may take [s]
PATIENCE_S = 30.0
#: failures of one kind of input after which a process leaves it
ENOUGH = 5
_HEAD = struct.Struct("<QQdII")
_LONGEST = 4 << 20


@dataclass(frozen=True)
class Target:
    """What reads inputs: `opened` gives a function that takes one; exceptions other than `documented` fail.

    `cost` is how many inputs of the cheapest target take as long as one of this.
    """

    name: str
    make: Input
    opened: Callable[[Path], contextlib.AbstractContextManager[Feed]]
    documented: tuple[type[BaseException], ...] = ()
    cost: float = 1.0


@dataclass(frozen=True)
class Failure:
    """An input that did not end as it should, and where it is kept."""

    target: str
    number: int
    what: str
    kept: Path


@dataclass(frozen=True)
class Outcome:
    """What became of the inputs of a target."""

    target: str
    inputs: int
    failures: tuple[Failure, ...]
    wall_s: float


def input_of(target: Target, seed: int, number: int) -> bytes:
    """The input of that number."""
    return target.make(Random(f"{seed}:{target.name}:{number}"))


class _Progress:
    """Where a process stands, readable after its death: number, inputs done, since when, and the input."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + _LONGEST)

    def begin(self, number: int, done: int, data: bytes) -> None:
        data = data[:_LONGEST]
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        self._memory[: _HEAD.size] = _HEAD.pack(number, done, time.monotonic(), len(data), 1)

    def idle(self, number: int, done: int) -> None:
        self._memory[: _HEAD.size] = _HEAD.pack(number, done, time.monotonic(), 0, 0)

    def read(self) -> tuple[int, int, float, bytes, bool]:
        number, done, since, length, busy = _HEAD.unpack(self._memory[: _HEAD.size])
        return number, done, since, self._memory[_HEAD.size : _HEAD.size + length], bool(busy)


def _taken_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _place_of(error: BaseException) -> object:
    """What tells one failure from another: its kind, and the line that raised it."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return type(error), last.filename, last.lineno


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Driver:
    """Runs targets; keeps failing inputs in `folder`."""

    def __init__(self, folder: Path, seed: int, processes: int) -> None:
        self.folder, self.seed, self.processes = folder, seed, processes

    def run(self, target: Target, inputs: int) -> Outcome:
        """Feeds it that many inputs."""
        began = time.monotonic()
        parts = [range(k, inputs, self.processes) for k in range(self.processes)]
        with tempfile.TemporaryDirectory(prefix="penstock-fuzz-", dir="/dev/shm") as scratch:
            os.chmod(scratch, 0o711)  # some targets go on as another user
            shares = [_Share(self, target, part, Path(scratch)) for part in parts if part]
            while any(share.goes_on() for share in shares):
                time.sleep(0.02)
        failures = [f for share in shares for f in share.failures]
        done = sum(share.done for share in shares)
        return Outcome(target.name, done, tuple(failures), time.monotonic() - began)

    def keep(self, target: Target, number: int, data: bytes, what: str) -> Failure:
        """Writes an input down with what became of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = self.folder / f"{target.name}-{self.seed}-{number}"
        kept.write_bytes(data)
        kept.with_name(kept.name + ".txt").write_text(what)
        return Failure(target.name, number, what, kept)


class _Share:
    """Some of a target's inputs in one process, or, where inputs end it, one after the other."""

    def __init__(self, driver: Driver, target: Target, numbers: range, scratch: Path) -> None:
        self.driver, self.target, self.numbers, self.scratch = driver, target, numbers, scratch
        self.failures: list[Failure] = []
        self.done = 0
        self._at = 0
        self._process = 0
        self._begin()

    def _begin(self) -> None:
        self._progress, (self._reports, writes) = _Progress(), os.pipe()
        self._progress.idle(self.numbers[self._at], 0)
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if self._process:
            os.close(writes)
            return
        status = 1
        try:
            os.close(self._reports)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._work(writes)
            status = 0
        except BaseException:
            os.write(writes, f"-1 {traceback.format_exc()[-4000:]}\0".encode("utf-8", "replace"))
        finally:
            os._exit(status)

    def _work(self, reports: int) -> None:
        target, progress = self.target, self._progress
        scratch = Path(tempfile.mkdtemp(dir=self.scratch))
        seen: set[object] = set()
        with target.opened(scratch) as feed:
            most = _taken_bytes() + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resident = 0
            for done, number in enumerate(self.numbers[self._at :]):
                data = input_of(target, self.driver.seed, number)
                progress.begin(number, done, data)
                try:
                    feed(data)
                except target.documented:
                    pass
                except BaseException as error:
                    if (place := _place_of(error)) not in seen:
                        seen.add(place)
                        said = traceback.format_exc()[-4000:]
                        os.write(reports, f"{number} {said}\0".encode("utf-8", "replace"))
                progress.idle(number, done + 1)
                if done == 200:
                    resident = _resident_bytes()
                if len(seen) >= ENOUGH:
                    return
            if resident and _resident_bytes() > resident + KEPT:
                grown = (_resident_bytes() - resident) >> 20
                os.write(reports, f"{number} {grown} MiB were kept of all inputs\0".encode())

    def goes_on(self) -> bool:
        """Looks after the process; False when there is nothing left to do."""
        if not self._process:
            return False
        number, done, since, data, busy = self._progress.read()
        ended, status = os.waitpid(self._process, os.WNOHANG)
        late = busy and time.monotonic() - since > PATIENCE_S
        if not ended and not late:
            return True
        if not ended:
            os.kill(self._process, signal.SIGKILL)
            _, status = os.waitpid(self._process, 0)
        self._take_reports()
        self.done += done
        self._at += done
        self._process = 0
        if status and busy:
            why = f"took more than {PATIENCE_S:.0f} s" if late else f"ended with {status}"
            self._note(number, data, f"the process {why}")
            self.done += 1
            self._at += 1
        if busy and status and self._at < len(self.numbers) and len(self.failures) < ENOUGH:
            self._begin()
            return True
        return False

    def _take_reports(self) -> None:
        with open(self._reports, "rb") as reports:
            for report in reports.read().split(b"\0")[:-1]:
                number, _, what = report.decode("utf-8", "replace").partition(" ")
                known = int(number) >= 0
                data = input_of(self.target, self.driver.seed, int(number)) if known else b""
                self._note(int(number), data, what)

    def _note(self, number: int, data: bytes, what: str) -> None:
        self.failures.append(self.driver.keep(self.target, number, data, what))


@contextlib.contextmanager
def stateless(feed: Feed) -> Iterator[Feed]:
    """For targets that need nothing put up."""
    yield feed


def plain(
    name: str, make: Input, feed: Feed, *documented: type[BaseException], cost: float = 1
) -> Target:
    """A target that needs nothing put up."""
    return Target(name, make, lambda _: stateless(feed), documented, cost)


def table(outcomes: Sequence[Outcome]) -> str:
    """Target, inputs, failures; their sums below."""
    lines = [f"{'target':<24}{'inputs':>12}{'failures':>10}{'s':>8}"]
    for one in outcomes:
        lines.append(f"{one.target:<24}{one.inputs:>12,}{len(one.failures):>10}{one.wall_s:>8.1f}")
    inputs, failures = sum(o.inputs for o in outcomes), sum(len(o.failures) for o in outcomes)
    wall_s = sum(o.wall_s for o in outcomes)
    lines.append(f"{'all':<24}{inputs:>12,}{failures:>10}{wall_s:>8.1f}")
    return "\n".join(lines)
