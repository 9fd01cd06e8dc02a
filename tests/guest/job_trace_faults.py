"""Inside the guest: faults of mapped files on a kernel whose functions can be hooked."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

from penstock.host.daemon import start_daemon
from penstock.host.journal import Journal

EVENT = struct.Struct("<QqQIiIIIBBH")
FAULT_READ, FAULT_AROUND, FAULT_WRITE = 13, 14, 45
PAGES = 4096

PROGRAM = """
import json, mmap, os, random, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(fd, 0)
touched = random.Random(1).sample(range(len(mapped) // 4096), 307)
for page in touched:
    mapped[page * 4096 + 77]
written = list(range(0, len(mapped) // 4096, 7))
for page in written:
    mapped[page * 4096 + 4095] = 1
print(json.dumps({'read': touched, 'written': written, 'pid': os.getpid()}))
sys.stdout.flush()
os._exit(0)
"""


def main() -> None:
    """Traces the program; says what was told and what was seen."""
    target = Path("/mnt/mapped")
    target.write_bytes(os.urandom(4096) * PAGES)
    group = Path("/sys/fs/cgroup/penstock-faults")
    group.mkdir()
    journal = Journal("/tmp/journal")
    daemon = start_daemon("tracer", {"mode": "trace", "ring_bytes": 8 << 20}, journal)
    spool, files = Path("/tmp/spool"), Path("/tmp/files")
    daemon.call(
        "arm", cgroup_id=group.stat().st_ino, spool=str(spool), files=str(files), timeout_s=120
    )
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    words = ["bash", "-c", enter, "-", sys.executable, "-S", "-c", PROGRAM, str(target)]
    told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    receipt = daemon.call("disarm")
    daemon.stop()
    rows = [json.loads(line) for line in files.read_text().splitlines()]
    inode = target.stat().st_ino
    number = next(r["file_id"] for r in rows if r.get("inode") == inode and "file_id" in r)
    events = [e for e in EVENT.iter_unpack(spool.read_bytes()) if e[5] == number]
    present = [
        r["first_page"] + i
        for r in rows
        if r.get("mapped") == number and r["pid"] == told["pid"]
        for i in range(512)
        if bytes.fromhex(r["present"])[i >> 3] >> (i & 7) & 1
    ]
    pages = {
        op: sorted({e[1] // 4096 + i for e in events if e[8] == op for i in range(e[3] // 4096)})
        for op in (FAULT_READ, FAULT_AROUND, FAULT_WRITE)
    }
    said = {
        "hooks": receipt["hooks"]["faults"],
        "lost": receipt["lost"],
        "balanced": receipt["seen"] == receipt["kept"] + receipt["filtered"] + receipt["lost"],
        "told": told,
        "read": pages[FAULT_READ],
        "around": pages[FAULT_AROUND],
        "written": pages[FAULT_WRITE],
        "present": present,
        "latencies": min(e[2] for e in events),
        "journal": len(journal.open_entries()),
    }
    print("RESULT " + json.dumps(said))


main()
