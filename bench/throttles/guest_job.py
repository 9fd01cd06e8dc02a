"""Run inside the guest: plain io.max, set directly, and fio under it. Print fio's JSON of each round.

Arguments: CASES.json (case → limits, arguments of fio) ROUNDS.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.emulate.backends import Place
from penstock.emulate.backends.cgroup2 import IoMax
from penstock.emulate.backends.image import put_up
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.spec.cluster import DiskSpec


def main() -> None:
    """Print one line per round and case."""
    cases, rounds = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    base = Path("/mnt/t")
    for name in ("m", "f"):
        (base / name).mkdir(parents=True)
    journal = Journal(base / "journal")
    disk = put_up(DiskSpec("d", size_bytes=64 << 20), Place("d", base / "m", base / "f"), journal)
    (disk.mount / "file").write_bytes(bytes(16 << 20))
    for _ in range(rounds):
        for case, (limits, argv) in cases.items():
            with create_run_cgroup("max", None, journal) as group:
                throttle = IoMax(group.paths["blkio"], disk.device)
                for limit, value in limits.items():
                    throttle.set(limit, round(value))
                line = [w.replace("{file}", str(disk.mount / "file")) for w in argv]
                launch(line, group, base / "fio.json")
            output = json.loads((base / "fio.json").read_text())
            print("ROUND " + json.dumps([case, output]))
    disk.down()


main()
