"""What the sampler costs at 1 s and at 100 Hz, beside collectd, node_exporter and sar at 1 s, in one run.

Two hundred processes sleep on the host meanwhile, all of them real, and fifty block devices are read: those
of the host, and loop devices that are attached for it, each of which is written every second. All engines
sample at the same time, in windows one after the other; a row is the share of a core that a process had of
a window, in each of them. collectd reads processors, memory, load, network and disks into CSV;
node_exporter is asked for these once a second; sadc writes its binary file. Planted: a sampler that is
stopped for half a second, whose missed ticks it has to count. Status 1 where a bar is missed or the plant
is not found. An engine that is not installed is left out and said.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.host.journal import Journal
from penstock.host.loop import attach, detach
from penstock.observe.monitor.monitor import Monitor

PROCESSES, DISKS = 200, 50
MOST_AT_1_S, MOST_AT_100_HZ = 0.1, 3.0
SECOND_NS, MIB = 10**9, 2**20
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
def running(words: list[str], cwd: Path) -> Iterator[int]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=cwd, stdout=quiet, stderr=quiet) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def asked_each_second(url: str, ended: threading.Event) -> None:
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
    """As many block devices as there must be, at the least, those that were lacking at work; their number."""
    ended, made = threading.Event(), []
    with contextlib.ExitStack() as stack:
        while block_devices() < DISKS:
            image = place / f"disk-{len(made)}"
            with image.open("wb") as file:
                file.truncate(8 * MIB)
            device = attach(image, journal)
            stack.callback(detach, device, journal)
            made.append(device.path)
        writing = threading.Thread(target=written_each_second, args=(made, ended))
        writing.start()
        stack.callback(writing.join)
        stack.callback(ended.set)
        yield block_devices()


@contextlib.contextmanager
def others(place: Path, left_out: list[str]) -> Iterator[dict[str, int]]:
    """The pids of the other engines that are installed, at work."""
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        found = {}
        collectd = shutil.which("collectd", path=f"{os.environ['PATH']}:/usr/sbin")
        if collectd:
            config = place / "collectd.conf"
            config.write_text(COLLECTD.format(place=place))
            words = [collectd, "-f", "-C", str(config)]
            found["collectd"] = stack.enter_context(running(words, place))
        exporter = shutil.which("prometheus-node-exporter")
        if exporter:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            kinds = ["cpu", "meminfo", "loadavg", "netdev", "diskstats", "pressure"]
            words = [exporter, f"--web.listen-address=127.0.0.1:{port}"]
            words += ["--collector.disable-defaults", *(f"--collector.{kind}" for kind in kinds)]
            found["node_exporter"] = stack.enter_context(running(words, place))
            url = f"http://127.0.0.1:{port}/metrics"
            asking = threading.Thread(target=asked_each_second, args=(url, ended))
            asking.start()
            stack.callback(asking.join)
        sadc = Path("/usr/lib/sysstat/sadc")
        if sadc.exists():
            words = [str(sadc), "-S", "DISK", "1", str(place / "sar")]
            found["sar (sadc)"] = stack.enter_context(running(words, place))
        left_out += sorted({"collectd", "node_exporter", "sar (sadc)"} - set(found))
        stack.callback(ended.set)
        yield found


def windows(pids: dict[str, int], number: int, seconds: float) -> dict[str, list[float]]:
    """Of each process the share of a core [%] in each window."""
    shares: dict[str, list[float]] = {name: [] for name in pids}
    for _ in range(number):
        before, began = {n: cpu_s(p) for n, p in pids.items()}, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        for name, pid in pids.items():
            shares[name].append(100 * (cpu_s(pid) - before[name]) / took)
    return shares


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="windows of 5 s instead of 60")
    parser.add_argument("--alone", action="store_true", help="without the other engines")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    asked = parser.parse_args()
    seconds, number = (5.0, 4) if asked.quick else (60.0, 5)
    left_out: list[str] = []
    rows, planted = [], {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-sampler-") as scratch,
        contextlib.ExitStack() as stack,
    ):
        place = Path(scratch)
        os.environ["PENSTOCK_STATE"] = str(place / "state")
        for _ in range(PROCESSES):
            stack.enter_context(running(["/bin/sleep", "3600"], place))
        number_of_disks = stack.enter_context(disks(place, Journal()))
        case = f"{number_of_disks} block devices and {PROCESSES} processes, all real"
        monitor = stack.enter_context(Monitor(Journal(), place, SECOND_NS))
        monitor.start(None, None, place)
        assert monitor._daemon is not None
        pids = {"penstock": monitor._daemon.pid}
        if not asked.alone:
            pids |= stack.enter_context(others(place, left_out))
        time.sleep(2.0)  # the first samples of all are past
        for name, shares in windows(pids, number, seconds).items():
            made = record.row(
                f"{case}, every second", name, "processor time", shares, "% of a core"
            )
            rows.append(record.at_most(made, MOST_AT_1_S) if name == "penstock" else made)
        receipt = monitor.stop().receipt
        missed = [int(receipt["missed"])]
        made = record.row(f"{case}, every second", "penstock", "ticks missed", missed, "")
        rows.append(record.at_most(made, 0))
        fast = stack.enter_context(Monitor(Journal(), place / "state", SECOND_NS // 100))
        fast.start(None, None, place / "state")
        assert fast._daemon is not None
        shares = windows({"penstock": fast._daemon.pid}, number, seconds)["penstock"]
        receipt = fast.stop().receipt
        case = f"{case}, 100 times a second"
        made = record.row(
            case, "penstock", f"ticks missed of {receipt['expected']}", [receipt["missed"]], ""
        )
        rows.append(record.at_most(made, 0))
        late_ms = receipt["late_p99_ns"] / 1e6
        rows.append(record.row(case, "penstock", "late, 99th percentile", [late_ms], "ms"))
        made = record.row(case, "penstock", "processor time", shares, "% of a core")
        rows.append(record.at_most(made, MOST_AT_100_HZ))
        fast.start(None, None, place / "state")
        time.sleep(0.5)
        os.kill(fast._daemon.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(fast._daemon.pid, signal.SIGCONT)
        time.sleep(0.5)
        stopped = int(fast.stop().receipt["missed"])
        planted["half a second in which the sampler was stopped"] = 40 <= stopped <= 100
    for name in left_out:
        print(f"{name} is not installed, and left out", file=sys.stderr)
    status = record.told(rows, planted, as_json=asked.json)
    record.keep(asked.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
