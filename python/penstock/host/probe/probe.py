"""Features of this host, by trial: supported, unsupported, or unknown.

Each probe returns one of three verdicts, the missing part, the remedy and the kernel that supports it.
A probe leaves nothing behind; temporary mounts and objects are journalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup, hierarchies
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal
from penstock.host.nodes import system_calls
from penstock.host.nodes.node_trial import (
    enter_trouble,
    freezer_trouble,
    lacking_namespaces,
    missing_controllers,
    overlay_trouble,
    veth_trouble,
)
from penstock.host.probe.bpf_trial import Verdict, trials
from penstock.host.probe.facts import lockdown
from penstock.host.storage.disk_backends import no_cgroup1, no_cgroup2, no_fuse
from penstock.host.storage.mounts import unmount
from penstock.state import runtime_dir, state_dir

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Feature:
    """One feature of a host; `remedy`: what to do if it is unsupported."""

    group: str
    name: str
    verdict: Verdict
    detail: str = ""
    remedy: str = ""
    needed_for: str = ""


Probe = Callable[[Journal], Iterator[Feature]]


def probe_host(journal: Journal | None = None) -> list[Feature]:
    """All features of the host. A probe that fails returns 'unknown', never an exception."""
    features: list[Feature] = []
    log = journal or Journal()
    for probe in PROBES:
        try:
            features.extend(probe(log))
        except (OSError, PenstockError, subprocess.SubprocessError, ValueError) as error:
            name = probe.__name__.lstrip("_")
            features.append(Feature("probe", name, "unknown", str(error)))
    return features


def _rights(_: Journal) -> Iterator[Feature]:
    root = os.geteuid() == 0
    yield Feature(
        "rights",
        "root",
        "supported" if root else "unsupported",
        f"user id {os.geteuid()}",
        "" if root else "run as root; without it: emulated disks, prediction and reports only",
        "control groups, tracing, mounts for others",
    )
    capabilities = _capabilities()
    if capabilities is None:
        yield Feature("rights", "capabilities", "unknown", "/proc/self/status does not say")
        return
    for number, name, use in _CAPABILITIES:
        has = bool(capabilities >> number & 1)
        yield Feature(
            "rights",
            name,
            "supported" if has else "unsupported",
            "",
            "" if has else f"grant {name}",
            use,
        )


_CAPABILITIES = (
    (21, "CAP_SYS_ADMIN", "mounts, control groups"),
    (39, "CAP_BPF", "tracing (Linux 5.8; before: CAP_SYS_ADMIN)"),
    (38, "CAP_PERFMON", "tracing (Linux 5.8; before: CAP_SYS_ADMIN)"),
    (12, "CAP_NET_ADMIN", "links between nodes"),
    (23, "CAP_SYS_NICE", "punctual timers under load"),
)


def _capabilities() -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return None


def _fuse(journal: Journal) -> Iterator[Feature]:
    use = "emulated disks"
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        remedy = "load the fuse module (CONFIG_FUSE_FS)"
        yield Feature("disk", "fuse", "unsupported", "no /dev/fuse", remedy, use)
        return
    except OSError as error:
        remedy = "make /dev/fuse accessible"
        yield Feature("disk", "fuse", "unsupported", str(error), remedy, use)
        return
    try:
        if os.geteuid() != 0:
            tool = shutil.which("fusermount3")
            verdict: Verdict = "unknown" if tool else "unsupported"
            remedy = "" if tool else "install the package fuse3"
            yield Feature("disk", "fuse", verdict, "/dev/fuse opens; mount not tried", remedy, use)
            return
        yield _fuse_mount(journal, device, use)
    finally:
        os.close(device)


def _fuse_mount(journal: Journal, device: int, use: str) -> Feature:
    where = make_directory(runtime_dir() / f"probe-{os.getpid()}", journal)
    try:
        entry = journal.plan("mount", where.target)
        source = f"penstock:{entry.token}".encode()
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        target = os.fsencode(where.target)
        if _libc.mount(source, target, b"fuse", 6, options) != 0:
            error = os.strerror(ctypes.get_errno())
            journal.undone(entry)
            return Feature("disk", "fuse", "unsupported", f"mount: {error}", "allow mount(2)", use)
        unmount(where.target)
        journal.undone(entry)
        detail = "mounted for a trial; sync(2) and syncfs(2) flush no such disk, fsync(2) does"
        return Feature("disk", "fuse", "supported", detail, "", use)
    finally:
        remove_directory(where, journal)


def _control_groups(journal: Journal) -> Iterator[Feature]:
    host = hierarchies()
    offered = sorted({*host.v1, *host.v2})
    yield Feature(
        "control groups",
        "layout",
        "supported" if offered else "unsupported",
        f"{host.layout}: {' '.join(offered)}",
        "" if offered else "mount a control-group hierarchy",
        "memory limits, tracing one run",
    )
    group = create_run_cgroup("probe", 64 << 20, journal)
    try:
        for controller, use in (
            ("memory", "memory limit that bounds the page cache"),
            ("cpuacct", "processor time of the run"),
            ("blkio", "disk traffic of the run"),
            ("unified", "tracing only the run (its id in the v2 hierarchy)"),
        ):
            has = controller in group.paths or (
                controller == "cpuacct" and group.cpu_ns() is not None
            )
            why = next((m for m in group.missing if m.startswith(controller)), "")
            yield Feature(
                "control groups",
                controller,
                "supported" if has else "unsupported",
                "group made and removed for a trial" if has else why,
                "" if has else "root, and the controller in /proc/cgroups",
                use,
            )
    finally:
        group.remove()


_BPF_HOOKS = {
    "tp_btf": "tracing at least cost (Linux 5.5, CONFIG_DEBUG_INFO_BTF)",
    "raw_tp": "tracing (Linux 4.17)",
    "tracepoint": "tracing (Linux 4.7)",
    "fentry": "tracing inside the kernel's functions (Linux 5.5, ftrace direct calls)",
}


def _bpf(_: Journal) -> Iterator[Feature]:
    has = Path("/sys/kernel/btf/vmlinux").exists()
    remedy = "" if has else "a kernel built with CONFIG_DEBUG_INFO_BTF"
    yield Feature("tracing", "btf", "supported" if has else "unsupported", "", remedy, "tracing")
    verdicts = trials()
    for hook, use in _BPF_HOOKS.items():
        verdict, detail = verdicts[hook]
        remedy = "" if verdict == "supported" else "root, and a kernel that offers it"
        if verdict == "unsupported" and hook == "fentry":
            remedy = "nothing to do where tp_btf works: it does the same here"
        yield Feature("tracing", hook, verdict, detail, remedy, use)
    mode = lockdown()
    yield Feature(
        "tracing",
        "lockdown",
        "unknown" if not mode else "supported" if mode != "confidentiality" else "unsupported",
        mode or "securityfs is not mounted",
        "" if mode != "confidentiality" else "lockdown=integrity or none",
        "BPF may read kernel memory unless confidentiality is on",
    )
    if os.geteuid() == 0:
        yield from _traced()


def _traced() -> Iterator[Feature]:
    """System calls that the tracer can observe here, and their hooks, from a trial load of its programs."""
    try:
        native = importlib.import_module("penstock._native")
        hooks = json.loads(native.trace_hooks("trace"))
    except (ImportError, RuntimeError) as error:
        yield Feature("tracing", "calls", "unsupported", str(error), "", "penstock trace")
        return
    for name, row in hooks.items():
        detail = f"{row['state']} by {row['hook']}" if row["hook"] else row["state"]
        if row["missing"]:
            detail += f"; not seen: {row['missing']}"
        if row["reason"]:
            detail += f" ({row['reason']})"
        there: Verdict = "unsupported" if row["state"] == "absent" else "supported"
        yield Feature("tracing", name, there, detail, "", "penstock trace")


def _kernel(_: Journal) -> Iterator[Feature]:
    psi = Path("/proc/pressure/io")
    try:
        psi.read_bytes()
        yield Feature("kernel", "psi", "supported", "", "", "pressure in the monitor")
    except OSError as error:
        remedy = "Linux 4.20 with CONFIG_PSI, perhaps psi=1 on its command line"
        yield Feature("kernel", "psi", "unsupported", str(error), remedy, "pressure in the monitor")
    yield _system_call(
        "cachestat", 451, "6.5", "residency of the page cache; mincore serves before"
    )
    yield _io_uring()
    loop = Path("/dev/loop-control")
    yield Feature(
        "kernel",
        "loop",
        "supported" if os.access(loop, os.R_OK | os.W_OK) else "unsupported",
        "" if loop.exists() else "no /dev/loop-control",
        "" if loop.exists() else "load the loop module",
        "file systems on images",
    )
    yield from _disciplines()


def _disks(_: Journal) -> Iterator[Feature]:
    rows = (
        ("fuse", no_fuse(), "disks of the model: latency, limits, faults"),
        ("cgroup2", no_cgroup2(), "limits of a loop device, on all data paths"),
        ("cgroup1", no_cgroup1(), "limits of a loop device, direct I/O and cold reads"),
    )
    for name, missing, use in rows:
        verdict: Verdict = "unsupported" if missing else "supported"
        remedy = "the other back ends serve where they can" if missing else ""
        yield Feature("disk", f"back end {name}", verdict, missing, remedy, use)


def _system_call(name: str, number: int, since: str, use: str) -> Feature:
    _libc.syscall(number, -1, None, None, 0)
    missing = ctypes.get_errno() == 38
    remedy = f"Linux {since}" if missing else ""
    return Feature("kernel", name, "unsupported" if missing else "supported", "", remedy, use)


def _io_uring() -> Feature:
    use = "workloads that ask for it"
    fd = _libc.syscall(425, 1, ctypes.create_string_buffer(120))
    if fd >= 0:
        os.close(fd)
        return Feature("kernel", "io_uring", "supported", "", "", use)
    error = ctypes.get_errno()
    remedy = "Linux 5.1" if error == 38 else "sysctl kernel.io_uring_disabled=0"
    return Feature("kernel", "io_uring", "unsupported", os.strerror(error), remedy, use)


def _relay() -> Feature:
    """The relay, which carries frames between nodes if the kernel cannot delay or drop them."""
    use = "delay and loss on links where the kernel has no netem"
    if hasattr(importlib.import_module("penstock._native"), "relay_main"):
        return Feature("nodes", "relay", "supported", "in user space", "", use)
    return Feature("nodes", "relay", "unsupported", "this build has none", "make build", use)


def _disciplines() -> Iterator[Feature]:
    """Queueing disciplines, tried in a separate network namespace."""
    tc, unshare = shutil.which("tc"), shutil.which("unshare")
    for kind, options, use in (
        ("netem", ["netem", "delay", "1ms"], "delay and loss on links"),
        ("tbf", ["tbf", "rate", "1mbit", "burst", "32kbit", "latency", "50ms"], "rate of links"),
    ):
        if tc is None or unshare is None:
            remedy = "install the package iproute2"
            yield Feature("kernel", kind, "unknown", "no tc to try with", remedy, use)
            continue
        line = [unshare, "-n", tc, "qdisc", "add", "dev", "lo", "root", *options]
        tried = subprocess.run(line, capture_output=True, text=True, timeout=10)
        message = (tried.stderr.strip().splitlines() or [""])[0]
        if tried.returncode == 0:
            yield Feature("kernel", kind, "supported", "tried in a separate namespace", "", use)
        elif "unshare" in message:
            yield Feature("kernel", kind, "unknown", message, "root", use)
        else:
            remedy = f"the kernel module sch_{kind}"
            remedy += "; until then the relay does it, in user space" * (kind == "netem")
            yield Feature("kernel", kind, "unsupported", message, remedy, use)


def _nodes(journal: Journal) -> Iterator[Feature]:
    """Features that virtual nodes need, tried without traces."""
    yield _relay()
    for name, trouble, remedy, use in (
        (
            "namespaces",
            "; ".join(lacking_namespaces()),
            "root, and a kernel with all kinds of namespaces (CONFIG_NAMESPACES)",
            "nodes with processes, network and name of their own",
        ),
        (
            "overlay",
            overlay_trouble(journal),
            "root, the overlay module, and a state directory on ext4 or xfs",
            "a node's own root, copy on write",
        ),
        ("veth", veth_trouble(), "root, the veth module, the package iproute2", "nodes' links"),
        (
            "node limits",
            ", ".join(f"no controller {c}" for c in missing_controllers()),
            "mount the controllers, v1 or v2",
            "processors and memory of a node",
        ),
        ("freezing", freezer_trouble(), "mount cgroup2 (Linux 5.2)", "nodes that stop and go on"),
        (
            "system calls",
            system_calls.missing() or enter_trouble(),
            "apt install libseccomp2; make build",
            "the list of those that a node has",
        ),
    ):
        verdict: Verdict = "unsupported" if trouble else "supported"
        yield Feature("nodes", name, verdict, trouble, remedy if trouble else "", use)
    for tool, package, use in (
        ("runc", "runc", "what makes nodes; without it penstock itself does"),
        ("sshd", "openssh-server", "logging in to nodes"),
        ("ssh-keygen", "openssh-client", "the keys of a cluster"),
    ):
        has = shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
        verdict = "supported" if has else "unsupported"
        yield Feature("nodes", tool, verdict, "", "" if has else f"apt install {package}", use)


_TOOLS = (
    ("fio", "fio", "profiles, the access-pattern study"),
    ("pgbench", "postgresql postgresql-contrib", "the PostgreSQL study"),
    ("psql", "postgresql-client", "the PostgreSQL study"),
    ("setpriv", "util-linux", "workloads as another user"),
    ("fusermount3", "fuse3", "emulated disks without root"),
    ("strace", "strace", "the tracing benchmark"),
    ("bpftrace", "bpftrace", "the tracing benchmark"),
    ("chromium", "chromium", "looking at reports"),
    ("qemu-system-x86_64", "qemu-system-x86", "kernel features in a guest"),
)


def _tools(_: Journal) -> Iterator[Feature]:
    for tool, package, use in _TOOLS:
        path = shutil.which(tool) or _debian_postgres(tool)
        detail = _version(path, tool) if path else ""
        remedy = "" if path else f"apt install {package}"
        verdict: Verdict = "supported" if path else "unsupported"
        yield Feature("tools", tool, verdict, detail, remedy, use)


def _debian_postgres(tool: str) -> str | None:
    """Path of a PostgreSQL program on Debian, which installs them outside PATH."""
    if tool not in ("pgbench", "psql"):
        return None
    paths = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{tool}"))
    return str(paths[-1]) if paths else None


def _version(path: str, tool: str) -> str:
    if tool == "chromium":
        return ""  # it would start a browser to print its version
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5)
        match = re.search(r"\d+(\.\d+)+", output.stdout + output.stderr)
        return match.group() if match else ""
    return ""


def _space(_: Journal) -> Iterator[Feature]:
    for name, path in (("space for state", state_dir()), ("space here", Path.cwd())):
        free = shutil.disk_usage(path).free
        enough = free > 2 << 30
        yield Feature(
            "storage",
            name,
            "supported" if enough else "unsupported",
            f"{free / 2**30:.1f} GiB free under {path}",
            "" if enough else "free at least 2 GiB",
            "prepared data and bundles",
        )
    cpus = len(os.sched_getaffinity(0))
    yield Feature(
        "storage",
        "processors",
        "supported" if cpus > 1 else "unsupported",
        f"{cpus} of {platform.machine()}",
        "" if cpus > 1 else "two or more: the disk server needs one while the program runs",
        "emulated disks that keep time under load",
    )


#: probes in the order of their output
PROBES: tuple[Probe, ...] = (
    _rights,
    _fuse,
    _disks,
    _control_groups,
    _nodes,
    _bpf,
    _kernel,
    _tools,
    _space,
)
