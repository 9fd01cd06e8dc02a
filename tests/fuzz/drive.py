"""Run targets on generated inputs in separate processes, and store inputs that fail.

Every input is a function of the seed, the target and its number. The memory of a process and the time of an
input are limited; an input that ends its process is identified from shared memory.
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
#: memory that a process may allocate in addition [bytes]
MEMORY_LIMIT_BYTES = 2 << 30
#: largest growth of the memory over all inputs [bytes]
LEAK_LIMIT_BYTES = 400 << 20
#: time limit of one input [s]
PATIENCE_S = 30.0
#: number of distinct failures after which a process stops
MAX_FAILURES = 5
_HEAD = struct.Struct("<QQdII")
_LONGEST = 4 << 20


@dataclass(frozen=True)
class Target:
    """A reader of inputs: `context` yields a function of an input; exceptions other than `documented` fail.

    `cost` is the time of an input, relative to that of the cheapest target.
    """

    name: str
    make: Input
    context: Callable[[Path], contextlib.AbstractContextManager[Feed]]
    documented: tuple[type[BaseException], ...] = ()
    cost: float = 1.0


@dataclass(frozen=True)
class Failure:
    """An input that failed, the reason, and the file in which it is stored."""

    target: str
    number: int
    reason: str
    file: Path


@dataclass(frozen=True)
class Outcome:
    """Results of the inputs of a target."""

    target: str
    inputs: int
    failures: tuple[Failure, ...]
    wall_s: float


def input_of(target: Target, seed: int, number: int) -> bytes:
    """Generate the input with this number."""
    return target.make(Random(f"{seed}:{target.name}:{number}"))


class _Progress:
    """State of a process, readable after its death: number, completed inputs, start time, and the input."""

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


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _failure_key(error: BaseException) -> object:
    """Return the key of a failure: the type of the error and the line that raised it."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return type(error), last.filename, last.lineno


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Driver:
    """Run targets; store failing inputs in `folder`."""

    def __init__(self, folder: Path, seed: int, processes: int) -> None:
        self.folder, self.seed, self.processes = folder, seed, processes

    def run(self, target: Target, inputs: int) -> Outcome:
        """Run a target on a number of inputs."""
        start_s = time.monotonic()
        parts = [range(k, inputs, self.processes) for k in range(self.processes)]
        with tempfile.TemporaryDirectory(prefix="penstock-fuzz-", dir="/dev/shm") as scratch:
            os.chmod(scratch, 0o711)  # some targets continue as another user
            shares = [_Share(self, target, part, Path(scratch)) for part in parts if part]
            while any(share.advance() for share in shares):
                time.sleep(0.02)
        failures = [f for share in shares for f in share.failures]
        done = sum(share.done for share in shares)
        return Outcome(target.name, done, tuple(failures), time.monotonic() - start_s)

    def store(self, target: Target, number: int, data: bytes, reason: str) -> Failure:
        """Store an input and the reason of its failure."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{target.name}-{self.seed}-{number}"
        file.write_bytes(data)
        file.with_name(file.name + ".txt").write_text(reason)
        return Failure(target.name, number, reason, file)


class _Share:
    """A share of a target's inputs in one process, which is restarted after an input that ends it."""

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
        failure_keys: set[object] = set()
        with target.context(scratch) as feed:
            limit = _virtual_bytes() + MEMORY_LIMIT_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resident = 0
            for done, number in enumerate(self.numbers[self._at :]):
                data = input_of(target, self.driver.seed, number)
                progress.begin(number, done, data)
                try:
                    feed(data)
                except target.documented:
                    pass
                except BaseException as error:
                    if (key := _failure_key(error)) not in failure_keys:
                        failure_keys.add(key)
                        report = traceback.format_exc()[-4000:]
                        os.write(reports, f"{number} {report}\0".encode("utf-8", "replace"))
                progress.idle(number, done + 1)
                if done == 200:
                    resident = _resident_bytes()
                if len(failure_keys) >= MAX_FAILURES:
                    return
            if resident and _resident_bytes() > resident + LEAK_LIMIT_BYTES:
                growth_mib = (_resident_bytes() - resident) >> 20
                os.write(reports, f"{number} {growth_mib} MiB were kept of all inputs\0".encode())

    def advance(self) -> bool:
        """Check and restart the process; False if all inputs are done."""
        if not self._process:
            return False
        number, done, since, data, busy = self._progress.read()
        ended, status = os.waitpid(self._process, os.WNOHANG)
        timed_out = busy and time.monotonic() - since > PATIENCE_S
        if not ended and not timed_out:
            return True
        if not ended:
            os.kill(self._process, signal.SIGKILL)
            _, status = os.waitpid(self._process, 0)
        self._read_reports()
        self.done += done
        self._at += done
        self._process = 0
        if status and busy:
            cause = f"took more than {PATIENCE_S:.0f} s" if timed_out else f"ended with {status}"
            self._add_failure(number, data, f"the process {cause}")
            self.done += 1
            self._at += 1
        if busy and status and self._at < len(self.numbers) and len(self.failures) < MAX_FAILURES:
            self._begin()
            return True
        return False

    def _read_reports(self) -> None:
        with open(self._reports, "rb") as reports:
            for report in reports.read().split(b"\0")[:-1]:
                number, _, reason = report.decode("utf-8", "replace").partition(" ")
                numbered = int(number) >= 0
                data = input_of(self.target, self.driver.seed, int(number)) if numbered else b""
                self._add_failure(int(number), data, reason)

    def _add_failure(self, number: int, data: bytes, reason: str) -> None:
        self.failures.append(self.driver.store(self.target, number, data, reason))


@contextlib.contextmanager
def stateless(feed: Feed) -> Iterator[Feed]:
    """Context of a target without setup."""
    yield feed


def plain(
    name: str, make: Input, feed: Feed, *documented: type[BaseException], cost: float = 1
) -> Target:
    """A target without setup."""
    return Target(name, make, lambda _: stateless(feed), documented, cost)


def table(outcomes: Sequence[Outcome]) -> str:
    """Table of targets, inputs and failures, with their sums."""
    lines = [f"{'target':<24}{'inputs':>12}{'failures':>10}{'s':>8}"]
    for outcome in outcomes:
        lines.append(
            f"{outcome.target:<24}{outcome.inputs:>12,}{len(outcome.failures):>10}{outcome.wall_s:>8.1f}"
        )
    inputs, failures = sum(o.inputs for o in outcomes), sum(len(o.failures) for o in outcomes)
    wall_s = sum(o.wall_s for o in outcomes)
    lines.append(f"{'all':<24}{inputs:>12,}{failures:>10}{wall_s:>8.1f}")
    return "\n".join(lines)
