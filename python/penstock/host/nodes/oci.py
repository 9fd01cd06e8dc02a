"""Virtual nodes by an OCI runtime (runc), from the same description as `spawner`.

The runtime gets a bundle per node: `config.json` and a root that is mounted on the host, because its format
has no overlay for the root itself. It joins existing control groups and never deletes them: a node's limits
outlive its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.nodes.isolation import DEVICES, MASKED, READ_ONLY
from penstock.host.nodes.namespaces import MS_NODEV, mount
from penstock.host.nodes.node_root import NodeRoot
from penstock.host.nodes.spawner import PATH, Birth, Spawner
from penstock.host.nodes.system_calls import oci
from penstock.host.processes.processes import TOKEN_VARIABLE
from penstock.host.storage.mounts import unmount

_TOGETHER = 4
_STARTS_WITHIN_S = 30.0
#: while it waits for one child it reaps all: it adopts the orphans of a node
_FIRST = ["/bin/sh", "-c", "while :; do sleep 86400; done"]


class RuncRuntime:
    """Nodes of one cluster, created by runc. `home` has bundles and the runtime's own state."""

    all_groups = True

    def __init__(self, home: Path, journal: Journal, run: str, spawner: Spawner) -> None:
        self._home = home
        self._journal = journal
        self._run = run
        self._mounted: dict[str, Entry] = {}

    @staticmethod
    def missing() -> str:
        """Requirement that the host lacks: runc."""
        if shutil.which("runc") is None:
            return "runc (Debian package runc) is not installed"
        return ""

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Create these nodes, some at a time; returns a pid or an error message for each."""
        with ThreadPoolExecutor(_TOGETHER) as pool:
            futures = {key: pool.submit(self._make, birth) for key, birth in births.items()}
        answers: dict[str, int | str] = {}
        for key, future in futures.items():
            try:
                answers[key] = future.result()
            except (OSError, PenstockError, subprocess.SubprocessError) as error:
                answers[key] = str(error)
        return answers

    def _make(self, birth: Birth) -> int:
        bundle = self._home / "bundles" / birth.hostname
        root = self._home / "roots" / birth.hostname
        self.forget(birth.hostname)
        for path in (bundle, root):
            path.mkdir(parents=True, exist_ok=True)
        entry = self._journal.plan("mount", root, run=self._run)
        options = f"lowerdir={_plain(birth.root.lower)},upperdir={_plain(birth.root.changes)}"
        options += f",workdir={_plain(birth.root.work)}"
        try:
            mount(f"penstock:{entry.token}", str(root), "overlay", MS_NODEV, options)
        except BaseException:
            self._journal.undone(entry)
            raise
        self._mounted[birth.hostname] = entry
        self._journal.done(entry)
        (bundle / "config.json").write_text(json.dumps(configuration(birth, root)))
        pid_file = bundle / "pid"
        log = bundle / "log"
        with open(log, "wb") as sink:
            done = subprocess.run(
                [
                    *("runc", "--root", str(self._home / "runc"), "run", "--detach"),
                    *("--bundle", str(bundle), "--pid-file", str(pid_file), birth.hostname),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=_STARTS_WITHIN_S,
                check=False,
            )
        if done.returncode != 0:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise PenstockError(f"runc: {' | '.join(lines[-2:])}")
        pid = int(pid_file.read_text())
        for group in birth.groups:
            entrance = Path(group).with_name("cgroup.procs")
            entrance.write_text(str(pid))
        return pid

    def forget(self, name: str) -> None:
        """Remove the root of a node whose processes are gone, and the runtime's record of it."""
        entry = self._mounted.pop(name, None)
        if entry is not None:
            unmount(entry.target)
            self._journal.undone(entry)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._home / "runc" / name)

    def forget_all(self) -> None:
        """Remove the roots and records of all nodes."""
        for name in list(self._mounted):
            self.forget(name)


def configuration(birth: Birth, root: Path) -> dict[str, Any]:
    """A node in the format of the OCI runtime specification (1.0)."""
    isolation = birth.isolation
    caps = [f"CAP_{name}" for name in isolation.capabilities]
    group = os.path.basename(os.path.dirname(birth.groups[0])) if birth.groups else None
    return {
        "ociVersion": "1.0.2",
        "hostname": birth.hostname,
        "root": {"path": str(root), "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": _FIRST,
            "env": [f"PATH={PATH}", "HOME=/root", f"{TOKEN_VARIABLE}={birth.token}"],
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), caps),
        },
        "mounts": _mounts(birth.root),
        "linux": {
            **({"cgroupsPath": f"/{group}"} if group else {}),
            "namespaces": [
                {"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "cgroup")
            ],
            "devices": [
                {
                    "path": d.path,
                    "type": d.kind,
                    "major": d.major,
                    "minor": d.minor,
                    "fileMode": 0o666,
                }
                for d in isolation.devices
                if d not in DEVICES  # which the format includes
            ],
            "resources": {
                "devices": [
                    {"allow": False, "access": "rwm"},
                    *(
                        {
                            "allow": True,
                            "type": d.kind,
                            "major": d.major,
                            "minor": d.minor,
                            "access": "rw",
                        }
                        for d in isolation.devices
                    ),
                ]
            },
            "seccomp": oci(isolation.capabilities),
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
        },
    }


def _mounts(root: NodeRoot) -> list[dict[str, Any]]:
    def one(at: str, kind: str, source: str, *options: str) -> dict[str, Any]:
        return {"destination": at, "type": kind, "source": source, "options": list(options)}

    mounts = [
        one("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
        one("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        one("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755", "size=64k"),
        one("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666"),
        one("/dev/shm", "tmpfs", "shm", "nosuid", "nodev", "mode=1777"),
        one("/run", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=755"),
        one("/run/lock", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777"),
        one("/run/sshd", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=755"),
        one("/tmp", "none", root.tmp, "bind", "nosuid", "nodev"),
        one("/etc/hosts", "none", root.hosts, "bind", "nosuid", "noexec", "nodev", "ro"),
    ]
    if os.path.isdir("/sys/fs/cgroup"):
        plain = ("nosuid", "noexec", "nodev", "ro")
        mounts.insert(2, one("/sys/fs/cgroup", "cgroup", "cgroup", *plain))
    for bind in root.binds:
        write = "ro" if bind.read_only else "rw"
        mounts.append(one(bind.target, "none", bind.source, "bind", "nosuid", "nodev", write))
    return mounts


def _plain(path: str) -> str:
    """Escape a path for an option of an overlay, whose separators are `,` and `:`."""
    return path.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")
