"""penstock doctor: what this host can do, and what to do about the rest."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.host.floor import HostFloor
    from penstock.host.probe import Feature

_MARKS = {"supported": "yes", "unsupported": "no", "unknown": "?"}


def command(
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
    refresh: bool = typer.Option(False, "--refresh", help="Measure the floors anew."),
) -> None:
    """What this host can do, its honest floors, and what to do about the rest."""
    from penstock.host.facts import host_facts
    from penstock.host.floor import host_floor
    from penstock.host.isolation import DOES_NOT_ISOLATE, ISOLATES
    from penstock.host.probe import probe_host

    features = probe_host()
    floor: HostFloor | None = None
    trouble = ""
    print("measuring how fast an emulated disk can be here", file=sys.stderr)
    try:
        floor = host_floor(refresh=refresh)
    except PenstockError as error:
        trouble = str(error)
    facts = host_facts()
    if as_json:
        print(
            json.dumps(
                {
                    "host": facts,
                    "features": [asdict(f) for f in features],
                    "floors": asdict(floor) if floor else None,
                    "floors_unknown_because": trouble or None,
                    "nodes": {"isolates": ISOLATES, "does_not_isolate": DOES_NOT_ISOLATE},
                }
            )
        )
        return
    print(f"{facts['system']}, Linux {facts['kernel']}, {facts['cpus']} x {facts['cpu_model']}")
    for line in _table(features):
        print(line)
    print("\nWhat a virtual node isolates, and what it does not")
    for sentence in (ISOLATES, DOES_NOT_ISOLATE):
        print(textwrap.fill(sentence, _width(), initial_indent="  ", subsequent_indent="  "))
    print()
    print("Honest floors of an emulated disk here (a profile beyond them needs a time_scale)")
    if floor is None:
        print(f"  could not be measured: {trouble}")
    else:
        print(f"  service time      {floor.service_floor_ns / 1e3:8.0f} us")
        print(f"  reading           {floor.read_bps / 2**20:8.0f} MiB/s")
        print(f"  writing           {floor.write_bps / 2**20:8.0f} MiB/s")
        print(f"  4 KiB requests    {floor.iops:8.0f} /s")


def _width() -> int:
    return min(100, max(60, shutil.get_terminal_size((100, 24)).columns))


def _table(features: list[Feature]) -> list[str]:
    """Lines of at most 100 columns: mark, name, what it is for or what to do, by group."""
    width = _width()
    lines: list[str] = []
    group = ""
    for f in features:
        if f.group != group:
            group = f.group
            lines += ["", group]
        words = [f.detail, f"for {f.needed_for}" if f.needed_for else ""]
        if f.verdict != "supported" and f.remedy:
            words.append(f"-> {f.remedy}")
        head = f"  {_MARKS[f.verdict]:<4}{f.name:<19}"
        text = "; ".join(w for w in words if w)
        lines += textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * 25) or [
            head.rstrip()
        ]
    return lines
