"""Facts of this host that affect results, for a run's manifest."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.processes.processes import boot_id
from penstock.host.storage.mounts import mount_of
from penstock.version import version


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _chosen(path: str | Path) -> str:
    """The bracketed value of a kernel setting such as `always [madvise] never`."""
    text = _text(path)
    return text[text.index("[") + 1 : text.index("]")] if "[" in text and "]" in text else text


def host_id() -> str:
    """A stable name of this machine: the host name and 8 hexadecimal digits of the hashed machine id."""
    seed = _text("/etc/machine-id") or platform.node()
    return f"{platform.node()}-{hashlib.sha256(('penstock' + seed).encode()).hexdigest()[:8]}"


def lockdown() -> str:
    """Lockdown mode of the kernel: 'none', 'integrity', 'confidentiality', or '' if unavailable."""
    return _chosen("/sys/kernel/security/lockdown")


def host_facts(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Kernel, processors, memory, clock, control groups; with `path`, the storage under it. JSON values."""
    facts: dict[str, Any] = {
        "host_id": host_id(),
        "boot_id": boot_id(),
        "penstock": version(),
        "python": platform.python_version(),
        "system": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cpu_governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "virtual": "hypervisor" in _cpu_flags(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "transparent_hugepages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled") or None,
        "swap_bytes": _swap_bytes(),
        "clock_source": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "tcp_congestion_control": _text("/proc/sys/net/ipv4/tcp_congestion_control") or None,
        "cgroup": hierarchies().layout,
        "lockdown": lockdown() or None,
        "root": os.geteuid() == 0,
        "dirty_ratio": _text("/proc/sys/vm/dirty_ratio"),
        "dirty_background_ratio": _text("/proc/sys/vm/dirty_background_ratio"),
        "load_average": list(os.getloadavg()),
    }
    if path is not None:
        facts["storage"] = storage_facts(path)
    return facts


def storage_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """File system, device and queue settings under a path, and its free space [bytes]."""
    mount = mount_of(path)
    space = os.statvfs(path)
    facts: dict[str, Any] = {"free_bytes": space.f_bavail * space.f_frsize}
    if mount is None:
        return facts
    facts |= {
        "file_system": mount.fstype,
        "mount_options": ",".join(mount.options),
        "device": mount.source,
        "device_number": "{}:{}".format(*mount.device),
    }
    device = Path("/sys/dev/block/{}:{}".format(*mount.device))
    queue = device / "queue"
    if not queue.exists():
        queue = Path(os.path.realpath(device)).parent / "queue"
    if queue.exists():
        facts |= {
            "scheduler": _chosen(queue / "scheduler"),
            "rotational": _text(queue / "rotational") == "1",
            "read_ahead_kib": int(_text(queue / "read_ahead_kb") or 0),
            "queue_depth": int(_text(queue / "nr_requests") or 0),
            "write_cache": _text(queue / "write_cache"),
        }
    return facts


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()


def _cpuinfo(key: str) -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor()


def _cpu_flags() -> list[str]:
    return (_cpuinfo("flags") or _cpuinfo("Features")).split()


def _swap_bytes() -> int:
    lines = _text("/proc/swaps").splitlines()[1:]
    return sum(int(line.split()[2]) * 1024 for line in lines if len(line.split()) > 2)
