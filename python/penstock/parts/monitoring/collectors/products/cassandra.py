"""Statistics of a Cassandra node, as its nodetool prints them (`workload/metrics/cassandra.py`).

Settings: `command` (["nodetool"]; with its options, as ["nodetool", "-h", "db1", "-p", "7199"]), `statistics`
(["tablestats", "tpstats"]; also compactionstats, proxyhistograms), `keyspaces` (all), `labels`, `interval_s`
(10), `timeout_s`. A number becomes a point of `cassandra_NAME` with the label `entity`: the node, a keyspace,
KEYSPACE.TABLE, a thread pool. Poll k is due at t0 + k x interval; a missed poll is counted, not made up for.
A nodetool that exceeds `timeout_s` is killed with its children. Timeouts, failures and invalid output are
counted as `failed`, and `cassandra_success` (0 or 1) is stored for each poll and statistic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any

from penstock.errors import BadInput, PenstockError, printable
from penstock.parts.monitoring.collectors.collector import (
    FailedError,
    Intake,
    Receipt,
    due,
    ended,
    interval_of,
    only,
    setting,
    timeout_of,
)
from penstock.parts.monitoring.experiments.points import (
    Account,
    Closed,
    Sink,
    canonical_labels,
    points,
)
from penstock.workload.metrics.cassandra import STATISTICS, Value, values_of

MOST_KEYSPACES = 100
MOST_BYTES = 16 << 20
#: interval at which the size of the output of nodetool is checked [s]
_LOOK_S = 0.1


class CassandraPoller:
    """Polls one node."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        allowed = ("command", "statistics", "keyspaces", "labels", "interval_s", "timeout_s")
        only(name, settings, allowed)
        self.name = name
        self._command = _texts(name, settings, "command", ["nodetool"])
        self._statistics = _texts(name, settings, "statistics", ["tablestats", "tpstats"])
        for statistic in self._statistics:
            if statistic not in STATISTICS:
                raise BadInput(
                    f"{name}: found statistic {statistic!r}; expected some of {', '.join(STATISTICS)}"
                )
        self._keyspaces = _texts(name, settings, "keyspaces", [])
        self._interval_s = interval_of(name, settings, 10.0)
        self._timeout_s = timeout_of(name, settings, min(30.0, self._interval_s))
        self._labels = setting(name, settings, "labels", Mapping, {})

    async def start(self, sink: Sink) -> None:
        self.intake = Intake(self.name, sink)
        #: by metric and labels: statistic, its successful polls before, time from which points are due
        self._seen: dict[tuple[str, str], tuple[str, int, int | None]] = {}
        self._succeeded: Counter[str] = Counter()
        #: completed polls by statistic; `stop` may have cut the last one
        self._polled: Counter[str] = Counter()
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> Receipt:
        await ended(self._task)
        interval_ns, missed = round(self._interval_s * 1e9), self.intake.receipt.counted["missed"]
        accounts = [
            Account(
                metric,
                labels,
                interval_ns,
                expected=self._polled[statistic] + missed - before,
                since_ns=since_ns,
            )
            for (metric, labels), (statistic, before, since_ns) in self._seen.items()
        ]
        with contextlib.suppress(Closed):
            await asyncio.to_thread(self.intake.ends, accounts)
        return self.intake.receipt

    async def _poll(self) -> None:
        receipt = self.intake.receipt
        async for utc_ns in due(self._interval_s, self.intake):
            for statistic in self._statistics:
                values: list[Value] = []
                try:
                    values = values_of(statistic, await self._run(statistic))
                except (FailedError, ValueError) as error:
                    receipt.counted["failed"] += 1
                    message = (
                        f"{statistic}: {'' if isinstance(error, FailedError) else 'found '}{error}"
                    )
                    if message not in receipt.errors:
                        receipt.add_error(message)
                try:
                    await asyncio.to_thread(self._store, utc_ns, statistic, values)
                except Closed as error:
                    receipt.errors.append(str(error))
                    return
                except PenstockError as error:
                    receipt.failed(str(error))

    async def _run(self, statistic: str) -> str:
        """Output of nodetool. On any error or cancellation, nodetool and its children are killed."""
        argv = [*self._command, *STATISTICS[statistic][0]]
        if statistic == "tablestats":
            argv += self._keyspaces
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = await _started(argv, out, err)
            except OSError as error:
                raise FailedError(f"{argv[0]}: {error.strerror}") from None
            try:
                async with asyncio.timeout(self._timeout_s):
                    status = await _ended(process, (out, err))
            except TimeoutError:
                await _end(process)
                raise FailedError(f"nodetool did not end in {self._timeout_s:g} s") from None
            except BaseException:
                await _end(process)
                raise
            if status != 0:
                lines = [line for line in _text(err, 4096).splitlines() if line.strip()]
                raise FailedError(f"status {status}: {printable((lines or [''])[0][:200])}")
            return _text(out, MOST_BYTES)

    def _store(self, utc_ns: int, statistic: str, values: list[Value]) -> None:
        rows = [
            (f"cassandra_{v.metric}", canonical_labels({**self._labels, "entity": v.entity}), v)
            for v in values
        ]
        success = ("cassandra_success", canonical_labels({**self._labels, "statistic": statistic}))
        begun_ns, before = self.intake.begun_ns, self._succeeded[statistic]
        self._seen.setdefault(success, (statistic, 0, begun_ns))
        for name in [(metric, labels) for metric, labels, _ in rows]:
            self._seen.setdefault(name, (statistic, before, utc_ns if before else begun_ns))
        self._succeeded[statistic] += bool(values)
        self._polled[statistic] += 1
        table = points(
            metric=[success[0], *(metric for metric, _, _ in rows)],
            labels=[success[1], *(labels for _, labels, _ in rows)],
            unit=["", *("" if v.unit == "1" else v.unit for _, _, v in rows)],
            utc_ns=[utc_ns] * (len(rows) + 1),
            float=[float(bool(values)), *(v.value for _, _, v in rows)],
        )
        self.intake.keep(table)


async def _started(argv: list[str], out: IO[bytes], err: IO[bytes]) -> asyncio.subprocess.Process:
    """Start a program in a session of its own.

    On cancellation, asyncio kills the program alone and not its children.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await _end(await starting)
        raise


async def _ended(process: asyncio.subprocess.Process, printed: tuple[IO[bytes], ...]) -> int:
    """Wait for the exit status. FailedError if the output is too large."""
    ending = asyncio.ensure_future(process.wait())
    try:
        while not (await asyncio.wait({ending}, timeout=_LOOK_S))[0]:
            if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in printed):
                raise FailedError(f"nodetool printed more than {MOST_BYTES} bytes")
        return ending.result()
    finally:
        ending.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process and its children: nodetool is a script that starts Java."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()


def _text(file: IO[bytes], most: int) -> str:
    file.seek(0)
    content = file.read(most + 1)
    if len(content) > MOST_BYTES:
        raise FailedError(f"nodetool printed more than {MOST_BYTES} bytes")
    return content[:most].decode("utf-8", "replace")


def _texts(name: str, settings: Mapping[str, Any], key: str, default: list[str]) -> list[str]:
    texts = setting(name, settings, key, list, default)
    right = all(isinstance(t, str) and t and "\0" not in t for t in texts)
    if not right or len(texts) > MOST_KEYSPACES or (default and not texts):
        raise BadInput(
            f"{name}: found {key} {printable(repr(texts)[:80])}; expected a list of texts"
        )
    return list(dict.fromkeys(texts)) if key != "command" else list(texts)
