"""Limits of a device by different engines: cgroup files, container engines, penstock. Each runs a command.

An engine is created for one loop device and one place on its file system, runs any number of commands and is
closed. `unavailable` gives the reason if an engine cannot be used on this host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.emulate.backends.image import ImageDisk
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup, hierarchies, kill_members, remove_groups
from penstock.host.journal.journal import Journal, new_token
from penstock.host.storage.mounts import mounts

#: penstock's names of limits → files of the blkio hierarchy, OCI's names, options of docker and podman
NAMES = {
    "read_bps": ("blkio.throttle.read_bps_device", "throttleReadBpsDevice", "--device-read-bps"),
    "write_bps": ("blkio.throttle.write_bps_device", "throttleWriteBpsDevice", "--device-write-bps"),
    "read_iops": (
        "blkio.throttle.read_iops_device", "throttleReadIOPSDevice", "--device-read-iops",
    ),
    "write_iops": (
        "blkio.throttle.write_iops_device", "throttleWriteIOPSDevice", "--device-write-iops",
    ),
}  # fmt: skip
#: paths of the host that are visible in a container, read only
HOST_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
TIMEOUT_S = 120


@dataclass
class Ground:
    """A mounted loop device with a work file, and the journal of the bench."""

    disk: ImageDisk
    journal: Journal

    @property
    def node(self) -> str:
        """The device's node."""
        return f"/dev/{self.disk.device.name}"


class Blkio:
    """The blkio hierarchy, without an engine: a directory, and one line per limit."""

    name = "blkio v1"

    @staticmethod
    def unavailable() -> str:
        """Reason why the engine cannot be used on this host."""
        blkio = hierarchies().v1.get("blkio")
        return "" if blkio is not None and os.access(blkio, os.W_OK) else "no blkio hierarchy"

    def run(self, ground: Ground, limits: Mapping[str, float], argv: list[str]) -> str:
        """stdout of a command under limits."""
        with create_run_cgroup("throttles", None, ground.journal) as group:
            directory = group.paths["blkio"]
            for limit, value in limits.items():
                line = f"{ground.disk.device.text} {round(value)}"
                (directory / NAMES[limit][0]).write_text(line)
            procs = str(directory / "cgroup.procs")
            return _output_of(["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', procs, *argv])


class Runc:
    """runc's own resources: linux.resources.blockIO of config.json."""

    name = "runc blockIO"

    @staticmethod
    def unavailable() -> str:
        """Reason why the engine cannot be used on this host."""
        if shutil.which("runc") is None:
            return "runc is not installed"
        return Blkio.unavailable()

    def run(self, ground: Ground, limits: Mapping[str, float], argv: list[str]) -> str:
        """stdout of a command in its own container."""
        with _group(ground) as name, _bundle(ground, limits, argv, name) as bundle:
            state = bundle / "state"
            return _output_of(["runc", "--root", str(state), "run", "--bundle", str(bundle), name])


class Engine:
    """docker or podman: `run` with the device options."""

    program = ""
    options: tuple[str, ...] = ()
    #: a command that tests the engine without any change of the host
    test_options: tuple[str, ...] = ("info",)

    @classmethod
    def unavailable(cls) -> str:
        """Reason why the engine cannot be used on this host."""
        if shutil.which(cls.program) is None:
            return f"{cls.program} is not installed"
        line = [cls.program, *cls.test_options]
        answer = subprocess.run(line, capture_output=True, text=True, timeout=30)
        if answer.returncode != 0:
            last = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            return f"{cls.program} does not answer: {last[-1] if last else ''}"
        return ""

    def line(self, ground: Ground, limits: Mapping[str, float]) -> list[str]:
        """The arguments up to the command."""
        arguments = [self.program, "run", "--rm", "--network=none", *self.options]
        for limit, value in limits.items():
            arguments += [NAMES[limit][2], f"{ground.node}:{round(value)}"]
        for path in HOST_DIRECTORIES:
            if os.path.exists(path):
                arguments += ["-v", f"{path}:{path}:ro"]
        return [*arguments, "-v", f"{ground.disk.mount}:{ground.disk.mount}"]


class Podman(Engine):
    """podman, on a root file system of empty directories."""

    name = "podman"
    program = "podman"
    test_options = ("--version",)
    options = (
        "--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000",
        "--security-opt=seccomp=unconfined",
    )  # fmt: skip

    def run(self, ground: Ground, limits: Mapping[str, float], argv: list[str]) -> str:
        """stdout of a command in a container."""
        with (
            tempfile.TemporaryDirectory(prefix="penstock-podman-") as place,
            _group(ground) as parent,
        ):
            root = Path(place) / "root"
            root.mkdir()
            front = ["podman", "--root", f"{place}/store", "--runroot", f"{place}/run",
                     "--tmpdir", f"{place}/tmp", "--storage-driver=vfs",
                     "--cgroup-manager=cgroupfs", "--runtime=runc"]  # fmt: skip
            own = self.line(ground, limits)[1:]
            root_options = [f"--cgroup-parent=/{parent}", "--rootfs", str(root)]
            return _output_of([*front, *own, *root_options, *argv])


class Docker(Engine):
    """docker, with an empty image."""

    name = "docker"
    program = "docker"

    def run(self, ground: Ground, limits: Mapping[str, float], argv: list[str]) -> str:
        """stdout of a command in a container of an empty image, created and removed for it."""
        image = f"penstock-{new_token()}"
        empty = subprocess.run(["tar", "-cf", "-", "-T", "/dev/null"], capture_output=True)
        imported = subprocess.run(["docker", "import", "-", image], input=empty.stdout,
                              capture_output=True)  # fmt: skip
        if imported.returncode != 0:
            raise PenstockError(f"docker import: {imported.stderr.decode()[-200:]}")
        try:
            return _output_of([*self.line(ground, limits), image, *argv])
        finally:
            subprocess.run(["docker", "rmi", "-f", image], capture_output=True)


@contextlib.contextmanager
def _group(ground: Ground) -> Iterator[str]:
    """Name of a group that another program creates, in every hierarchy; journalled and removed at the end."""
    token = new_token()
    name = f"penstock-{token}"
    roots = dict.fromkeys([*_cgroup_mounts(), *hierarchies().v1.values(), hierarchies().unified])
    new = [str(root / name) for root in roots if root is not None]
    entry = ground.journal.plan("cgroup", name, token=token, new=new)
    try:
        yield name
    finally:
        kill_members(new)
        remove_groups(new)
        ground.journal.undone(entry)


def _cgroup_mounts() -> list[Path]:
    """Mount points of hierarchies, including those without a controller."""
    return [Path(m.point) for m in mounts() if m.fstype in ("cgroup", "cgroup2")]


@contextlib.contextmanager
def _bundle(
    ground: Ground, limits: Mapping[str, float], argv: list[str], name: str
) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-runc-") as place:
        bundle = Path(place)
        (bundle / "rootfs").mkdir()
        (bundle / "config.json").write_text(json.dumps(_config(ground, limits, argv, name)))
        yield bundle


def _config(
    ground: Ground, limits: Mapping[str, float], argv: list[str], name: str
) -> dict[str, Any]:
    major, minor = ground.disk.device.number
    block: dict[str, list[dict[str, int]]] = {}
    for limit, value in limits.items():
        block[NAMES[limit][1]] = [{"major": major, "minor": minor, "rate": round(value)}]
    binds = [
        {"destination": p, "type": "bind", "source": p, "options": ["rbind", "ro"]}
        for p in HOST_DIRECTORIES
        if os.path.exists(p)
    ]
    work = str(ground.disk.mount)
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        *binds,
        {"destination": work, "type": "bind", "source": work, "options": ["rbind", "rw"]},
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False, "user": {"uid": 0, "gid": 0}, "args": argv, "cwd": "/",
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "root": {"path": "rootfs"},
        "hostname": "throttles",
        "mounts": mounts,
        "linux": {
            "cgroupsPath": f"/{name}",
            "namespaces": [{"type": t} for t in ("pid", "mount", "ipc", "uts")],
            "resources": {"blockIO": block},
        },
    }  # fmt: skip


def _output_of(argv: list[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S)
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip())[-300:]
        raise PenstockError(f"{argv[0]} ended with status {result.returncode}: {lines}")
    return result.stdout
