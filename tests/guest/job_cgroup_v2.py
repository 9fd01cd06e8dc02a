"""Run inside the guest: the run's control group on a pure v2 host. Print one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from penstock.host.cgroups.cgroup import create_run_cgroup, hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.nodes.node_group import create_node_groups
from penstock.host.processes.launch import launch

LIMIT_BYTES = 64 << 20
ROOT = Path("/sys/fs/cgroup")

report: dict[str, object] = {"layout": hierarchies().layout}
before = (ROOT / "cgroup.subtree_control").read_text().split()
journal = Journal(Path("/tmp/journal"))

group = create_run_cgroup("guest", LIMIT_BYTES, journal)
report["missing"] = group.missing
report["paths"] = sorted(group.paths)
write_result = launch(
    "cat /proc/self/cgroup; dd if=/dev/zero of=/mnt/f bs=1M count=200 2>/dev/null", group, "/tmp/o"
)
report["status"] = write_result.exit_status
report["inside"] = Path("/tmp/o").read_text().strip()
report["id_is_inode"] = group.cgroup_id == os.stat(ROOT / group.name).st_ino
report["peak_bytes"] = group.peak_memory_bytes()
report["cpu_ns"] = group.cpu_ns()

over_limit = launch(
    [sys.executable, "-S", "-c", "x = bytearray(200 << 20); print(len(x))"], group, "/tmp/o"
)
report["greedy_status"] = over_limit.exit_status
report["oom_kills"] = group.oom_kills()
sleep_result = launch("sleep 60 & sleep 60", group, timeout_s=0.5)
report["timed_out"] = sleep_result.timed_out
report["left_after_timeout"] = group.pids()
group.remove()
report["after_remove"] = [p.name for p in ROOT.iterdir() if p.name.startswith("penstock")]
report["switches_back"] = (ROOT / "cgroup.subtree_control").read_text().split() == before

# a killed conductor: another process creates a group with a member
dying = subprocess.run(
    [
        sys.executable,
        "-S",
        "-c",
        "import os, signal, subprocess\n"
        "from pathlib import Path\n"
        "from penstock.host.cgroups.cgroup import create_run_cgroup\n"
        "from penstock.host.journal.journal import Journal\n"
        "g = create_run_cgroup('dying', None, Journal(Path('/tmp/journal')))\n"
        "g.enter(subprocess.Popen(['sleep', '60']).pid)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    ]
)
report["died"] = dying.returncode
report["left_by_the_dead"] = len([p for p in ROOT.iterdir() if p.name.startswith("penstock")])
undo(journal)
report["after_undo"] = [p.name for p in ROOT.iterdir() if p.name.startswith("penstock")]
report["undo_again"] = len(undo(journal))
report["switches_back_by_undo"] = (ROOT / "cgroup.subtree_control").read_text().split() == before

# the groups of two nodes: processors, memory, freezer; the second node's settings do not change
nodes = create_node_groups("guest", ("one", "two"), journal)
first, second = nodes.groups.values()
report["node_missing"] = first.missing
above = nodes.above
report["above"] = None if above is None else {
    "in_root": above.parent == ROOT,
    "groups": sorted(str(path.relative_to(above)) == path.name for path in first.directories),
    "controllers": sorted((above / "cgroup.subtree_control").read_text().split()),
    "weight": (above / "cpu.weight").read_text().strip(),
    "of_node": first.cgroup_id == os.stat(first.directories[0]).st_ino,
}  # fmt: skip
second.set_cpus(0.75)
first.set_cpus(0.5)
first.set_cpuset((0,))
first.set_memory(64 << 20, 32 << 20)
report["node_cpus"] = [first.cpus(), second.cpus()]
report["node_cpuset"] = [first.cpuset(), second.cpuset()]
report["node_memory"] = [first.memory(), second.memory()]
# measured from its first instruction: the start of the interpreter may wait for the disk
LOOP = """
import time
began, cpu = time.monotonic(), time.process_time()
while time.monotonic() < began + 3: pass
print(time.process_time() - cpu, time.monotonic() - began)
"""
used_ns = first.cpu_ns() or 0
launch([sys.executable, "-S", "-c", LOOP], first, "/tmp/o")
loop_cpu_s, loop_s = map(float, Path("/tmp/o").read_text().split())
report["loop_share"] = loop_cpu_s / loop_s
report["cpu_outside_loop_s"] = ((first.cpu_ns() or 0) - used_ns) / 1e9 - loop_cpu_s
report["throttled_ns"] = first.throttled_ns()
fill = launch("dd if=/dev/zero of=/mnt/g bs=1M count=48 2>/dev/null", first)
report["soft_status"] = fill.exit_status
report["soft_usage_bytes"] = first.memory_stat()["usage_bytes"]
report["pressed_by_the_kernel"] = not first.press()
sleeper = subprocess.Popen(["sleep", "60"])
first.enter(sleeper.pid)
first.freeze(True)
report["frozen"] = [first.frozen(), second.frozen()]
first.freeze(False)
report["thawed"] = not first.frozen()
first.set_cpus(None)
first.set_cpuset(None)
first.set_memory(None, None)
report["node_unlimited"] = [first.cpus(), list(first.cpuset()), first.memory()]
nodes.remove()
sleeper.wait()
dying = subprocess.run(
    [
        sys.executable,
        "-S",
        "-c",
        "import os, signal\n"
        "from pathlib import Path\n"
        "from penstock.host.journal.journal import Journal\n"
        "from penstock.host.nodes.node_group import create_node_groups\n"
        "create_node_groups('dead', ('one', 'two'), Journal(Path('/tmp/journal')))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    ]
)
report["nodes_of_the_dead"] = len(list(ROOT.glob("penstock-dead-*/penstock-dead-*")))
undo(journal)
report["nodes_removed"] = [p.name for p in ROOT.iterdir() if p.name.startswith("penstock")]
report["nodes_switch_back"] = (ROOT / "cgroup.subtree_control").read_text().split() == before
print("RESULT " + json.dumps(report))
