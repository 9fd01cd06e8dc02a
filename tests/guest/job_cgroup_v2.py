"""Runs inside the guest: the run's control group on a pure v2 host. Prints one JSON object."""

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

says: dict[str, object] = {"layout": hierarchies().layout}
before = (ROOT / "cgroup.subtree_control").read_text().split()
journal = Journal(Path("/tmp/journal"))

group = create_run_cgroup("guest", LIMIT_BYTES, journal)
says["missing"] = group.missing
says["paths"] = sorted(group.paths)
wrote = launch(
    "cat /proc/self/cgroup; dd if=/dev/zero of=/mnt/f bs=1M count=200 2>/dev/null", group, "/tmp/o"
)
says["status"] = wrote.exit_status
says["inside"] = Path("/tmp/o").read_text().strip()
says["id_is_inode"] = group.cgroup_id == os.stat(ROOT / group.name).st_ino
says["peak_bytes"] = group.peak_memory_bytes()
says["cpu_ns"] = group.cpu_ns()

greedy = launch(
    [sys.executable, "-S", "-c", "x = bytearray(200 << 20); print(len(x))"], group, "/tmp/o"
)
says["greedy_status"] = greedy.exit_status
says["oom_kills"] = group.oom_kills()
slept = launch("sleep 60 & sleep 60", group, timeout_s=0.5)
says["timed_out"] = slept.timed_out
says["left_after_timeout"] = group.pids()
group.remove()
says["after_remove"] = [p.name for p in ROOT.iterdir() if p.name.startswith("penstock")]
says["switches_back"] = (ROOT / "cgroup.subtree_control").read_text().split() == before

# a conductor that dies: another process makes a group with a member, and is killed
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
says["died"] = dying.returncode
says["left_by_the_dead"] = len([p for p in ROOT.iterdir() if p.name.startswith("penstock")])
undo(journal)
says["after_undo"] = [p.name for p in ROOT.iterdir() if p.name.startswith("penstock")]
says["undo_again"] = len(undo(journal))
says["switches_back_by_undo"] = (ROOT / "cgroup.subtree_control").read_text().split() == before

# the groups of two nodes: processors, memory, frozen; the second keeps what it has
nodes = create_node_groups("guest", ("one", "two"), journal)
one, two = nodes.groups.values()
says["node_missing"] = one.missing
above = nodes.above
says["above"] = None if above is None else {
    "in_root": above.parent == ROOT,
    "groups": sorted(str(path.relative_to(above)) == path.name for path in one.directories),
    "controllers": sorted((above / "cgroup.subtree_control").read_text().split()),
    "weight": (above / "cpu.weight").read_text().strip(),
    "of_node": one.cgroup_id == os.stat(one.directories[0]).st_ino,
}  # fmt: skip
two.set_cpus(0.75)
one.set_cpus(0.5)
one.set_cpuset((0,))
one.set_memory(64 << 20, 32 << 20)
says["node_cpus"] = [one.cpus(), two.cpus()]
says["node_cpuset"] = [one.cpuset(), two.cpuset()]
says["node_memory"] = [one.memory(), two.memory()]
# from its first instruction on: the interpreter may wait for the disk before
LOOP = """
import time
began, cpu = time.monotonic(), time.process_time()
while time.monotonic() < began + 3: pass
print(time.process_time() - cpu, time.monotonic() - began)
"""
used = one.cpu_ns() or 0
launch([sys.executable, "-S", "-c", LOOP], one, "/tmp/o")
loop_cpu_s, loop_s = map(float, Path("/tmp/o").read_text().split())
says["loop_share"] = loop_cpu_s / loop_s
says["cpu_outside_loop_s"] = ((one.cpu_ns() or 0) - used) / 1e9 - loop_cpu_s
says["throttled_ns"] = one.throttled_ns()
fill = launch("dd if=/dev/zero of=/mnt/g bs=1M count=48 2>/dev/null", one)
says["soft_status"] = fill.exit_status
says["soft_usage_bytes"] = one.memory_stat()["usage_bytes"]
says["pressed_by_the_kernel"] = not one.press()
stands = subprocess.Popen(["sleep", "60"])
one.enter(stands.pid)
one.freeze(True)
says["frozen"] = [one.frozen(), two.frozen()]
one.freeze(False)
says["thawed"] = not one.frozen()
one.set_cpus(None)
one.set_cpuset(None)
one.set_memory(None, None)
says["node_unlimited"] = [one.cpus(), list(one.cpuset()), one.memory()]
nodes.remove()
stands.wait()
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
says["nodes_of_the_dead"] = len(list(ROOT.glob("penstock-dead-*/penstock-dead-*")))
undo(journal)
says["nodes_removed"] = [p.name for p in ROOT.iterdir() if p.name.startswith("penstock")]
says["nodes_switch_back"] = (ROOT / "cgroup.subtree_control").read_text().split() == before
print("RESULT " + json.dumps(says))
