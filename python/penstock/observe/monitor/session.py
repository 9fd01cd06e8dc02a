"""One monitored command, from its control group to its bundle."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.host.cgroup import create_run_cgroup
from penstock.host.clocks import clock_row
from penstock.host.facts import host_facts
from penstock.host.journal import Journal
from penstock.host.launch import Finished, launch
from penstock.observe.monitor.monitor import Monitor, MonitorResult


@dataclass(frozen=True)
class Monitored:
    """A monitored command: how it ended, what was sampled, where its bundle is."""

    words: list[str]
    finished: Finished
    result: MonitorResult
    bundle: Path | None


def monitor_command(
    words: list[str], interval_ns: int, output: Path | None, *, quiet: bool = False
) -> Monitored:
    """Runs a command in a control group of its own and samples it and the host meanwhile.

    With `quiet` the command's stdout goes to stderr. Raises PenstockError if sampling is not possible.
    """
    journal = Journal()
    with contextlib.ExitStack() as stack:
        bundle = None
        if output is not None:
            bundle = Bundle.create(output, {"command": words, "run_id": "r001"})
            stack.callback(_discard_unless_finished, bundle, output)
        where = bundle.path if bundle is not None else _scratch(stack)
        monitor = stack.enter_context(Monitor(journal, None, interval_ns))
        group = stack.enter_context(create_run_cgroup("monitor", None, journal))
        clocks = [clock_row("start")]
        monitor.start(group, {}, where)
        finished = launch(words, group, stdout=sys.stderr.fileno() if quiet else None, stdin=None)
        result = monitor.stop()
        clocks.append(clock_row("end"))
        made = None
        if bundle is not None:
            made = _finish(bundle, words, finished, result, clocks)
    return Monitored(words, finished, result, made)


def _scratch(stack: contextlib.ExitStack) -> Path:
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-monitor-")))


def _discard_unless_finished(bundle: Bundle, output: Path) -> None:
    if not (output / "manifest.json").exists():
        bundle.discard()


def _finish(
    bundle: Bundle,
    words: list[str],
    finished: Finished,
    result: MonitorResult,
    clocks: list[dict[str, int | str]],
) -> Path:
    for name, table in result.tables.items():
        bundle.write_table(name, table)
    bundle.write_table("clocks", pa.Table.from_pylist(clocks))
    phase = {"phase_id": "workload", "start_ns": finished.start_ns, "end_ns": finished.end_ns}
    bundle.write_table("phases", pa.Table.from_pylist([phase]))
    facts: dict[str, Any] = {
        "command": words,
        "host": host_facts(),
        "state": "finished" if finished.exit_status == 0 else "failed",
        "exit_status": finished.exit_status,
        "losses": {"monitor": result.receipt["missed"]},
        "receipts": {"monitor": result.receipt},
        "responses": {"wall_s": {"value": finished.wall_s, "unit": "s"}},
        "times": {"start_ns": finished.start_ns, "end_ns": finished.end_ns},
    }
    bundle.manifest.update(facts)
    return bundle.finish()
