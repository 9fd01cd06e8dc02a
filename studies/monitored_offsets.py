"""Offsets by sequence: every request of a random read, stored locally and pushed at the end.

`studies/monitored_offsets.py` reads a file of 140 MiB at random with fio (4 KiB, direct, one request at a
time) under penstock's tracer, pushes the offsets at the end to `penstock serve` by their number, and compares
them with fio's own log. Further cases: the same read while an exporter of the position is scraped each
second, a sequential read as control, a million pushed points, and a server that is killed in between.
`--quick`: 28 MiB. Needs root and fio. The published case is that of MonEx (Saif and others, 2019): a cloud
without a shape, of which 10.7 % of the blocks are missing without any notice.

Planted failures, each of which must be reported: a lost request, two exchanged ones, scraped positions in
place of the offsets, a mark that is sent in between. Exit status 3 if a goal is missed, undecided or not
measured, 1 if something failed or a planted failure is not detected.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.errors import PenstockError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from monitored import lines, offsets  # noqa: E402
from monitored import server as served  # noqa: E402
from monitored.server import Server, dies_with_us  # noqa: E402
from monitored.wire import Packets  # noqa: E402

from bench import record  # noqa: E402

BLOCK = 4096
MANY = 1_000_000
ABOUT = (
    "The truth is fio's log of each request. Offsets are pushed by `penstock monitor push` once fio has "
    "ended; packets are those of the server's port on loopback while fio ran."
)


def fio_argv(file: Path, size: int, pattern: str, log: Path) -> list[str]:
    """Arguments of fio: N direct requests of 4 KiB, one at a time, each in its log."""
    options = {
        "name": "offsets",
        "filename": str(file),
        "rw": pattern,
        "bs": str(BLOCK),
        "size": str(size),
        "direct": "1",
        "ioengine": "sync",
        "iodepth": "1",
        "randseed": "7",
        "write_lat_log": str(log),
        "log_offset": "1",
        "output": str(log.with_suffix(".out")),
    }
    return ["fio", *(f"--{k}={v}" for k, v in options.items())]


def laid_out(file: Path, size: int) -> None:
    """A file of random bytes, on the disk."""
    with file.open("wb") as out:
        for _ in range(size >> 20):
            out.write(os.urandom(1 << 20))
        out.flush()
        os.fsync(out.fileno())


class Read:
    """One read by fio under the tracer, its offsets in an experiment; its costs, and packets in that time."""

    def __init__(self, server: Server, place: Path, file: Path, name: str, pattern: str) -> None:
        self.server, self.name = server, name
        self.bundle, self.log = place / name, place / f"{name}.log"
        size = file.stat().st_size
        server.penstock("monitor", "start", name)
        with Packets("lo", server.port) as packets:
            began = time.monotonic()
            argv = fio_argv(file, size, pattern, self.log)
            penstock.trace(argv, self.bundle, mode="trace", quiet=True)
            self.seconds = time.monotonic() - began
            self.packets = packets.count()
        began = time.monotonic()
        pushed = server.penstock(
            *("monitor", "push", name, self.bundle, "--file", file.name, "--json"),
            *("--where", "op=read", "--order", "t_ns", "--column", "offset_bytes"),
            *("--metric", "offset", "--unit", "B"),
        )
        self.pushed_s = time.monotonic() - began
        self.pushed = int(json.loads(pushed)["points"])
        server.penstock("monitor", "stop", name)
        frame = server.frame(name, "offset")
        self.index = frame.index.to_numpy(np.int64)
        self.stored = frame.iloc[:, 0].to_numpy(np.int64)
        self.truth = offsets.of_fio_log(next(place.glob(f"{name}.log_lat.*.log")))


def scraped(out: Path, file: Path) -> tuple[offsets.Offsets, float]:
    """The same read while its position is scraped each second: stored values, and duration."""
    exporter = subprocess.Popen(
        [sys.executable, str(HERE / "monitored" / "position.py"), str(file.resolve())],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dies_with_us,
    )
    try:
        assert exporter.stdout is not None
        port = int(exporter.stdout.readline())
        pull = {"type": "scrape", "targets": [f"http://127.0.0.1:{port}/metrics"]}
        with Server(out / "scraping", {"collectors": {"position": pull}}) as server:
            server.penstock("monitor", "start", "scraped")
            log = out / "scraped.log"
            fio = fio_argv(file, file.stat().st_size, "randread", log)
            subprocess.run(fio, check=True, capture_output=True)
            server.penstock("monitor", "stop", "scraped")
            experiment = server.experiment("scraped")
            positions = np.array([], np.int64)
            if any(r["metric"] == "position_bytes" for r in server.series("scraped")):
                frame = server.frame("scraped", "position_bytes")
                positions = frame.iloc[:, 0].to_numpy(np.int64) - BLOCK
            return positions, (experiment["end_ns"] - experiment["start_ns"]) / 1e9
    finally:
        exporter.kill()
        exporter.wait()


def many(server: Server, place: Path, number: int) -> tuple[float, list[str]]:
    """A million pushed points: duration, and faults."""
    values = np.random.default_rng(1).integers(0, 1 << 40, number) * BLOCK
    file = place / "many.parquet"
    pq.write_table(pa.table({"offset": values}), file)
    server.penstock("monitor", "start", "many")
    began = time.monotonic()
    server.penstock("monitor", "push", "many", file, "-c", "offset", "--unit", "B")
    took_s = time.monotonic() - began
    server.penstock("monitor", "stop", "many")
    frame = server.frame("many", "offset")
    return took_s, offsets.wrong(frame.iloc[:, 0].to_numpy(), frame.index.to_numpy(), values)


def killed(server: Server, place: Path, number: int) -> tuple[int, list[str]]:
    """Push to a server that is killed: acknowledged batches before the kill, and faults."""
    file = place / "many.parquet"
    values = pq.read_table(file)["offset"].to_numpy()
    server.penstock("monitor", "start", "killed")
    push = ["monitor", "push", "killed", str(file), "-c", "offset", "--batch", str(number // 100)]
    environment = {**server.environment, "PENSTOCK_SERVER": server.url}
    pushing = served.popen(
        [sys.executable, "-m", "penstock", *push], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        live = server.place / "state" / "experiments"
        while sum(p.stat().st_size for p in live.rglob("*.batches")) < number * 2:
            if pushing.poll() is not None:
                raise PenstockError("the push ended before the server could be killed")
            time.sleep(0.002)
        server.end(signal.SIGKILL)
        before = server_less(live)
        server.start()
        if pushing.wait(300):
            raise PenstockError(f"the push ended with status {pushing.returncode}")
    finally:
        if pushing.poll() is None:
            pushing.kill()
            pushing.wait()
    # push everything once more, from the start
    server.penstock(*push)
    server.penstock("monitor", "stop", "killed")
    frame = server.frame("killed", "offset")
    (row,) = server.series("killed")
    faults = offsets.wrong(frame.iloc[:, 0].to_numpy(), frame.index.to_numpy(), values)
    if row["duplicate"] or row["verdict"] != "complete":
        faults.append(f"{row['duplicate']} doubled, {row['verdict']}")
    return before, faults


def server_less(live: Path) -> int:
    """Bytes of batches on the disk while no server runs."""
    return sum(p.stat().st_size for p in live.rglob("*.batches"))


def add_read_lines(
    random: Read,
    control: Read,
    rows: list[record.Row],
    scrape: tuple[offsets.Offsets, float],
    *,
    expected: int,
) -> None:
    """Lines of the reads."""
    case = "random read"
    differences = offsets.wrong(random.stored, random.index, random.truth)
    rows += [
        lines.line(
            case, "requests stored", len(random.stored), "", len(random.stored) == expected,
            f"{expected:,}, as fio's log has",
        ),
        record.claim(
            case, "order and index", "; ".join(differences) or "as fio's log, 0, 1, 2, …",
            "as fio's log; contiguous", not differences,
        ),
    ]  # fmt: skip
    r = offsets.lag_one(random.stored)
    n = len(random.stored) - 1
    share = offsets.successors(random.stored, BLOCK)
    sequential = offsets.successors(control.stored, BLOCK)
    control_faults = offsets.wrong(control.stored, control.index, control.truth)
    rows += [
        lines.interval(case, "correlation with the next", r, "", n, "|r| < 0.05", abs(r[0]) < 0.05),
        lines.line(case, "contiguous successors", 100 * share, "%", share < 0.01, "below 1 %"),
        lines.line(
            "sequential control", "contiguous successors", 100 * sequential, "%",
            sequential >= 0.99 and not control_faults, "at least 99 %",
        ),
        lines.line(
            "scraped at 1 s", "points kept", len(scrape[0]), "", 0 < len(scrape[0]) <= scrape[1] + 1,
            f"at most its {scrape[1]:.1f} s and 1",
        ),
        lines.line(
            case, "packets of the server while fio ran", random.packets, "", random.packets == 0, "0"
        ),
    ]  # fmt: skip


def study(out: Path, size: int, number: int = MANY) -> tuple[list[record.Row], dict[str, bool]]:
    """All lines for `size` bytes and `number` points, and whether planted failures were detected."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(mode=0o700, parents=True)
    file = out / "file"
    laid_out(file, size)
    rows: list[record.Row] = []
    with Server(out / "server") as server:
        random = Read(server, out, file, "random", "randread")
        control = Read(server, out, file, "sequential", "read")
        scrape = scraped(out, file)
        add_read_lines(random, control, rows, scrape, expected=size // BLOCK)
        took_s, faults = many(server, out, number)
        rows.append(
            lines.line(
                f"{number:,} points",
                "pushed in",
                took_s,
                "s",
                took_s < 10 and not faults,
                "below 10 s",
            )
        )
        before, faults = killed(server, out, number)
        evidence = "; ".join(faults) or f"all stored once, {before:,} bytes of them before the kill"
        rows.append(
            record.claim(
                "server killed",
                "acknowledged points",
                evidence,
                "none lost, none doubled",
                not faults,
            )
        )
        figure(server, out)
        server.penstock("monitor", "start", "marked")
        with Packets("lo", server.port) as packets:
            server.penstock("monitor", "mark", "marked", "--note", "meanwhile")
            sent = packets.count()
        server.penstock("monitor", "stop", "marked")
    lost = np.delete(random.stored, 17)
    exchanged = random.stored.copy()
    exchanged[[3, 4]] = exchanged[[4, 3]]
    planted = {
        "a request that was lost": bool(offsets.wrong(lost, random.index[:-1], random.truth)),
        "two requests exchanged": bool(offsets.wrong(exchanged, random.index, random.truth)),
        "the scraped positions for the offsets": bool(
            offsets.wrong(scrape[0], np.arange(len(scrape[0])), random.truth)
        ),
        "a mark that was sent meanwhile": sent > 0,
    }
    return rows, planted


def figure(server: Server, out: Path) -> None:
    """Offsets by the number of their request, as from the server."""
    address = f"{server.url}/exp/random/data?metric=offset"
    server.penstock("plot", address, "sequence", "--unit", "offset=B", "-o", out / "offsets.svg")
    server.penstock("plot", out / "offsets.json", "-o", out / "offsets.png")


def sized(out: Path, quick: bool) -> tuple[list[record.Row], dict[str, bool]]:
    """The study in one of its two sizes."""
    return study(out, (28 if quick else 140) << 20)


if __name__ == "__main__":
    sys.exit(lines.program("monitored-offsets", __doc__, ABOUT, "28 MiB", sized))
