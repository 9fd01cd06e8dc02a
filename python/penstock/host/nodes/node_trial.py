"""Trial of the host's support of virtual nodes, without traces: in a child's own namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal
from penstock.host.nodes import namespaces
from penstock.host.nodes.spawner import ENTER
from penstock.state import state_dir

_KINDS = {
    "mount": namespaces.CLONE_NEWNS,
    "host name": namespaces.CLONE_NEWUTS,
    "IPC": namespaces.CLONE_NEWIPC,
    "process": namespaces.CLONE_NEWPID,
    "network": namespaces.CLONE_NEWNET,
}


def lacking_namespaces() -> list[str]:
    """Namespaces that this process may not create, with errors; empty if none."""
    return [
        f"{name}: {error}" for name, flag in _KINDS.items() if (error := _tried(_unshare(flag)))
    ]


def overlay_trouble(journal: Journal) -> str:
    """Reason why no overlay with its changes in the state directory can be mounted; empty if one can."""
    directory = make_directory(state_dir() / f"probe-{os.getpid()}", journal)
    place = Path(directory.target)
    try:
        for name in ("upper", "work", "at"):
            (place / name).mkdir()

        def mount() -> None:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            namespaces.mount("", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
            options = f"lowerdir=/,upperdir={place}/upper,workdir={place}/work"
            namespaces.mount("probe", f"{place}/at", "overlay", 0, options)

        return _tried(mount)
    finally:
        remove_directory(directory, journal)


def veth_trouble() -> str:
    """Reason why no pair of interfaces can be created; empty if one can."""
    tool, apart = shutil.which("ip"), shutil.which("unshare")
    if tool is None or apart is None:
        return "no ip to try with"
    line = [apart, "-n", tool, "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=10, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["refused"])[0]


def missing_controllers() -> list[str]:
    """Missing controllers that a node's limits need."""
    host = hierarchies()
    there = {*host.v1, *host.v2}
    return [name for name in ("cpu", "cpuset", "memory", "pids") if name not in there]


def enter_trouble() -> str:
    """Reason why no command can run in a node; empty if one can."""
    return "" if os.access(ENTER, os.X_OK) else f"{ENTER} is missing"


def freezer_trouble() -> str:
    """Reason why nodes cannot be frozen; empty if they can."""
    unified = hierarchies().unified
    if unified is None:
        return "no cgroup v2 hierarchy is mounted"
    return "" if (unified / "cgroup.stat").exists() else "the kernel's cgroup v2 is too old"


def _unshare(flag: int) -> Callable[[], None]:
    return lambda: namespaces.unshare(flag)


def _tried(trial: Callable[[], None]) -> str:
    """Error of a child that runs the trial; empty if it succeeds."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            trial()
        except OSError as error:
            os.write(writes, (error.strerror or str(error)).encode()[:500])
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return message
