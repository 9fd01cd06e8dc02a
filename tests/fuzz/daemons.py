"""The real daemons as targets, isolated so that none of their commands reaches the host.

A target's process drops root and creates its own user, mount and network namespaces. The daemon runs in
them with its own /dev/fuse and answers over its socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.drive import MEMORY_LIMIT_BYTES, Feed

_NOBODY = 65534
_NEW_USER, _NEW_MOUNTS, _NEW_NETWORK = 0x10000000, 0x00020000, 0x40000000
_BIND, _PRIVATE = 4096, 1 << 18 | 16384
_DUMPABLE = 4
#: mount_setattr(2): its number on x86-64, flags
_MOUNT_SETATTR, _HERE, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
#: limit of a daemon's memory [bytes]
MOST_BYTES = 1 << 30
_ANSWER_TIMEOUT_S = 25.0


def _check(status: int, call: str) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), call)


def shut_in(directory: Path) -> None:
    """Restrict this process to rights in its own namespaces and to the writable `directory`."""
    c = ctypes.CDLL(None, use_errno=True)
    _check(c.unshare(_NEW_MOUNTS), "unshare")
    _check(c.mount(b"none", b"/", None, _PRIVATE, None), "mount /")
    options = f"size=1g,mode=700,uid={_NOBODY},gid={_NOBODY}".encode()
    _check(c.mount(b"none", bytes(directory), b"tmpfs", 0, options), "mount tmpfs")
    fuse = Path("/dev/fuse")
    if fuse.exists():
        own_fuse = directory / "fuse"
        os.mknod(own_fuse, stat.S_IFCHR | 0o666, fuse.stat().st_rdev)
        own_fuse.chmod(0o666)
        _check(c.mount(bytes(own_fuse), bytes(fuse), None, _BIND, None), "mount /dev/fuse")
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    c.prctl(_DUMPABLE, 1, 0, 0, 0)
    _check(c.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NETWORK), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {_NOBODY} 1")
    Path("/proc/self/gid_map").write_text(f"0 {_NOBODY} 1")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Daemon:
    """A daemon in its own process, its socket, and its first commands."""

    def __init__(
        self, run: Callable[[dict[str, Any]], object], directory: Path, first: Sequence[Any]
    ):
        self._run, self._directory, self._first = run, directory, first
        self._sent_lines = 0
        self._pid = 0
        self.begin()

    def begin(self) -> None:
        """Start the daemon and send its first commands."""
        path = self._directory / "socket"
        path.unlink(missing_ok=True)
        ready, write_end = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            status = 70
            try:
                os.close(ready)
                import resource

                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limit_bytes = pages * resource.getpagesize() + 2 * MEMORY_LIMIT_BYTES
                resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
                config: dict[str, Any] = {
                    "socket": str(path),
                    "owner_pid": parent,
                    "ready_fd": write_end,
                }
                config |= {"stats_dir": str(self._directory / "pages"), "token": "fuzzed"}
                log = os.open(
                    self._directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
                )
                os.dup2(log, 1)
                os.dup2(log, 2)
                self._run(config)
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)
        with open(ready, "rb") as line:
            if line.read(6) != b"ready\n":
                raise AssertionError(f"the daemon did not start: {self._log()}")
        self._connect()
        for command in self._first:
            answer = self._send(json.dumps(command).encode())
            assert (answer or {}).get("ok"), answer

    def _log(self) -> str:
        with contextlib.suppress(OSError):
            return (self._directory / "log").read_text(errors="replace")[-2000:]
        return ""

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        self._socket.connect(str(self._directory / "socket"))

    def _has_ended(self, wait_s: float = 0.0) -> bool:
        """True if the daemon has ended; AssertionError if it ended with an unexpected status."""
        deadline_s = time.monotonic() + wait_s
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                assert status == 0, f"it ended with {status}: {self._log()}"
                return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.005)

    def _send(self, line: bytes) -> dict[str, Any] | None:
        """Send one line; return the answer, or None if the daemon closed the connection."""
        answer = b""
        try:
            self._socket.sendall(line + b"\n")
            while not answer.endswith(b"\n"):
                received = self._socket.recv(1 << 16)
                if not received:
                    return None
                answer += received
        except (ConnectionError, BrokenPipeError):
            return None
        document = json.loads(answer)
        assert isinstance(document, dict), document
        assert document.get("ok") is True or (
            document.get("ok") is False and document.get("error")
        ), document
        return document

    def feed(self, line: bytes) -> None:
        """Send one line. The daemon must answer, continue and stay within its memory limit; it may close
        the connection only after a line that is not text.
        """
        line = line.replace(b"\n", b" ")
        self._sent_lines += 1
        answer = self._send(line)
        if answer is None:
            if self._has_ended(20.0 if is_text(line) else 0.0):
                self.begin()
                answer = self._send(line)
            else:
                self._socket.close()
                self._connect()
                assert not is_text(line), f"the daemon closed the connection: {self._log()}"
        if answer and answer["ok"] and b"shutdown" in line and self._has_ended(10.0):
            self.begin()
        elif self._sent_lines % 50 == 0:
            for command in self._first:  # the lines may have removed what these created
                self._send(json.dumps(command).encode())
        if self._sent_lines % 500 == 0:
            used_bytes = resident_bytes(self._pid)
            assert used_bytes < MOST_BYTES, f"the daemon uses {used_bytes >> 20} MiB"

    def end(self) -> None:
        """Kill the daemon."""
        self._socket.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def is_text(line: bytes) -> bool:
    """True if the line is UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextlib.contextmanager
def run_daemon(
    directory: Path, run: Callable[[dict[str, Any]], object], first: Sequence[Any] = ()
) -> Iterator[Feed]:
    """Run a daemon by `run`; send the commands `first` at its start and repeat them later."""
    daemon = Daemon(run, directory, first)
    try:
        yield daemon.feed
    finally:
        daemon.end()


def _native_main(kind: str) -> Callable[[dict[str, Any]], object]:
    main = getattr(importlib.import_module("penstock._native"), f"{kind}_main")
    return lambda config: main(json.dumps(config))


def _with_directory(value: Any, directory: Path) -> Any:
    text = json.dumps(value).replace("/PLACE", str(directory))
    return json.loads(text)


@contextlib.contextmanager
def disk(directory: Path) -> Iterator[Feed]:
    """The disk server with a busy disk; `/PLACE` in a command is the target's own directory."""
    shut_in(directory)
    for name in ("b", "m", "b2", "m2"):
        (directory / name).mkdir()
    first = _with_directory([DISK_COMMANDS[0]], directory)
    with run_daemon(directory, _native_main("disk"), first) as feed:
        yield lambda line: feed(line.replace(b"/PLACE", bytes(directory)))


@contextlib.contextmanager
def relay(directory: Path) -> Iterator[Feed]:
    """The relay between two links. Its sockets need root of the host; its commands name no files."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_NETWORK), "unshare")
    for n in (0, 1):
        argv = f"ip link add n{n} type veth peer name p{n}".split()
        subprocess.run(argv, check=True)
        subprocess.run(["ip", "link", "set", f"n{n}", "up"], check=True)
        subprocess.run(["ip", "link", "set", f"p{n}", "up"], check=True)
    first = [
        {"cmd": "port", "network": 1, "port": n, "ifindex": socket.if_nametoindex(f"p{n}")}
        for n in (0, 1)
    ]
    main = _native_main("relay")

    def run(config: dict[str, Any]) -> None:
        main(config | {"seed": 1, "most_bytes": 1 << 20})

    with run_daemon(directory, run, first) as feed:
        yield feed


@contextlib.contextmanager
def frames(directory: Path) -> Iterator[Feed]:
    """The relay between two links, one of which delays, loses, duplicates and corrupts frames."""
    with relay(directory) as send:
        faults = {"delay": {"mean_s": 1e-4, "jitter_s": 5e-5, "distribution": "normal"}}
        faults |= {"loss": 0.1, "duplicate": 0.2, "corrupt": 0.5, "reorder": 0.1}
        send(json.dumps({"cmd": "link", "port": 0, "out": faults, "in": faults}).encode())
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind(("n0", 0))
            count = 0

            def feed(data: bytes) -> None:
                nonlocal count
                with contextlib.suppress(OSError):  # the kernel rejects an invalid frame
                    sender.send(data)
                count += 1
                if count % 100 == 0:
                    send(b'{"cmd": "stats"}')

            yield feed


@contextlib.contextmanager
def sampler(directory: Path) -> Iterator[Feed]:
    """The sampler; `/PLACE` in a command is the target's own directory."""
    shut_in(directory)
    (directory / "root" / "proc").mkdir(parents=True)
    with run_daemon(directory, _native_main("sampler")) as feed:
        yield lambda line: feed(line.replace(b"/PLACE", bytes(directory)))


def _make_read_only(writable: Path) -> None:
    """Enter a mount namespace in which only `writable` is writable and there are no devices."""
    c = ctypes.CDLL(None, use_errno=True)
    _check(c.unshare(_NEW_MOUNTS), "unshare")
    _check(c.mount(b"none", b"/", None, _PRIVATE, None), "mount /")
    _check(c.mount(b"none", b"/dev", b"tmpfs", 0, b"size=1m,mode=700"), "mount /dev")
    writable.mkdir(parents=True, exist_ok=True)  # it may have been in /dev/shm
    _check(c.mount(b"none", bytes(writable), b"tmpfs", 0, b"size=1g,mode=700"), "mount tmpfs")
    for path, recursion, set_, clear in (
        (b"/", _RECURSIVE, _READ_ONLY, 0),
        (bytes(writable), 0, 0, _READ_ONLY),
    ):
        attributes = struct.pack("<QQQQ", set_, clear, 0, 0)
        _check(
            c.syscall(_MOUNT_SETATTR, _HERE, path, recursion, attributes, len(attributes)),
            "mount_setattr",
        )


@contextlib.contextmanager
def tracer(directory: Path) -> Iterator[Feed]:
    """The tracer, which loads its programs as root; it can write to no file but below `/PLACE`."""
    _make_read_only(directory)
    main = _native_main("tracer")

    def run(config: dict[str, Any]) -> None:
        main(config | {"mode": "trace", "ring_bytes": 1 << 20})

    with run_daemon(directory, run) as feed:
        yield lambda line: feed(line.replace(b"/PLACE", bytes(directory)))


@contextlib.contextmanager
def nodes(directory: Path) -> Iterator[Feed]:
    """The supervisor of virtual nodes, which cannot create any in this process."""
    from penstock.emulate.cluster import supervisor
    from penstock.host.nodes import spawner

    shut_in(directory)
    os.environ |= {
        "PENSTOCK_STATE": str(directory / "state"),
        "PENSTOCK_RUNTIME": str(directory / "run"),
    }

    def run(config: dict[str, Any]) -> None:
        supervisor.nodes_main(config, spawner.start())

    with run_daemon(directory, run) as feed:
        yield feed


PROFILE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "python/penstock/profile/ready/sata-ssd.json").read_text()
)
PATCHES: list[dict[str, Any]] = [
    {"limits": {"read_bps": 1e6, "write_bps": None, "read_iops": 100, "write_iops": "max"}},
    {"slow": {"factor": 3.0, "ramp_s": 1.0, "stall": {"period_s": 1.0, "length_s": 0.1}}},
    {"slow": {"factor": 2.0, "random": {"probability": 0.1, "factor": 9}}, "servers": 3},
    {
        "faults": [
            {"op": "read", "error": "EIO", "probability": 0.1, "from": 0, "to": 4096, "seed": 1}
        ]
    },
    {"faults": [{"op": "write", "mode": "torn", "file": "*.db"}], "read_only": True},
    {"bad_space": {"share": 0.1, "mode": "flip", "seed": 2, "op": "read"}},
    {"readahead": False, "cache": None, "full": True, "fail_stop": False, "volatile": True},
    {"profile": PROFILE},
    {"power_cut": {"mode": "torn", "seed": 1}},
    {"limits": None, "slow": None, "servers": None, "faults": None, "bad_space": None},
]
_KNOWN = {
    "read": {"base_ns": 1e4, "per_byte_ns": 0.1},
    "write": {"base_ns": 1e4, "per_byte_ns": 0.1},
}
DISK_COMMANDS: list[dict[str, Any]] = [
    {"cmd": "add", "disk_id": "d", "mount": "/PLACE/m", "backing": "/PLACE/b", "profile": PROFILE}
    | {"seed": 1, "compensation": _KNOWN | {"lateness_ns": 0}, "patch": {}, "volatile": False},
    {"cmd": "add", "disk_id": "e", "mount": "/PLACE/m2", "backing": "/PLACE/b2", "profile": PROFILE}
    | {"compensation": _KNOWN, "size_bytes": 1 << 30, "owner": {"uid": 0, "gid": 0}},
    {"cmd": "ping"},
    {"cmd": "set", "disk_id": "d", "profile": PROFILE, "seed": 3, "plant": {"slow_by": 0.1}},
    *({"cmd": "patch", "disk_id": "d", "patch": patch} for patch in PATCHES),
    {"cmd": "patch", "disk_id": "d", "patch": PATCHES[0], "planned_ns": 5}
    | {"cause": {"kind": "log", "text": "x"}},
    *(
        {
            "cmd": "schedule",
            "disk_id": "d",
            "replace": True,
            "events": [when | {"patch": PATCHES[0]}],
        }
        for when in (
            {"at_ns": 10**18},
            {"phase": "p", "after_ns": 10, "every": True},
            {"metric": "read_bytes", "above": 1e12, "after_ns": 5},
        )
    ),
    {"cmd": "mark", "disk_id": "d", "phase": "p", "t_ns": 7},
    {"cmd": "mark", "phase": "p"},
    {"cmd": "events", "disk_id": "d"},
    {"cmd": "power_cut", "disk_id": "d", "mode": "torn", "seed": 1},
    {"cmd": "log", "disk_id": "d", "path": "/PLACE/requests"},
    {"cmd": "exact", "disk_id": "d", "on": True},
    *({"cmd": cmd, "disk_id": "d"} for cmd in ("stats", "reset")),
    {"cmd": "remove", "disk_id": "e", "hurry": True},
    {"cmd": "list"},
]
_BAD_LINK = {"delay": {"mean_s": 1e-3, "jitter_s": 1e-4, "distribution": "normal"}} | dict.fromkeys(
    ("loss", "duplicate", "corrupt", "reorder"), 0.1
)
RELAY_COMMANDS: list[dict[str, Any]] = [
    {"cmd": "ping"},
    {"cmd": "port", "network": 1, "port": 2, "ifindex": 1},
    {"cmd": "unport", "port": 2},
    {"cmd": "link", "port": 0, "out": _BAD_LINK, "in": _BAD_LINK},
    {"cmd": "link", "port": 1, "out": {"delay": {"mean_s": 0.1}}},
    {"cmd": "pairs", "network": 1, "default_s": 0.01, "delays": [[0, 1, 0.1], [1, 0, 0.2]]},
    {"cmd": "stats", "reset": True},
]
SAMPLER_COMMANDS: list[dict[str, Any]] = [
    {"cmd": "ping"},
    {"cmd": "status"},
    {"cmd": "start", "spool": "/PLACE/spool", "interval_ns": 10_000_000, "network": False}
    | {"root": "/PLACE/root", "cgroups": {"memory": "/PLACE/x", "unified": "/PLACE/y"}}
    | {"nodes": {"n": {"cpu": "/PLACE/x"}}, "disks": {"d": "/PLACE/page"}},
    {"cmd": "start", "spool": "/PLACE/spool"},
    {"cmd": "stop"},
    {"cmd": "stop"},
]

#: a group without members
_EMPTY_GROUP = 1 << 40
TRACER_COMMANDS: list[dict[str, Any]] = [
    {"cmd": "ping"},
    {"cmd": "status"},
    {"cmd": "status", "top": 3, "sample": "/PLACE/sample"},
    {"cmd": "arm", "cgroup_id": _EMPTY_GROUP, "spool": "/PLACE/spool", "files": "/PLACE/files"}
    | {"target": {"level": 3}},
    {"cmd": "arm", "cgroup_id": _EMPTY_GROUP, "spool": "/PLACE/spool2", "files": "/PLACE/files2"}
    | {"drop_every": 7, "target": {"processes": [1, 2], "level": 3, "unmetered": True}},
    {"cmd": "arm", "cgroup_id": _EMPTY_GROUP, "spool": "/PLACE/spool3", "files": "/PLACE/files3"}
    | {"target": {"level": 3, "marks": {"device": 5, "inode": 9}}},
    {"cmd": "disarm"},
    {"cmd": "disarm"},
]
