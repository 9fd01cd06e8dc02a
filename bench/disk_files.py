"""Cost of many files on an emulated disk: renames, memory and descriptors of its server for a million files.

The server has an entry for a file from the kernel's first look-up until the kernel forgets the file. On each
engine (a disk without service times over each transport, a plain directory, and libfuse's `passthrough_ll` if
it can be built) a few files are created and some renamed, then many more are created and as many renamed
again, in rounds that alternate between engines. The growth of a rename is the ratio of its cost with many
files to that with few; on the disk it may be at most twice that of the plain directory. `passthrough_ll` has
a descriptor per file and is measured with fewer files. Planted failure: a rename that also looks at every
entry. Exit status 1 if it does not exceed the limit, or if a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.disk_ceiling import passed_through, passthrough
from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.emulate.disks.server import DiskServer
from penstock.emulate.disks.transport import TRANSPORTS, missing
from penstock.host.journal.journal import Journal

FEW = 1_000
MANY, QUICK = 1_000_000, 30_000
#: files of one directory
PER_DIRECTORY = 10_000
#: renames per round
RENAMES = 300
#: limit of the growth of a rename, relative to that of the plain directory
GROWTH = 2.0
#: limits of memory and descriptors of the server for its entries
MEMORY_BYTES = 256.0
DESCRIPTORS = 1_024
#: libfuse's example has a descriptor per file and searches them one by one
MOST_PASSED_THROUGH = 10_000
DISK, BARE, LIBFUSE, PLANTED = (
    "emulated disk",
    "bare directory",
    "libfuse passthrough_ll",
    "planted",
)


@dataclass
class Engine:
    """A directory with files that are renamed: `pid` of its server, `most` files that it can have."""

    name: str
    place: Path
    pid: int | None = None
    most: int = MANY
    #: called at each rename with the number of entries
    scan: Callable[[int], object] = lambda _: None
    created_files: int = 0
    #: by number of entries: seconds per rename, and for that of a directory
    renames_s: dict[int, list[float]] = field(default_factory=dict)
    directories_s: dict[int, list[float]] = field(default_factory=dict)

    def fill(self, count: int) -> None:
        """Create files until there are `count`, as far as possible."""
        while self.created_files < min(count, self.most):
            directory = self.place / f"d{self.created_files // PER_DIRECTORY}"
            directory.mkdir(exist_ok=True)
            last = min(
                min(count, self.most), (self.created_files // PER_DIRECTORY + 1) * PER_DIRECTORY
            )
            for number in range(self.created_files, last):
                os.close(os.open(directory / f"f{number}", os.O_CREAT | os.O_WRONLY))
            self.created_files = last

    def rename(self, entries: int) -> None:
        """One round: rename some files, then their directory, to new names and back."""
        directory = self.place / "d0"
        paths = [str(directory / f"f{number}") for number in range(RENAMES)]
        for old, new in (("", ".new"), (".new", "")):
            begin = time.perf_counter()
            for path in paths:
                os.rename(path + old, path + new)
                self.scan(entries)
            took_s = time.perf_counter() - begin
            self.renames_s.setdefault(entries, []).append(took_s / RENAMES)
            begin = time.perf_counter()
            os.rename(directory, directory.with_name("moved"))
            os.rename(directory.with_name("moved"), directory)
            self.scan(entries)
            took_s = time.perf_counter() - begin
            self.directories_s.setdefault(entries, []).append(took_s / 2)

    def growth(self, files: bool = True) -> float:
        """Ratio of the cost of a rename with the most files to that with the fewest."""
        times = self.renames_s if files else self.directories_s
        return statistics.median(times[max(times)]) / statistics.median(times[min(times)])


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def scanning(table: bytearray, entries: int) -> int:
    """Work of a planted rename that scans all entries."""
    return table[: 64 * entries].count(b"x")


@contextlib.contextmanager
def engines() -> Iterator[list[Engine]]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-files-"))
        base = Path(directory)
        for name in ("bare", "planted", "behind"):
            (base / name).mkdir()
        listed = [Engine(BARE, base / "bare")]
        reason = missing()
        if reason:
            print(f"no io_uring: {reason}", file=sys.stderr)
        for transport in TRANSPORTS[:1] if reason else TRANSPORTS:
            mount, backing = base / f"{transport}-mount", base / f"{transport}-backing"
            mount.mkdir()
            backing.mkdir()
            server = stack.enter_context(DiskServer(Journal(), base / f"{transport}-state"))
            server.add(
                "files", mount, backing, INSTANT_PROFILE, calibrate=False, transport=transport
            )
            listed.append(Engine(f"{DISK}, {transport}", mount, server.daemon.pid))
        program = passthrough(base)
        if program is None:
            print("no passthrough_ll: libfuse3-dev, cc or pkg-config is missing", file=sys.stderr)
        else:
            mount, pid = stack.enter_context(passed_through(program, base, base / "behind"))
            listed.append(Engine(LIBFUSE, mount, pid, MOST_PASSED_THROUGH))
        table = bytearray(64 * MANY)
        scan = Engine(PLANTED, base / "planted", scan=lambda entries: scanning(table, entries))
        yield [*listed, scan]


def measure(many: int, rounds: int) -> tuple[list[record.Row], dict[str, bool]]:
    gc.disable()
    with engines() as all_engines:
        bare, *_, planted = all_engines
        disks = [engine for engine in all_engines if engine.name.startswith(DISK)]
        before: dict[str, int] = {}
        for entries in (FEW, many):
            for engine in all_engines:
                # only the scan makes the planted rename slower
                engine.fill(FEW if engine is planted else entries)
                if entries == FEW and engine in disks and engine.pid is not None:
                    before[engine.name] = resident_bytes(engine.pid)
            for _ in range(rounds):
                for engine in random.sample(all_engines, len(all_engines)):
                    engine.rename(min(entries, engine.most))
        rows = []
        for engine in all_engines[:-1]:
            for kind, times in (("file", engine.renames_s), ("directory", engine.directories_s)):
                for entries, seconds in sorted(times.items()):
                    case = f"rename of a {kind}, {entries:,} known files"
                    rows.append(
                        record.row(case, engine.name, "cost", [1e6 * s for s in seconds], "us")
                    )
        for disk in disks:
            assert disk.pid is not None
            for kind, files in (("file", True), ("directory", False)):
                relative_growth = disk.growth(files) / bare.growth(files)
                case = f"growth of the rename of a {kind} from {FEW:,} to {many:,} known files"
                grown = record.row(
                    case, disk.name, "beside that of the bare directory", [relative_growth], "times"
                )
                rows.append(record.at_most(grown, GROWTH))
            case = f"{many:,} known files"
            memory = (resident_bytes(disk.pid) - before[disk.name]) / (many - FEW)
            memory_row = record.row(case, disk.name, "server's memory for each", [memory], "B")
            rows.append(record.at_most(memory_row, MEMORY_BYTES))
            opened = record.row(
                case, disk.name, "server's descriptors", [descriptors(disk.pid)], ""
            )
            rows.append(record.at_most(opened, DESCRIPTORS))
        detected = planted.growth() / bare.growth() > GROWTH
    return rows, {"a rename that looks at every known file": detected}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} files; a minute")
    parser.add_argument("--files", type=int, help=f"number of files; default {MANY:,}")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of renames, to a new name and back"
    )
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    many = arguments.files or (QUICK if arguments.quick else MANY)
    if not FEW < many <= MANY:
        parser.error(f"--files: found {many:,}; expected more than {FEW:,} and at most {MANY:,}")
    rows, planted = measure(many, arguments.rounds)
    record.keep(arguments.record, rows, planted)
    return record.report(rows, planted, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
