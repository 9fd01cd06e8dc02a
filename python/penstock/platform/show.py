"""A platform as text and JSON: its values, with units and defaults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from penstock.console import Console
from penstock.platform.fields import parse_payload
from penstock.platform.hosts import Platform
from penstock.platform.lower import Host
from penstock.text import at_speed, percentage

_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def platform_dict(platform: Platform) -> dict[str, Any]:
    """The document, the same in numbers, power, price, and uncertain values."""
    return {
        "name": platform.name,
        "document": platform.document,
        "network": platform.lower(),
        "power": {k: dataclasses.asdict(v) for k, v in platform.power.items()},
        "price": {k: dataclasses.asdict(v) for k, v in platform.price.items()},
        "assumed": [a._asdict() for a in platform.assumed],
        "estimates": [dataclasses.asdict(e) for e in platform.estimates],
    }


def platform_json(platform: Platform) -> str:
    """`platform_dict` as text."""
    return json.dumps(platform_dict(platform), indent=2, ensure_ascii=False)


def summary(platform: Platform) -> str:
    """One sentence: number of hosts by role."""
    hosts = platform.hosts
    counts = [
        f"{n} {word}{'s' * (n != 1)}"
        for role, word in (
            ("client", "client"),
            ("storage", "storage host"),
            ("manager", "manager"),
        )
        if (n := sum(role in h.roles for h in hosts))
    ]
    several = "s" * (len(hosts) != 1)
    if not platform.predictable:
        return f"{platform.name}: {len(hosts)} node{several} to start (no roles: no predictions)"
    return f"{platform.name}: {len(hosts)} host{several} ({', '.join(counts)})"


def show(platform: Platform, console: Console) -> None:
    """Print the platform, at most 100 columns."""
    lowered = platform.lower()
    console.print(summary(platform))
    if platform.file.description:
        console.print(" ".join(platform.file.description.split()))
    console.print(_hosts(platform, lowered))
    console.print(_rest(platform, lowered))
    if platform.assumed:
        console.print()
        console.print(_assumed(platform))
    if platform.estimates:
        console.print()
        console.print(_estimates(platform))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _hosts(platform: Platform, lowered: Mapping[str, Any]) -> Table:
    """One line for each sequence of identical hosts."""
    table = _table("", "hosts", "serves", "slots", "speed", "link", "power", "price")
    lines: list[tuple[list[str], list[Host]]] = []
    for host, body in zip(platform.hosts, lowered["hosts"], strict=True):
        cells = _cells(host, body)
        if lines and lines[-1][0] == cells and lines[-1][1][-1].group == host.group:
            lines[-1][1].append(host)
        else:
            lines.append((cells, [host]))
    for cells, hosts in lines:
        first, last = hosts[0], hosts[-1]
        name = first.name if first is last else f"{first.name} … {last.index}"
        table.add_row(name, str(len(hosts)), *cells)
    return table


def _cells(host: Host, body: Mapping[str, Any]) -> list[str]:
    serves = []
    if body["storage"] is not None:
        serves.append(_storage(body["storage"]))
    if body["manager"] is not None:
        serves.append(f"manager: {service_text(body['manager']['service'])}")
    if body["client"] is not None and not serves:
        serves.append("tasks only")
    link = body["network"]
    both = rate_text(link["out_bps"])
    if link["out_bps"] != link["in_bps"]:
        both = f"{both} out, {rate_text(link['in_bps'])} in"
    power = host.power
    return [
        "\n".join(serves),
        str(host.slots) if body["client"] is not None else "-",
        f"{host.speed:g}" if body["client"] is not None else "-",
        f"{both}\nloopback {rate_text(link['loopback_bps'])}",
        _power_text(power.idle_w, power.idle_w + power.app_w) if power is not None else "-",
        f"{host.price.per_hour:g} {host.price.currency}/h" if host.price is not None else "-",
    ]


def _power_text(idle_w: float, app_w: float) -> str:
    return f"{idle_w:g} W idle\n{app_w:g} W computing"


def _storage(storage: Mapping[str, Any]) -> str:
    space = "" if storage["capacity_bytes"] is None else f", {size_text(storage['capacity_bytes'])}"
    if "profile" in storage:
        profile = storage["profile"]
        return f"storage: {at_speed(profile['name'], profile.get('time_scale', 1))}{space}"
    servers = "" if storage["servers"] == 1 else f", {storage['servers']} servers"
    read, write = service_text(storage["read"]), service_text(storage["write"])
    both = f"storage: {read}" if read == write else f"storage: read {read}; write {write}"
    return f"{both}{servers}{space}"


def service_text(service: Mapping[str, Any]) -> str:
    """A service in numbers as text: `1 ms + 0.5 ms/MiB`."""
    overhead = service["overhead"]
    terms = []
    if isinstance(overhead, dict):
        terms.append(f"{overhead['kind'].replace('_', ' ')} time")
    elif overhead:
        terms.append(time_text(overhead))
    if service["s_per_byte"]:
        terms.append(f"{time_text(service['s_per_byte'] * (1 << 20))}/MiB")
    return " + ".join(terms) or "0 s"


def time_text(seconds: float) -> str:
    """`0.0005` as `500 us`."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor or unit == "us":
            return f"{seconds / factor:.4g} {unit}" if seconds else "0 s"
    raise AssertionError


def rate_text(bps: float) -> str:
    """`125000000` as `125 MB/s`."""
    for factor, unit in _RATES:
        if bps >= factor:
            return f"{bps / factor:.4g} {unit}"
    return f"{bps:.4g} B/s"


def size_text(size_bytes: int) -> str:
    """`1048576` as `1 MiB`; in MB without an exact binary unit."""
    for factor, unit in _BINARY:
        if size_bytes % factor == 0 and 1 <= size_bytes // factor < 10240:
            return f"{size_bytes // factor} {unit}"
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size_bytes >= limit:
            return f"{size_bytes / limit:.4g} {unit}"
    return f"{size_bytes} B"


def _rest(platform: Platform, lowered: Mapping[str, Any]) -> Table:
    table = _table("", "")
    fabric, store, protocol = lowered["fabric"], lowered["store"], lowered["protocol"]
    core = "no limit" if fabric["capacity_bps"] is None else rate_text(fabric["capacity_bps"])
    racks = len({h.rack for h in platform.hosts})
    uplink = (
        ""
        if racks == 1
        else f", {racks} racks"
        + (f" of {rate_text(fabric['rack_uplink_bps'])}" if fabric["rack_uplink_bps"] else "")
    )
    payload = parse_payload(platform.file.network.payload)
    share = "" if payload == 1 else f", payload {percentage(payload, 1)} of the nominal rates"
    shared = ", links shared fairly" if fabric["sharing"] == "fair" else ""
    network = f"latency {time_text(fabric['latency_s'])}, core {core}{uplink}{share}{shared}"
    table.add_row("network", network)
    width = "all hosts" if store["stripe_width"] is None else f"{store['stripe_width']} hosts"
    like = f"like {platform.file.store.like}: " if platform.file.store.like else ""
    window = "" if store["window"] is None else f", window of {store['window']}"
    unit = store["placement_unit"]
    together = "" if unit is None else " of files" if unit == "file" else f" of {size_text(unit)}"
    if store["write_contention_s"]:
        window += f", {time_text(store['write_contention_s'])} a write for each other writer"
    table.add_row(
        "store",
        f"{like}chunks of {size_text(store['chunk_bytes'])}, stripe over {width}, placement "
        f"{store['placement']}{together}, {store['replicas']} replica{'s' * (store['replicas'] != 1)} "
        f"({store['replication']}, forward by the {store['forward']}), shuffle {store['shuffle']}, "
        f"allocation: {store['allocation']}, reads {store['read_replica'].replace('_', ' ')}{window}",
    )
    merged = "merged" if protocol["merge_frames"] else "one by one"
    table.add_row(
        "messages",
        f"frames of {size_text(protocol['frame_bytes'])} ({merged}), control messages of "
        f"{size_text(protocol['control_bytes'])}",
    )
    wait = lowered["scheduler"]["wait_s"]
    waits = "" if wait == 0 else ", waits " + ("for ever" if wait is None else time_text(wait))
    packed = ", fills one host after the other" if lowered["scheduler"]["fill"] == "pack" else ""
    kind = lowered["scheduler"]["kind"].replace("_", " ")
    table.add_row("scheduler", kind + waits + packed)
    launch = {
        k: service_text({"overhead": v, "s_per_byte": 0}) for k, v in lowered["launch"].items()
    }
    hints = f", {launch['tag']} a file with hints, {launch['locate']} to find one"
    declared = {platform.file.launch.tag, platform.file.launch.locate} != {"0s"}
    launch_text = (
        f"{launch['overhead']} a task, {launch['stagger']} stagger{hints if declared else ''}"
    )
    table.add_row("launch", launch_text)
    chosen = {h.power.frequency_hz for h in platform.hosts if h.power is not None} - {None}
    if chosen:
        table.add_row(
            "frequency", ", ".join(f"{hz / 1e9:g} GHz" for hz in sorted(filter(None, chosen)))
        )
    return table


def _assumed(platform: Platform) -> Table:
    table = _table("assumed", "value", "from", "to", "because")
    table.columns[0].no_wrap = True
    for entry in platform.assumed:
        table.add_row(entry.path, str(entry.value), str(entry.low), str(entry.high), entry.note)
    return table


def _estimates(platform: Platform) -> Table:
    table = _table("measured", "value", "from", "to", "n", "how")
    table.columns[0].no_wrap = True
    for e in platform.estimates:
        unit = f" {e.unit}" if e.unit else ""
        doubt = [] if e.converged else ["not converged"]
        doubt += ["clamped"] if e.clamped else []
        how = ", ".join([w for w in (e.method, e.date) if w] + doubt)
        cells = [f"{x:.4g}{unit}" for x in (e.value, e.low, e.high)]
        table.add_row(e.path, *cells, "-" if e.n is None else str(e.n), how)
    return table
