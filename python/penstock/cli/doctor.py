"""penstock doctor: supported features of this host, and remedies for missing ones."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from penstock.errors import PenstockError
from penstock.text import percentage

if TYPE_CHECKING:
    from penstock.emulate.disks.floor import HostFloor
    from penstock.host.probe.probe import Feature

_MARKS = {"supported": "yes", "unsupported": "no", "unknown": "?"}
#: features that each purpose needs; of alternatives with a `|`, one
_PURPOSES = {
    "emulated disks": ("fuse",),
    "disks throttled by the kernel": ("back end cgroup1|back end cgroup2",),
    "memory limits": ("memory",),
    "virtual nodes": ("root", "namespaces", "veth", "node limits"),
    "links with a rate": ("veth", "tbf"),
    "links with delay and loss": ("veth", "netem|relay"),
    "the tracer": ("tp_btf|raw_tp|tracepoint|fentry", "calls"),
}


def command(
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
    refresh: bool = typer.Option(
        False, "--refresh", help="Repeat the measurement of this host's limits."
    ),
) -> None:
    """Check which features this host has, how to enable the others, and how fast it can emulate disks."""
    from penstock.emulate.disks.measure_floor import host_floor
    from penstock.host.nodes.isolation import DOES_NOT_ISOLATE, ISOLATES
    from penstock.host.probe.facts import host_facts
    from penstock.host.probe.probe import probe_host

    features = probe_host()
    floor: HostFloor | None = None
    failure = ""
    print("measuring the limits of emulated disks on this host", file=sys.stderr)
    try:
        floor = host_floor(refresh=refresh)
    except PenstockError as error:
        failure = str(error)
    facts = host_facts()
    if as_json:
        print(
            json.dumps(
                {
                    "host": facts,
                    "features": [asdict(f) for f in features],
                    "floors": asdict(floor) if floor else None,
                    "runs_here": runs_here(features),
                    "time_scales": time_scales(floor) if floor else None,
                    "floors_unknown_because": failure or None,
                    "nodes": {"isolates": ISOLATES, "does_not_isolate": DOES_NOT_ISOLATE},
                }
            )
        )
        return
    print(f"{facts['system']}, Linux {facts['kernel']}, {facts['cpus']} x {facts['cpu_model']}")
    for line in _conclusion(features, floor):
        print(line)
    for line in _table(features):
        print(line)
    print("\nIsolation of a virtual node, and its limits")
    for sentence in (ISOLATES, DOES_NOT_ISOLATE):
        print(textwrap.fill(sentence, _width(), initial_indent="  ", subsequent_indent="  "))
    print()
    print("Limits of an emulated disk on this host (a profile beyond them needs a time_scale)")
    if floor is None:
        print(f"  could not be measured: {failure}")
    else:
        for line in _floor_lines(floor):
            print(line)
        print(f"  {measured(floor)}")
        if not floor.quiet:
            print(
                f"  measured while other programs used {percentage(floor.busy_share)} of the processors: "
                "penstock doctor --refresh on a quiet host"
            )


def _floor_lines(floor: HostFloor) -> list[str]:
    """Lines of the measured limits, with a column for each transport."""
    columns = [f for f in (floor, floor.io_uring) if f is not None]
    heads = ["/dev/fuse", "io_uring"][: len(columns)]
    lines = [f"{'':20}{''.join(f'{head:>10}' for head in heads)}"] if len(columns) > 1 else []
    for name, key, scale, unit in (
        ("service time", "service_floor_ns", 1e3, "us, of the disk alone"),
        ("reading", "read_bps", 2**20, "MiB/s"),
        ("writing", "write_bps", 2**20, "MiB/s"),
        ("4 KiB requests", "iops", 1, "/s"),
        ("with programs", "loaded_iops", 1, "/s that keep it fully busy"),
        ("and that flush", "flushed_iops", 1, "writes/s, each flushed"),
        ("one that waits", "loop_service_ns", 1e3, "us service time, with the program's own"),
    ):
        values = "".join(f"{getattr(f, key) / scale:10.0f}" for f in columns)
        lines.append(f"  {name:18}{values} {unit}")
    return lines


def measured(floor: HostFloor) -> str:
    """Number of measurements of the floors, and time of the last."""
    from penstock.text import counted

    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(floor.measured_s))
    return f"best of {counted(floor.measurements, 'measurement')} since boot, the last on {at}"


def runs_here(features: list[Feature]) -> dict[str, bool]:
    """True for each purpose whose needs this host meets."""
    supported = {f.name for f in features if f.verdict == "supported"}
    return {
        purpose: all(supported.intersection(need.split("|")) for need in needs)
        for purpose, needs in _PURPOSES.items()
    }


def time_scales(floor: HostFloor) -> dict[str, float]:
    """Smallest time scale that this host sustains under load, by name of the ready profile."""
    from penstock.profile import load_profile, nearest_honest_time_scale, ready_names

    return {name: nearest_honest_time_scale(load_profile(name), floor) for name in ready_names()}


def _conclusion(features: list[Feature], floor: HostFloor | None) -> list[str]:
    """Supported purposes, and the time scale of each ready profile."""
    purposes = runs_here(features)
    lines = []
    for head, available in (("Runs here: ", True), ("Not here: ", False)):
        names = [purpose for purpose, supported in purposes.items() if supported is available]
        if names:
            lines += textwrap.wrap(f"{head}{', '.join(names)}.", _width(), subsequent_indent="  ")
    if floor is not None:
        by_scale: dict[float, list[str]] = {}
        for name, scale in time_scales(floor).items():
            by_scale.setdefault(scale, []).append(name)
        scales = [
            f"{', '.join(names)} {'as they are' if scale == 1 else f'{scale:g} times slower'}"
            for scale, names in sorted(by_scale.items())
        ]
        head = "Time scales at which this host sustains the ready profiles under load"
        lines += textwrap.wrap(
            f"{head}: {'; '.join(scales)}.",
            _width(),
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
    return ["", *lines]


def _width() -> int:
    return min(100, max(60, shutil.get_terminal_size((100, 24)).columns))


def _table(features: list[Feature]) -> list[str]:
    """Lines of at most 100 columns, by group: mark, name, detail, purpose or remedy."""
    width = _width()
    lines: list[str] = []
    group = ""
    for f in features:
        if f.group != group:
            group = f.group
            lines += ["", group]
        parts = [f.detail, f"for {f.needed_for}" if f.needed_for else ""]
        if f.verdict != "supported" and f.remedy:
            parts.append(f"-> {f.remedy}")
        head = f"  {_MARKS[f.verdict]:<4}{f.name:<19}"
        text = "; ".join(w for w in parts if w)
        lines += textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * 25) or [
            head.rstrip()
        ]
    return lines
