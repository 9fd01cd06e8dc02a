"""Deduplicating programs on the same versions of a file: time and stored bytes of each.

Each program stores five versions, one after the other, into an empty store in memory (tmpfs), so that no
device limits it. All programs do so in turn, repeatedly. Chunks have 64 KiB on average where the program
allows it, 1 MiB in restic. Nothing is compressed, except by casync, which always does. restic always
encrypts. Programs that are not installed are omitted. Planted: a version that is stored twice takes no
more space. Exit status 1 if penstock stores more than 2 % above the least of the programs with the same
average, if it is slower than the slowest of them, or if the plant is not detected.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.parts.dedup.mounts import mounted
from penstock.parts.dedup.options import MountOptions
from penstock.parts.dedup.versions import CHANGES, VersionPlan, write_versions

MIB = 1 << 20
VERSIONS = 5
AVERAGE = "64 KiB"
SIZES = {AVERAGE: "16KiB,64KiB,256KiB", "1 MiB": "512KiB,1MiB,8MiB"}


@dataclass
class Stored:
    """Results of one program: seconds for all versions, and bytes of the store after them."""

    seconds: list[float] = field(default_factory=list)
    stored_bytes: int = 0
    #: bytes after the last version was stored a second time
    again_bytes: int = 0


def bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def run(argv: list[str], environment: dict[str, str] | None = None) -> None:
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[0]}: {done.stderr.strip()[-300:]}")


class Penstock:
    """A deduplicating mount to which cp writes."""

    def __init__(self, chunking: str) -> None:
        self.chunking = chunking

    def store(self, base: Path, versions: list[Path], result: Stored) -> None:
        store, point = base / "store", base / "mount"
        store.mkdir()
        point.mkdir()
        with mounted(store, point, MountOptions(chunking=self.chunking)):
            began = time.perf_counter()
            for number, version in enumerate(versions):
                run(["cp", str(version), str(point / f"v.{number}")])
            result.seconds.append(time.perf_counter() - began)
            result.stored_bytes = bytes_below(store)
            run(["cp", str(versions[-1]), str(point / "v.99")])
            result.again_bytes = bytes_below(store)


class Program:
    """A program with a command that creates its store, and one that stores a version in it."""

    def __init__(
        self,
        create: list[str],
        backup: Callable[[Path, Path, int], list[str]],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.create, self.backup, self.environment = create, backup, environment or {}

    def store(self, base: Path, versions: list[Path], result: Stored) -> None:
        store = base / "store"
        store.mkdir()
        environment = {
            name: value.replace("STORE", str(store)) for name, value in self.environment.items()
        }
        if self.create:
            run([argument.replace("STORE", str(store)) for argument in self.create], environment)
        began = time.perf_counter()
        for number, version in enumerate(versions):
            run(self.backup(store, version, number), environment)
        result.seconds.append(time.perf_counter() - began)
        result.stored_bytes = bytes_below(store)
        run(self.backup(store, versions[-1], len(versions)), environment)
        result.again_bytes = bytes_below(store)


def programs() -> dict[tuple[str, str], Penstock | Program]:
    """Programs by name and average chunk size."""
    borg = {"BORG_BASE_DIR": "STORE/../borg", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
    restic = {"RESTIC_PASSWORD": "x", "RESTIC_CACHE_DIR": "STORE/../cache"}
    peers = {
        ("restic", "1 MiB"): Program(
            ["restic", "-r", "STORE", "init"],
            lambda store, version, _: [
                *("restic", "-r", str(store), "--compression", "off"),
                *("backup", "--force", str(version)),
            ],
            restic,
        ),
        ("borg", AVERAGE): Program(
            ["borg", "init", "-e", "none", "STORE"],
            lambda store, version, number: [
                *("borg", "create", "-C", "none", "--chunker-params", "buzhash,14,18,16,4095"),
                *(f"{store}::{number}", str(version)),
            ],
            borg,
        ),
        ("casync", AVERAGE): Program(
            [],
            lambda store, version, number: [
                *("casync", "make", "--chunk-size=16384:65536:262144", "--compression=gzip"),
                *(f"--store={store}/chunks", f"{store}/v{number}.caibx", str(version)),
            ],
        ),
        ("zpaq", AVERAGE): Program(
            [],
            lambda store, version, _: [
                *("zpaq", "add", f"{store}/archive.zpaq", str(version)),
                *("-method", "0", "-fragment", "6", "-threads", "1"),
            ],
        ),
    }
    own: dict[tuple[str, str], Penstock | Program] = {
        (f"penstock {name}", average): Penstock(f"{name}:{sizes}")
        for average, sizes in SIZES.items()
        for name in ("seqcdc", "fastcdc")
    }
    return own | {key: program for key, program in peers.items() if shutil.which(key[0])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mib", type=int, default=128, help="size of a version")
    parser.add_argument("--similarity", type=float, default=0.8)
    parser.add_argument("--change", choices=CHANGES, default="unaligned")
    parser.add_argument("--quick", action="store_true", help="versions of 16 MiB, once")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.mib = 1, 16
    rows, planted = [], {}
    with tempfile.TemporaryDirectory(prefix="penstock-peers-", dir="/dev/shm") as scratch:
        base = Path(scratch)
        # changes of 1 MiB each, so that chunks of any size can be equal
        plan = VersionPlan(
            args.mib * MIB, VERSIONS, (args.similarity,) * 2, args.change, chunk_bytes=MIB
        )
        (base / "versions").mkdir()
        versions = [stored.path for stored in write_versions(plan, base / "versions")]
        written = sum(path.stat().st_size for path in versions)
        results = {key: Stored() for key in programs()}
        for _ in range(args.repeats):
            for key, program in programs().items():
                place = base / "place"
                place.mkdir()
                program.store(place, versions, results[key])
                shutil.rmtree(place)
    for (name, average), stored in results.items():
        case = f"average chunk {average}"
        rates = [written / seconds / 1e6 for seconds in stored.seconds]
        rows.append(record.row(case, name, "throughput", rates, "MB/s"))
        share = 100 * stored.stored_bytes / written
        rows.append(record.row(case, name, "stored share of the versions", [share], "%"))
        if name.startswith("penstock"):
            planted[f"{name}, {average}: stored again"] = (
                stored.again_bytes - stored.stored_bytes < written / VERSIONS / 50
            )
    rows += _goals(results)
    about = f"{VERSIONS} versions of {args.mib} MiB, {100 * args.similarity:g} % similar, {args.change}."
    record.keep(args.record, rows, planted, about)
    return record.report(rows, planted, as_json=args.json)


def _goals(results: dict[tuple[str, str], Stored]) -> list[record.Row]:
    """Compare the default chunker with the other programs of its average chunk size."""
    peers = [
        stored
        for (name, average), stored in results.items()
        if average == AVERAGE and not name.startswith("penstock")
    ]
    if not peers:
        return []
    penstock, case = results["penstock seqcdc", AVERAGE], f"average chunk {AVERAGE}"
    bytes_ratio = penstock.stored_bytes / min(stored.stored_bytes for stored in peers)
    # one ratio per repeat: all its programs ran within a short time
    time_ratios = [
        penstock_s / max(peer_s)
        for penstock_s, *peer_s in zip(
            penstock.seconds, *(stored.seconds for stored in peers), strict=True
        )
    ]
    return [
        record.at_most(
            record.row(case, "penstock seqcdc", "bytes relative to the least", [bytes_ratio], ""),
            1.02,
        ),
        record.at_most(
            record.row(case, "penstock seqcdc", "time relative to the slowest", time_ratios, ""),
            1.0,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
