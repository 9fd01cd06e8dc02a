"""This host as a platform file: values from the kernel, values measured in a few seconds, assumed values."""

from __future__ import annotations

import datetime
import math
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.host.network.loopback import Measured, interval, loopback_throughput
from penstock.host.probe.facts import host_facts
from penstock.host.probe.meter import find_meter, measure
from penstock.platform.hosts import Platform
from penstock.platform.profiles import ready_names
from penstock.profile.load import load_profile

Note = Callable[[str], None]


@dataclass(frozen=True)
class Link:
    """One network interface that is up; `speed_bps` (bytes per second) is None if unknown."""

    name: str
    speed_bps: float | None
    mtu: int


def links(sys: Path = Path("/sys")) -> list[Link]:
    """Interfaces of real or virtual hardware that are up, fastest first."""
    interfaces = []
    for folder in sorted((sys / "class/net").glob("*")):
        if not (folder / "device").exists() or _read(folder / "operstate") == "down":
            continue
        mbit = _number(_read(folder / "speed"))
        speed = mbit * 125e3 if mbit is not None and mbit > 0 else None
        interfaces.append(Link(folder.name, speed, int(_number(_read(folder / "mtu")) or 0)))
    return sorted(interfaces, key=lambda link: -(link.speed_bps or 0))


def frequencies_hz(sys: Path = Path("/sys")) -> list[float]:
    """Selectable frequencies of the first processor, ascending; empty if unavailable."""
    folder = sys / "devices/system/cpu/cpu0/cpufreq"
    texts = _read(folder / "scaling_available_frequencies").split()
    texts = texts or [_read(folder / f"cpuinfo_{end}_freq") for end in ("min", "max")]
    return sorted({khz * 1e3 for khz in map(_number, texts) if khz})


def launch_time(repetitions: int = 30) -> Measured:
    """Time to start and end a program that does nothing [s]."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        subprocess.run(["/bin/sh", "-c", ":"], check=True, stdin=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return interval(times)


def import_host(
    directory: Path,
    base_dir: Path,
    profile: str | None = None,
    note: Note = lambda text: None,
    sys: Path = Path("/sys"),
    budget_s: float = 3.0,
) -> Platform:
    """This host as a platform of one host; its data are under `directory`.

    `profile` is the fitted profile of its storage (a file, or the name of a built-in one), relative to
    `base_dir`. Every value that was not measured is listed as assumed. BadInput for a missing profile or
    directory.
    """
    if not directory.is_dir():
        raise BadInput(f"no directory {directory}; the one where the data will be is expected")
    if profile is not None and profile not in ready_names():
        load_profile(profile, Path())
    facts = host_facts(directory)
    if not facts["storage"]["free_bytes"]:
        raise BadInput(f"{directory}: found no free space; expected a directory that can hold data")
    assumed: list[dict[str, Any]] = []
    group = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:32].strip("-") or "host"
    note("how fast two programs of this host talk to each other")
    loopback = _loopback(budget_s)
    note("how long a program takes to start")
    launch = launch_time()
    estimate = _Estimates(str(facts["host_id"]), str(facts["kernel"]))
    interfaces = links(sys)
    network: dict[str, Any] = {
        "bandwidth": _bandwidth(interfaces, assumed),
        "loopback": "2 GB/s",
        "latency": "50us",
    }
    if isinstance(loopback, Measured):
        network["loopback"] = estimate(loopback, 1e9, "GB/s", "transfer over 127.0.0.1")
    else:
        why = f"nothing could be sent over 127.0.0.1 ({loopback})"
        assumed.append(
            {"path": "network.loopback", "low": "500 MB/s", "high": "8 GB/s", "note": why}
        )
    why = "one switch; nothing was measured beyond this host"
    assumed.append({"path": "network.latency", "low": "10us", "high": "500us", "note": why})
    host = {
        "group": group,
        "count": 1,
        "roles": ["client", "storage"],
        "cpus": facts["cpus_allowed"],
        "memory": f"{facts['memory_bytes']} B",
        "slots": facts["cpus_allowed"],
        "storage": _storage(group, facts["storage"], profile, base_dir, assumed),
    }
    assumed.append(
        {
            "path": "store.chunk",
            "low": "128KiB",
            "high": "4MiB",
            "note": "requests of the file system's readahead and write-back",
        }
    )
    document: dict[str, Any] = {
        "penstock_platform": 1,
        "name": group,
        "description": f"{facts['cpu_model']}, {facts['cpus_allowed']} processors, "
        f"{facts['memory_bytes'] / 2**30:.3g} GiB, {facts['system']}.",
        "hosts": [host],
        "network": network,
        "store": {"chunk": "1MiB", "stripe": 1, "placement": "local", "allocation": "none"},
        "launch": {"overhead": estimate(launch, 1e-3, "ms", "a shell that does nothing")},
    }
    power, meter = _power(sys, estimate, assumed, note)
    if power is not None:
        document["power"] = power
    document["facts"] = _facts(facts, interfaces, sys, meter)
    document["assumed"] = assumed
    return Platform.from_dict(document, base_dir)


def _loopback(budget_s: float) -> Measured | str:
    """Measured throughput, or the reason why it could not be measured."""
    try:
        return loopback_throughput(budget_s)
    except OSError as error:
        return str(error.strerror or error)


@dataclass(frozen=True)
class _Estimates:
    """Measured values in the form of the file."""

    host: str
    kernel: str

    def __call__(self, measured: Measured, factor: float, unit: str, method: str) -> dict[str, Any]:
        low, value, high = (
            f"{x / factor:.5g} {unit}"
            for x in (max(measured.low, 0.0), measured.mean, measured.high)
        )
        if measured.low <= 0:
            low = f"{measured.mean / factor / 10:.5g} {unit}"
        return {
            "value": value,
            "low": low,
            "high": high,
            "level": "95%",
            "n": measured.n,
            "method": method,
            "date": datetime.date.today().isoformat(),
            "host": self.host,
            "kernel": self.kernel,
            "converged": measured.converged,
        }


def _bandwidth(interfaces: list[Link], assumed: list[dict[str, Any]]) -> str:
    path = "network.bandwidth"
    if interfaces and interfaces[0].speed_bps is not None:
        text = f"{interfaces[0].speed_bps / 125e6:g} Gbit/s"
        low = f"{interfaces[0].speed_bps / 125e6 * 0.9:g} Gbit/s"
        why = f"speed of {interfaces[0].name} as the kernel names it; what it delivers was not measured"
        assumed.append({"path": path, "low": low, "high": text, "note": why})
        return text
    names = ", ".join(link.name for link in interfaces)
    why = f"the kernel knows no speed of {names}" if names else "no network hardware is up"
    assumed.append({"path": path, "low": "100 Mbit/s", "high": "10 Gbit/s", "note": why})
    return "1 Gbit/s"


def _storage(
    group: str,
    facts: Mapping[str, Any],
    profile: str | None,
    base_dir: Path,
    assumed: list[dict[str, Any]],
) -> dict[str, Any]:
    space = f"{facts['free_bytes']} B"
    if profile is not None and profile not in ready_names():
        return {"profile": os.path.relpath(profile, base_dir), "capacity": space}
    device = Path(str(facts.get("device", ""))).name
    wide = 4.0
    if profile is not None:
        name, why = profile, "the requested profile"
    elif device.startswith("nvme"):
        name, why = "nvme", f"{device} is NVMe"
    elif facts.get("rotational") and not device.startswith(("vd", "xvd")):
        name, why = "hdd-7200", f"the kernel calls {device} rotational"
    else:
        name, why = "sata-ssd", f"{device or 'the device'} may be anything"
        wide = 10.0
    path = f"hosts.{group}.storage.time_scale"
    why += "; `penstock profile` measures the device"
    assumed.append({"path": path, "low": 1 / wide, "high": wide, "note": why})
    return {"profile": name, "time_scale": 1.0, "capacity": space}


def _power(
    sys: Path, estimate: _Estimates, assumed: list[dict[str, Any]], note: Note
) -> tuple[dict[str, Any] | None, str]:
    """Power section of the file, and its source; without a meter None, and the reason."""
    meter, why = find_meter(sys)
    if meter is None:
        return None, f"none: {why}"
    note("what this host draws, idle and with all processors busy")
    try:
        idle, busy = measure(meter)
    except (OSError, ValueError) as error:
        return None, f"none: {meter.what} cannot be read ({error})"
    if idle.mean <= 0:
        return None, f"none: {meter.what} shows nothing"
    top = max(busy.mean, idle.mean)
    power: dict[str, Any] = {
        "idle": estimate(idle, 1.0, "W", meter.what),
        "app": estimate(busy, 1.0, "W", f"{meter.what}, all processors busy"),
    }
    if busy.mean < idle.mean:
        del power["app"]
    for key in ("storage", "network"):
        power[key] = f"{idle.mean:.5g} W"
        low, high = f"{idle.mean:.5g} W", f"{top:.5g} W"
        why = f"not measured; between idle and computing ({meter.what})"
        assumed.append({"path": f"power.{key}", "low": low, "high": high, "note": why})
    steps = frequencies_hz(sys)
    if len(steps) > 1:
        power["states"] = [
            {"frequency": f"{hz / 1e9:g} GHz", "speed": round(hz / steps[-1], 4)} for hz in steps
        ]
        for i, hz in enumerate(steps[:-1]):
            share = hz / steps[-1]
            why = "proportional to the frequency; the power at it was not measured"
            assumed.append(
                {
                    "path": f"power.states.{i}.speed",
                    "low": round(share, 4),
                    "high": 1.0,
                    "note": why,
                }
            )
    return power, meter.what


_FACTS = "host_id system kernel machine cpu_model virtual cpu_governor cpus cpus_allowed memory_bytes".split()


def _facts(
    facts: Mapping[str, Any], interfaces: list[Link], sys: Path, power: str
) -> dict[str, Any]:
    steps = [f"{hz / 1e9:g} GHz" for hz in frequencies_hz(sys)]
    return {
        **{k: facts[k] for k in _FACTS if facts.get(k) is not None},
        "links": [
            {
                "name": link.name,
                "speed": "unknown"
                if link.speed_bps is None
                else f"{link.speed_bps / 125e6:g} Gbit/s",
                "mtu": link.mtu,
            }
            for link in interfaces
        ],
        "frequencies": steps or "unknown: the kernel offers no cpufreq",
        "storage": facts["storage"],
        "power_meter": power,
    }


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
