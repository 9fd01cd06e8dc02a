"""Try to reach the host as root inside a virtual node, and print the result of each attempt.

The output is a JSON object: `tries` (name of the error by attempt, "" after success), `status`
(capabilities and filter of this process and of the first one), `mounts` (options by mount point),
`devices`, `first` (device and inode of the program of the first process).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
HOST_PID = int(sys.argv[1])
#: number on x86_64 and arguments of system calls that the C library does not wrap
CALLS = {
    "init_module": (175, b"", 0, b""),
    "finit_module": (313, -1, b"", 0),
    "delete_module": (176, b"none", 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "kexec_file_load": (320, -1, -1, 0, b"", 0),
    "iopl": (172, 3),
    "ioperm": (173, 0, 8, 1),
    "acct": (163, 0),
    "swapon": (167, b"/dev/null", 0),
    "quotactl": (179, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "userfaultfd": (323, 0),
    "add_key": (248, b"user", b"k", b"v", 1, -4),
    "keyctl": (250, 0, -4, 0),
    "open_by_handle_at": (304, -1, 0, 0),
    "fanotify_init": (300, 0, 0),
    "fsopen": (430, b"tmpfs", 0),
    "open_tree": (428, -100, b"/", 1),
    "pivot_root": (155, b"/", b"/"),
    "settimeofday": (164, 0, struct.pack("ii", 0, 0)),
    "clock_settime": (227, 1, struct.pack("qq", 0, 0)),
    "reboot": (169, 0xFEE1DEAD, 672274793, 0, 0),
    "syslog": (103, 3, ctypes.create_string_buffer(16), 16),
    "sethostname": (170, b"other", 5),
    "ptrace of the host": (101, 16, HOST_PID, 0, 0),
}
NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x20000,
    "network": 0x40000000,
    "cgroup": 0x2000000,
    "pid": 0x20000000,
}
#: files that must not be readable; a masked file is the null device and may be written to
SECRET = "/proc/kmsg /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug".split()
#: files that must be neither readable nor writable
CLOSED = (
    "/dev/kmsg /dev/mem /dev/port /dev/fuse /dev/loop-control /dev/net/tun /dev/cpu_dma_latency "
    "/proc/sysrq-trigger"
).split()
#: files that must not be writable
FIXED = (
    "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches "
    "/proc/sys/net/ipv4/ip_forward /proc/irq/default_smp_affinity "
    "/sys/power/state /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/uevent_helper "
    "/sys/module/kernel/parameters/panic /etc/hosts"
).split()


def call(number: int, *words: Any) -> None:
    """A system call of the kernel."""
    sent = [ctypes.c_long(w) if isinstance(w, int) else w for w in words]
    if LIBC.syscall(ctypes.c_long(number), *sent) < 0:
        raise OSError(ctypes.get_errno(), "")


def mount(source: bytes, at: bytes, kind: bytes, flags: int = 0) -> None:
    if LIBC.mount(source, at, kind, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), "")


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK))


def read_some(path: str) -> None:
    """Read a file; fail if it is empty, as masked files can be opened but are empty."""
    if not os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 16):
        raise OSError(errno.ENODATA, "")


def links_down() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        fcntl.ioctl(ask, 0x8914, struct.pack("16sh14x", b"lo", 0))


def raised_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    resource.setrlimit(resource.RLIMIT_NOFILE, (101, 101))


def immutable() -> None:
    directory = os.open("/root", os.O_RDONLY)
    fcntl.ioctl(directory, 0x40086602, struct.pack("q", 0x10))
    fcntl.ioctl(directory, 0x40086602, struct.pack("q", 0))


def group_in(hierarchy: str) -> None:
    os.mkdir(f"{hierarchy}/penstock-escape")
    os.rmdir(f"{hierarchy}/penstock-escape")


def cgroup_files() -> Iterator[str]:
    for top, folders, files in os.walk("/sys/fs/cgroup"):
        for name in ("cgroup.procs", "memory.limit_in_bytes", "devices.allow", "cpu.cfs_quota_us"):
            if name in files:
                yield f"{top}/{name}"
        del folders[8:]


def tries() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, words in CALLS.items():
        yield name, lambda words=words: call(*words)
    for name, flag in NAMESPACES.items():
        yield f"unshare {name}", lambda flag=flag: call(272, flag)
    yield "setns", lambda: call(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0)
    for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1)):
        for at in ("/tmp", "/dev", "/disks/d", "/root"):
            made = f"{at}/made-{major}-{minor}"
            yield (
                f"mknod {made}",
                lambda m=made, k=kind, d=(major, minor): os.mknod(m, k | 0o600, os.makedev(*d)),
            )
    yield "mount tmpfs", lambda: mount(b"t", b"/mnt", b"tmpfs")
    yield "mount proc", lambda: mount(b"p", b"/mnt", b"proc")
    yield "mount devtmpfs", lambda: mount(b"d", b"/mnt", b"devtmpfs")
    yield "mount cgroup", lambda: mount(b"c", b"/mnt", b"cgroup2")
    yield "mount a host device", lambda: mount(b"/tmp/made-254-0", b"/mnt", b"ext4")
    yield "sysfs writable", lambda: mount(b"", b"/sys", b"", 32)
    yield "unmount", lambda: call(166, b"/proc/sys", 2)
    for path in (*SECRET, *CLOSED):
        yield f"read {path}", lambda path=path: read_some(path)
    for path in (*CLOSED, *FIXED):
        yield f"write {path}", lambda path=path: opened(path, os.O_WRONLY)
    for path in cgroup_files():
        yield f"write {path}", lambda path=path: opened(path, os.O_WRONLY)
    for top in ("memory", "unified", "cpu", "devices"):
        yield f"group in {top}", lambda top=top: group_in(f"/sys/fs/cgroup/{top}")
    yield "real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    yield "nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)
    yield "raise a limit", raised_limit
    yield "links", links_down
    yield "immutable", immutable
    yield "signal to the host", lambda: os.kill(HOST_PID, 0)
    yield (
        "capability of a file",
        lambda: os.setxattr(
            "/disks/d/f",
            "security.capability",
            struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0),
        ),
    )


def outcome(attempt: Callable[[], object]) -> str:
    """Name of the error of an attempt. A child runs it, so that it cannot affect the next."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except OSError as error:
            os.write(writes, errno.errorcode.get(error.errno or 0, "?").encode())
        except ValueError:  # Python raises it for EPERM of setrlimit
            os.write(writes, b"EPERM")
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    return said or (f"signal {status}" if status else "")


def status_of(process: str) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    pairs = dict(line.split(":", 1) for line in lines)
    return {k: v.strip() for k, v in pairs.items() if k.startswith(("Cap", "Seccomp"))}


def main() -> None:
    Path("/disks/d/f").write_text("")
    mounts = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, _, options = line.split()[:4]
        mounts[point] = options.split(",")
    first = os.stat("/proc/1/exe")
    devices = [
        p for p in Path("/dev").rglob("*") if stat.S_IFMT(p.lstat().st_mode) in (0o20000, 0o60000)
    ]
    says = {
        "status": {who: status_of(who) for who in ("self", "1")},
        "mounts": mounts,
        "devices": sorted(str(p) for p in devices),
        "first": [first.st_dev, first.st_ino],
        "first_read_only": bool(os.statvfs("/proc/1/exe").f_flag & os.ST_RDONLY),
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "tries": {what: outcome(attempt) for what, attempt in tries()},
    }
    with contextlib.suppress(OSError):
        os.unlink("/disks/d/f")
    print(json.dumps(says))


main()
