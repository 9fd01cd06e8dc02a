"""A study's nodes, links, schedule, services and hosts as text, for the plan and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.text import at_speed

Row = dict[str, str]
#: order in descriptions
_WIRE = ("bandwidth", "out", "in", "latency", "jitter", "loss", "duplicate", "corrupt", "reorder")


def is_plain(document: Mapping[str, Any]) -> bool:
    """True if the study has one node with memory, processors and profiles only."""
    platform = document.get("platform") or {}
    nodes = platform.get("nodes") or []
    keys = {k for n in nodes for k in n} | {
        k for n in nodes for d in n.get("disks") or () for k in d
    }
    plain = {
        "name",
        "memory",
        "cpus",
        "disks",
        "profile",
        "directory",
        "time_scale",
        "size",
        "mount",
    }
    return len(nodes) == 1 and not keys - plain and not set(platform) - {"nodes"}


def nodes(document: Mapping[str, Any]) -> list[Row]:
    """One row for each entry of nodes: `node`, `machine`, `disks`, `links`."""
    rows = []
    for node in (document.get("platform") or {}).get("nodes") or []:
        count = node.get("count")
        name = str(node["name"]) if count is None else f"{node['name']}-… ({count})"
        keys = ("memory", "memory_soft", "cpus", "cpuset", "cpu_ratio", "image", "ssh", "tenant")
        machine = [
            f"{k.replace('_', ' ')} {_value(node[k])}" for k in keys if node.get(k) is not None
        ]
        if node.get("privileges"):
            machine.append(f"privileges {' '.join(node['privileges'])}")
        disks = [_disk(d) for d in node.get("disks") or []]
        links = [
            " ".join([str(i.get("network", "net")), _wire(i)]).strip()
            for i in node.get("interfaces") or [{"network": "net"}]
        ]
        rows.append(
            {
                "node": name,
                "machine": ", ".join(machine),
                "disks": "; ".join(disks),
                "links": "; ".join(links),
            }
        )
    return rows


def networks(document: Mapping[str, Any]) -> list[Row]:
    """One row for each configured network: `network`, `packets`."""
    platform = document.get("platform") or {}
    declared = [{"name": "net", **platform["network"]}] if platform.get("network") else []
    rows = []
    for network in [*declared, *(platform.get("networks") or [])]:
        parts = [_wire(network)]
        if network.get("subnet"):
            parts.append(str(network["subnet"]))
        if network.get("matrix"):
            parts.append(
                "; ".join(
                    f"{a} to {b} {latency}"
                    for a, peers in network["matrix"].items()
                    for b, latency in peers.items()
                )
            )
        rows.append({"network": str(network["name"]), "packets": ", ".join(w for w in parts if w)})
    return rows


def schedule(document: Mapping[str, Any]) -> list[Row]:
    """One row for each entry of the schedule: `when`, `nodes`, `change`."""
    rows = []
    for event in (document.get("platform") or {}).get("schedule") or []:
        when = f"{event.get('at', '0s')} after {event.get('phase', 'run')}"
        if event.get("when"):
            when = "when " + _value(event["when"])
        who = event.get("nodes", "*")
        skip = ("at", "phase", "when", "nodes")
        change = [f"{k} {_value(v)}" for k, v in event.items() if k not in skip]
        who = ", ".join(who) if isinstance(who, list) else str(who)
        rows.append({"when": when, "nodes": who, "change": ", ".join(change)})
    return rows


def services(document: Mapping[str, Any]) -> list[Row]:
    """One row for the shared store, for each service and for the command: `what`, `on`, `command`."""
    workload = document.get("workload") or {}
    store = (document.get("platform") or {}).get("store")
    rows = [] if store is None else [_store(store)]
    rows += [
        {
            "what": f"service {s['name']}",
            "on": _where(s.get("on")),
            "command": " ".join(str(s["command"]).split()),
        }
        for s in workload.get("services") or []
    ]
    command = " ".join(str(workload.get("command", "")).split())
    return [*rows, {"what": "command", "on": _where(workload.get("on")), "command": command}]


def _store(section: Mapping[str, Any]) -> Row:
    """Engine and its configuration."""
    nodes = ("engine", "manager", "storage", "clients", "mount")
    values = " ".join(f"{k}={v}" for k, v in section.items() if k not in nodes)
    on = _where(section.get("storage") or ["all"])
    return {"what": "store", "on": on, "command": f"{section.get('engine')} {values}".strip()}


def hosts(document: Mapping[str, Any]) -> list[str]:
    """Names of the hosts that execute the runs; none for this one."""
    return [str(w["name"]) for w in (document.get("hosts") or {}).get("workers") or []]


def _where(on: Any) -> str:
    if not on:
        return "the first node"
    return ", ".join(on) if isinstance(on, list) else str(on)


def _disk(disk: Mapping[str, Any]) -> str:
    parts = [str(disk["name"])]
    if disk.get("profile") is not None:
        parts.append(_at_speed(str(disk["profile"]), disk.get("time_scale", 1)))
    elif disk.get("directory") is not None:
        parts.append(f"directory {disk['directory']}")
    for key in ("size", "backend", "limits", "readahead", "features"):
        if disk.get(key) is not None:
            parts.append(f"{key} {_value(disk[key])}")
    return f"{parts[0]}: {', '.join(parts[1:])}" if parts[1:] else parts[0]


def _at_speed(profile: str, scale: Any) -> str:
    """A profile with its speed; for a variable or undecided one, with the study's own text."""
    if isinstance(scale, Mapping):
        return f"{profile} (time_scale {', '.join(f'{k} {v}' for k, v in scale.items())})"
    try:
        return at_speed(profile, float(scale))
    except (TypeError, ValueError):
        return f"{profile} (time_scale {scale})"


def _wire(wire: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {wire[k]}" for k in _WIRE if wire.get(k) is not None)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k} {_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "; ".join(_value(v) for v in value)
    return (
        {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )
