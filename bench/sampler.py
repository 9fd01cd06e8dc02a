"""Cost of the sampler at 1 s and at 100 Hz, compared with collectd, node_exporter and sar at 1 s in one run.

The sampler reads fifty block devices (those of the host, and loop devices attached for the bench, each
written every second) and two hundred processes of a control group individually: first asleep, then while each
of them wakes up every second and writes a line. All engines sample at the same time, in successive windows; a
row is the share of a core that a process used, per window. collectd reads processors, memory, load, network
and disks into CSV; node_exporter is scraped for these once a second; sadc writes its binary file. None of
them reads processes. Planted failures: a sampler that is stopped for half a second, whose missed ticks it
must count, and a process that starts in between, which it must detect. Exit status 1 if a goal is missed or a
planted failure is not detected. An engine that is not installed is omitted and reported.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.storage.loop import attach, detach
from penstock.observe.sampler.monitor import Monitor, MonitorResult
from penstock.spec.application import Application

PROCESSES, DISKS = 200, 50
MOST_AT_1_S, MOST_AT_100_HZ = 0.1, 3.0
SECOND_NS, MIB = 10**9, 2**20
#: wakes up every second, without a further process, and writes a line
AWAKE = ["/bin/bash", "-c", "exec 3<>$0 4>>$1; while :; do read -t 1 -u 3; echo x >&4; done"]
COLLECTD = """
BaseDir "{place}"
PIDFile "{place}/pid"
Interval 1
LoadPlugin cpu
LoadPlugin memory
LoadPlugin load
LoadPlugin interface
LoadPlugin disk
LoadPlugin csv
<Plugin csv>
  DataDir "{place}/csv"
</Plugin>
"""


def cpu_s(pid: int) -> float:
    """Processor time of a process and its threads, to the nanosecond."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(path.read_text().split()[0])
    return total / 1e9


@contextlib.contextmanager
def running(argv: list[str], cwd: Path) -> Iterator[int]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, cwd=cwd, stdout=quiet, stderr=quiet) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def members(group: RunCgroup, place: Path, awake: bool) -> Iterator[None]:
    """Processes of a group, asleep or each active once a second."""
    with contextlib.ExitStack() as stack:
        for number in range(PROCESSES):
            argv = ["/bin/sleep", "3600"]
            if awake:
                pipe = place / f"pipe-{number}"
                os.mkfifo(pipe)
                argv = [*AWAKE, str(pipe), str(place / f"lines-{number}")]
            group.enter(stack.enter_context(running(argv, place)))
            time.sleep(0.002)  # so that they do not wake up at the same moment
        yield


def processes_in(result: MonitorResult) -> int:
    """Number of processes in the samples."""
    samples = result.tables["samples"]
    rows = samples.filter(pc.equal(samples["source"], "process"))
    entities = rows["entity"].unique().to_pylist()
    return len({e.split()[0] for e in entities} - {"all"})


def query_each_second(url: str, ended: threading.Event) -> None:
    due = time.monotonic()
    while not ended.wait(max(0.0, due - time.monotonic())):
        due += 1.0
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            answer.read()


def block_devices() -> int:
    return len(Path("/proc/diskstats").read_text().splitlines())


def written_each_second(devices: list[Path], ended: threading.Event) -> None:
    while not ended.wait(1.0):
        for device in devices:
            with device.open("r+b", buffering=0) as file:
                file.write(bytes(4096))
                os.fsync(file.fileno())


@contextlib.contextmanager
def disks(place: Path, journal: Journal) -> Iterator[int]:
    """Attach and write loop devices until there are enough block devices; yields the total number."""
    ended, devices = threading.Event(), []
    with contextlib.ExitStack() as stack:
        while block_devices() < DISKS:
            image = place / f"disk-{len(devices)}"
            with image.open("wb") as file:
                file.truncate(8 * MIB)
            device = attach(image, journal)
            stack.callback(detach, device, journal)
            devices.append(device.path)
        writing = threading.Thread(target=written_each_second, args=(devices, ended))
        writing.start()
        stack.callback(writing.join)
        stack.callback(ended.set)
        yield block_devices()


@contextlib.contextmanager
def other_engines(place: Path, absent: list[str]) -> Iterator[dict[str, int]]:
    """The pids of the other installed engines."""
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        pids = {}
        collectd = shutil.which("collectd", path=f"{os.environ['PATH']}:/usr/sbin")
        if collectd:
            config = place / "collectd.conf"
            config.write_text(COLLECTD.format(place=place))
            argv = [collectd, "-f", "-C", str(config)]
            pids["collectd"] = stack.enter_context(running(argv, place))
        exporter = shutil.which("prometheus-node-exporter")
        if exporter:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            kinds = ["cpu", "meminfo", "loadavg", "netdev", "diskstats", "pressure"]
            argv = [exporter, f"--web.listen-address=127.0.0.1:{port}"]
            argv += ["--collector.disable-defaults", *(f"--collector.{kind}" for kind in kinds)]
            pids["node_exporter"] = stack.enter_context(running(argv, place))
            url = f"http://127.0.0.1:{port}/metrics"
            client = threading.Thread(target=query_each_second, args=(url, ended))
            client.start()
            stack.callback(client.join)
        sadc = Path("/usr/lib/sysstat/sadc")
        if sadc.exists():
            argv = [str(sadc), "-S", "DISK", "1", str(place / "sar")]
            pids["sar (sadc)"] = stack.enter_context(running(argv, place))
        absent += sorted({"collectd", "node_exporter", "sar (sadc)"} - set(pids))
        stack.callback(ended.set)
        yield pids


def windows(pids: dict[str, int], number: int, seconds: float) -> dict[str, list[float]]:
    """Share of a core [%] of each process, per window."""
    shares: dict[str, list[float]] = {name: [] for name in pids}
    for _ in range(number):
        before, began = {n: cpu_s(p) for n, p in pids.items()}, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        for name, pid in pids.items():
            shares[name].append(100 * (cpu_s(pid) - before[name]) / took)
    return shares


def missed_when_stopped(monitor: Monitor, place: Path, around_s: float, stopped_s: float) -> int:
    """Planted failure: number of missed samples that a sampler reports after being stopped for some time."""
    monitor.start(None, None, place)
    assert monitor._daemon is not None
    time.sleep(around_s)
    os.kill(monitor._daemon.pid, signal.SIGSTOP)
    time.sleep(stopped_s)
    os.kill(monitor._daemon.pid, signal.SIGCONT)
    time.sleep(around_s)
    return int(monitor.stop().receipt["missed"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="windows of 5 s instead of 60")
    parser.add_argument("--alone", action="store_true", help="without the other engines")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    seconds, number = (5.0, 4) if arguments.quick else (60.0, 5)
    absent: list[str] = []
    rows, planted = [], {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-sampler-") as scratch,
        contextlib.ExitStack() as stack,
    ):
        place = Path(scratch)
        os.environ["PENSTOCK_STATE"] = str(place / "state")
        journal, application = Journal(), Application(processes=True)
        number_of_disks = stack.enter_context(disks(place, journal))
        group = stack.enter_context(create_run_cgroup("bench", None, journal))
        case = f"{number_of_disks} block devices and {PROCESSES} processes"
        monitor = stack.enter_context(Monitor(journal, place, SECOND_NS, application=application))
        for awake in (False, True):
            with members(group, place, awake), contextlib.ExitStack() as window_stack:
                of = f"{case}, {'each at work' if awake else 'asleep'}, every second"
                monitor.start(group, None, place)
                assert monitor._daemon is not None
                pids = {"penstock": monitor._daemon.pid}
                if not arguments.alone and not awake:
                    pids |= window_stack.enter_context(other_engines(place, absent))
                time.sleep(11.0)  # skip the first samples, whose interval is shorter
                for name, shares in windows(pids, number, seconds).items():
                    row = record.row(of, name, "processor time", shares, "% of a core")
                    rows.append(record.at_most(row, MOST_AT_1_S) if name == "penstock" else row)
                if awake:
                    late = window_stack.enter_context(running(["/bin/sleep", "3600"], place))
                    group.enter(late)
                    time.sleep(2.5)
                result = monitor.stop()
            missed, seen = [int(result.receipt["missed"])], processes_in(result)
            row = record.row(of, "penstock", "ticks missed", missed, "")
            rows.append(record.at_most(row, 0))
            rows.append(record.share(of, "penstock", "processes read", min(seen, 200), PROCESSES))
            ns = (
                result.receipt["sources"]["process"]["ns"]
                / result.receipt["sources"]["process"]["readings"]
            )
            rows.append(
                record.row(of, "penstock", "one reading of all processes", [ns / 1e3], "us")
            )
        planted["a process that began meanwhile"] = seen == PROCESSES + 1
        place = place / "state"
        fast = stack.enter_context(
            Monitor(journal, place, SECOND_NS // 100, application=application)
        )
        with members(group, place, True):
            fast.start(group, None, place)
            assert fast._daemon is not None
            shares = windows({"penstock": fast._daemon.pid}, number, seconds)["penstock"]
            result = fast.stop()
        receipt = result.receipt
        case = f"{case}, each at work, 100 times a second"
        row = record.row(
            case, "penstock", f"ticks missed of {receipt['expected']}", [receipt["missed"]], ""
        )
        rows.append(record.at_most(row, 0))
        seen = processes_in(result)
        rows.append(record.share(case, "penstock", "processes read", min(seen, 200), PROCESSES))
        late_ms = receipt["late_p99_ns"] / 1e6
        rows.append(record.row(case, "penstock", "late, 99th percentile", [late_ms], "ms"))
        row = record.row(case, "penstock", "processor time", shares, "% of a core")
        rows.append(record.at_most(row, MOST_AT_100_HZ))
        stopped = missed_when_stopped(fast, place, 0.5, 0.5)
        planted["half a second in which the sampler was stopped"] = 40 <= stopped <= 100
    for name in absent:
        print(f"not run: {name} is not installed", file=sys.stderr)
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
