"""Convert SimGrid's platform description (XML, versions 3 to 4.1) to a platform file.

In SimGrid routes share links. In a platform file every node has its own link, and pairs of nodes have a
delay. The bandwidth of a node is that of its widest route, and the delay of a pair is the sum over its route.
Links that several routes share, and routes that are narrower than both their ends, are reported as omitted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.parts.interchange.platform_values import (
    Names,
    bit_rate,
    byte_rate,
    mistake,
    number_with_unit,
    seconds,
)
from penstock.parts.interchange.xml_places import Element, read_xml
from penstock.platform.foreign import Foreign
from penstock.text import first_of

#: prefixes and units of SimGrid's parser (src/xbt/parse_units.cpp); they are case-sensitive, and the long
#: prefixes apply to `flops` only
_SHORT = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_LONG = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zeta", "yotta")
_DECIMAL = {p: 1000.0**n for n, p in enumerate(_SHORT)}
_BINARY = {f"{p.upper()}i": 1024.0**n for n, p in enumerate(_SHORT) if p}
_PREFIXES = _DECIMAL | _BINARY
_BITS = {f"{p}bps": f for p, f in _PREFIXES.items()} | {
    f"{p}Bps": 8 * f for p, f in _PREFIXES.items()
}
_FLOPS = {f"{p}f": f for p, f in _DECIMAL.items()} | {
    f"{p}flops": 1000.0**n for n, p in enumerate(_LONG)
}
_BYTES = {f"{p}B": f for p, f in _PREFIXES.items()} | {f"{p}b": f / 8 for p, f in _PREFIXES.items()}
_TIMES = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0} | {
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "ps": 1e-12,
}
#: elements that describe a simulation, not a platform
_IGNORED = {"config", "prop", "random"}
#: elements that separate passes read
_OTHER_PASSES = {"zone", "AS", "link", "backbone", "router", "route", "zoneRoute", "ASroute"}
_UNSUPPORTED = {
    "include": "another file, which is not read",
    "peer": "coordinates of peers",
    "cabinet": "cabinets",
    "storage": "storages of SimGrid 3; disks are read",
    "storage_type": "storages of SimGrid 3; disks are read",
    "mount": "storages of SimGrid 3; disks are read",
    "mstorage": "storages of SimGrid 3; disks are read",
    "trace": "traces of availability",
    "trace_connect": "traces of availability",
    "bypassRoute": "routes around others",
    "bypassZoneRoute": "routes around others",
    "bypassASroute": "routes around others",
}
#: constant states of SimGrid 3, and their values without an effect
_STATES = {"availability": ("1", "1.0"), "state": ("ON",)}
_PROFILES = tuple(
    f"{what}_{kind}"
    for what in ("availability", "state", "bandwidth", "latency", "speed")
    for kind in ("file", "profile")
)


@dataclass
class _Link:
    bits: float
    latency_s: float
    shared: bool


def read_simgrid(path: Path, raw: bytes) -> Foreign:
    """Read a platform. Raises BadInput for another kind of document and for invalid values."""
    top = read_xml(path, raw)
    if top.tag != "platform":
        raise mistake(path, top.line, f"<{top.tag}>", "<platform>, SimGrid's description")
    version = top.attributes.get("version", "")
    if version.partition(".")[0] not in ("3", "4"):
        raise mistake(path, top.line, f"version {version!r}", "3, 4 or 4.1")
    return _Reader(path).read(top)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.omitted: list[str] = []
        self.names = Names()
        self.groups: dict[str, dict[str, Any]] = {}
        #: pattern of the nodes of each host or zone, by its name in SimGrid
        self.nodes: dict[str, str] = {}
        self.speeds: dict[str, float] = {}
        self.links: dict[str, _Link] = {}
        self.used: Counter[str] = Counter()
        self.matrix: dict[str, dict[str, str]] = {}
        self.widest: dict[str, float] = {}
        #: pairs (source, destination) of routes in the file, without the reverse of symmetrical ones
        self.routed: set[tuple[str, str]] = set()
        self.routes: list[tuple[str, str, float, int]] = []
        #: rates of shared backbones [bit/s], and the number of groups that each of them joins
        self.fabric: list[tuple[float, int]] = []
        #: zones with one link per host: latencies of the backbone, and up and down of each node [s]
        self.ports: list[tuple[float, dict[str, tuple[float, float]]]] = []
        #: rates of routes from a host to itself [bit/s]
        self.loops: list[float] = []

    def value(
        self, element: Element, key: str, units: dict[str, float], bare: float | None
    ) -> float:
        text = element.attributes.get(key)
        read = None if text is None else number_with_unit(text, units, bare)
        if read is None or (not read and units is _BITS):
            actual = f"<{element.tag}> without {key}" if text is None else f"{key} {text!r}"
            raise mistake(self.path, element.line, actual, "a number with its unit")
        return read

    def read(self, top: Element) -> Foreign:
        zones = self.zones(top)
        for zone in zones:  # links first: routes may use links of other zones
            for link in zone.all("link", "backbone"):
                self.link(link)
        for zone in zones:
            self.zone(zone)
        for zone in zones:
            self.zone_routes(zone)
        if not self.groups:
            actors = any(zone.all("actor", "process") for zone in zones)
            actual = "no host but actors: a deployment" if actors else "no host"
            if self.omitted and not actors:
                actual = f"no host, but {self.omitted[0].partition(': ')[2]}"
            raise mistake(self.path, top.line, actual, "a platform with at least one host")
        return self.result()

    def zones(self, top: Element) -> list[Element]:
        zones = [top]
        for inner in top.all("zone", "AS"):
            zones += self.zones(inner)
        return zones

    def zone(self, zone: Element) -> None:
        routing = zone.attributes.get("routing", "Full")
        ports: dict[str, tuple[float, float]] = {}
        for element in zone.children:
            if element.tag == "host":
                self.host(element)
            elif element.tag == "cluster":
                self.cluster(element)
            elif element.tag in _OTHER_PASSES | _IGNORED:
                continue
            elif element.tag == "host_link":
                self.host_link(element, ports)
            else:
                reason = _UNSUPPORTED.get(element.tag, "no equivalent in a platform file")
                self.omit(element, f"<{element.tag}>: {reason}")
        if ports:
            self.ports.append((self.backbone(zone, len(ports)), ports))
        if zone.tag != "platform" and routing in ("Vivaldi", "Wifi", "WIFI"):
            self.omit(zone, f"routing {routing}: delays by coordinates or radio")
        if routing in ("Floyd", "Dijkstra", "DijkstraCache"):
            self.omit(zone, f"routing {routing}: only explicit routes are read")

    def omit(self, element: Element, text: str) -> None:
        self.omitted.append(f"{self.path.name}:{element.line}: {text}")

    def link(self, element: Element) -> None:
        name = element.attributes.get("id", "")
        self.unique(element, name, self.links)
        policy = element.attributes.get("sharing_policy", "SHARED").upper()
        if policy == "WIFI" or "," in element.attributes.get("bandwidth", ""):
            self.omit(
                element, f"link {name}: radio; it is read as a wired link with its first rate"
            )
            first = element.attributes.get("bandwidth", "").split(",")[0]
            element.attributes["bandwidth"] = first
        latency = (
            self.value(element, "latency", _TIMES, 1.0) if "latency" in element.attributes else 0.0
        )
        link = _Link(self.value(element, "bandwidth", _BITS, 8.0), latency, policy == "SHARED")
        split = policy in ("SPLITDUPLEX", "FULLDUPLEX")
        for ending in ("", "_UP", "_DOWN") if split else ("",):
            self.links[name + ending] = link
        self.profiles(element, f"link {name}")

    def unique(self, element: Element, name: str, taken: Container[str]) -> None:
        """Refuse a second element of a name."""
        if name in taken:
            raise mistake(
                self.path, element.line, f"a second {element.tag} {name!r}", "each name once"
            )

    def speed(self, element: Element) -> float:
        """Speed of a host in its first state, or in that of `pstate`."""
        original = element.attributes.get("id", "")
        text = element.attributes.get("speed") or element.attributes.get("power") or ""
        speeds = text.split(",")
        state = element.attributes.get("pstate", "0")
        number = int(state) if re.fullmatch(r"\d{1,3}", state) else len(speeds)
        if number >= len(speeds):
            raise mistake(
                self.path, element.line, f"pstate {state!r}", f"a number below {len(speeds)}"
            )
        speed = number_with_unit(speeds[number], _FLOPS, 1.0)
        if not speed:
            raise mistake(
                self.path, element.line, f"{element.tag} {original}: speed {text!r}", "flop/s"
            )
        if len(speeds) > 1:
            which = "the first" if not number else f"number {number}"
            self.omit(element, f"{element.tag} {original}: frequencies other than {which}")
        return speed

    def profiles(self, element: Element, what: str) -> None:
        changing = [p for p in _PROFILES if p in element.attributes]
        if changing:
            names = ", ".join(changing)
            self.omit(element, f"{what}: {names}; a schedule can be written by hand")
        for key, without_effect in _STATES.items():
            value = element.attributes.get(key, without_effect[0])
            if value.strip().upper() not in without_effect:
                self.omit(element, f"{what}: {key} {value}; a node is up, with its full speed")

    def host(self, element: Element) -> None:
        original = element.attributes.get("id", "")
        self.unique(element, original, self.nodes)
        speed = self.speed(element)
        self.profiles(element, f"host {original}")
        name = self.names.of(original)
        group: dict[str, Any] = {"group": name, "count": 1, "roles": ["client"]}
        group["cpus"] = self.cores(element)
        group["slots"] = group["cpus"]
        self.groups[name] = group
        self.nodes[original] = f"{name}-0"
        self.speeds[name] = speed
        self.disks(group, element)
        for child in element.children:
            if child.tag not in ("disk", "prop"):
                reason = _UNSUPPORTED.get(child.tag, "no equivalent in a platform file")
                self.omit(child, f"host {original}: <{child.tag}>: {reason}")

    def cores(self, element: Element) -> int:
        text = element.attributes.get("core", "1")
        if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            raise mistake(self.path, element.line, f"core {text!r}", "a number of cores")
        return int(text)

    def disks(self, group: dict[str, Any], element: Element) -> None:
        disks: list[dict[str, Any]] = []
        originals: list[str] = []
        for disk in element.all("disk"):
            read, write = (self.value(disk, key, _BITS, 8.0) / 8 for key in ("read_bw", "write_bw"))
            properties = {
                p.attributes.get("id"): p.attributes.get("value", "") for p in disk.all("prop")
            }
            original = disk.attributes.get("id", "")
            self.unique(disk, original, originals)
            originals.append(original)
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", original).strip("-")[:32]
            entry: dict[str, Any] = {"name": name or f"disk{len(disks)}"}
            size = number_with_unit(properties.get("size", ""), _BYTES, 1.0)
            if "size" in properties and not size:
                self.omit(
                    disk,
                    f"disk {entry['name']}: size {properties['size']!r}, which has no known unit",
                )
            if size:
                entry["size"] = f"{round(size)} B"
            entry["limits"] = {"read": byte_rate(read), "write": byte_rate(write)}
            if not disks:
                group["storage"] = {
                    "read": {"rate": byte_rate(read)},
                    "write": {"rate": byte_rate(write)},
                    **({"capacity": entry["size"]} if size else {}),
                }
            disks.append(entry)
        if disks:
            group["disks"] = disks
            group["roles"] = ["client", "storage"]

    def cluster(self, element: Element) -> None:
        original = element.attributes.get("id", "")
        self.unique(element, original, self.nodes)
        if element.attributes.get("topology", "FLAT").upper() != "FLAT":
            self.omit(
                element,
                f"cluster {original}: topology {element.attributes['topology']}; it is read as FLAT",
            )
        count = self.radical(element)
        bits, latency = (
            self.value(element, "bw", _BITS, 8.0),
            self.value(element, "lat", _TIMES, 1.0),
        )
        speed = self.speed(element)
        if "loopback_bw" in element.attributes:
            self.loops.append(self.value(element, "loopback_bw", _BITS, 8.0))
        if "limiter_link" in element.attributes:
            self.omit(element, f"cluster {original}: limiter_link; a node has one link")
        name = self.names.of(original)
        cores = self.cores(element)
        self.groups[name] = {
            "group": name,
            "count": count,
            "roles": ["client"],
            "cpus": cores,
            "slots": cores,
            "network": {"bandwidth": bit_rate(bits)},
        }
        self.speeds[name] = speed
        self.nodes[original] = f"{name}-*"
        # path between two nodes: link of the first, backbone, link of the second
        backbone = (
            self.value(element, "bb_lat", _TIMES, 1.0) if "bb_lat" in element.attributes else 0
        )
        if "bb_bw" in element.attributes:
            self.cluster_backbone(element, bits)
        policy = element.attributes.get("sharing_policy", "SPLITDUPLEX").upper()
        if policy not in ("SPLITDUPLEX", "FULLDUPLEX"):
            self.omit(
                element,
                f"cluster {original}: sharing_policy {policy}; a node has a rate in each direction",
            )
        self.profiles(element, f"cluster {original}")
        self.matrix.setdefault(f"{name}-*", {})[f"{name}-*"] = seconds(2 * latency + backbone)
        # path between a node and the router of the cluster
        self.links[f"{original} "] = _Link(bits, latency + backbone, False)

    def cluster_backbone(self, element: Element, node_bits: float) -> None:
        """The rate that all transfers in a cluster share, or with FATPIPE the limit of each of them."""
        bits = self.value(element, "bb_bw", _BITS, 8.0)
        if element.attributes.get("bb_sharing_policy", "SHARED").upper() == "SHARED":
            self.fabric.append((bits, 1))
        elif bits < node_bits:
            name = element.attributes.get("id", "")
            self.omit(
                element,
                f"cluster {name}: bb_bw of each transfer, below the bw of a node; a node has one rate",
            )

    def radical(self, element: Element) -> int:
        text = element.attributes.get("radical", "")
        ranges: list[tuple[int, int]] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9}))?\s*", part)
            if match is None or int(match[2] or match[1]) < int(match[1]):
                raise mistake(
                    self.path, element.line, f"radical {text!r}", "numbers such as 0-99,104"
                )
            ranges.append((int(match[1]), int(match[2] or match[1])))
        ranges.sort()
        if any(after[0] <= before[1] for before, after in pairwise(ranges)):
            raise mistake(self.path, element.line, f"radical {text!r}", "each number once")
        return sum(last - first + 1 for first, last in ranges)

    def host_link(self, element: Element, ports: dict[str, tuple[float, float]]) -> None:
        """Rates of a host's own link; its latencies are added to `ports`."""
        original = element.attributes.get("id", "")
        group = self.groups.get(self.nodes.get(original, "")[:-2])
        if group is None:
            raise mistake(self.path, element.line, f"host_link of {original!r}", "a host before it")
        up, down = (self.named(element, element.attributes.get(k, "")) for k in ("up", "down"))
        group["network"] = {"out": bit_rate(up.bits), "in": bit_rate(down.bits)}
        ports[self.nodes[original]] = (up.latency_s, down.latency_s)

    def backbone(self, zone: Element, hosts: int) -> float:
        """Latency of the link between the hosts of a zone, 0 without one; its rate limits all of them."""
        backbones = zone.all("backbone")
        if not backbones:
            return 0.0
        link = self.links[backbones[0].attributes.get("id", "")]
        if link.shared:
            self.fabric.append((link.bits, hosts))
        return link.latency_s

    def port_delays(self) -> None:
        """Delays between hosts with own links: up, backbone, and down."""
        for between_s, ports in self.ports:
            distinct = set(ports.values())
            if len(distinct) == 1 and len(ports) == len(self.groups) and not self.matrix:
                ((out, into),) = distinct
                self.matrix["*"] = {"*": seconds(out + between_s + into)}
                continue
            for a, (out, _) in ports.items():
                for b, (_, into) in ports.items():
                    if a != b:
                        self.matrix.setdefault(a, {}).setdefault(b, seconds(out + between_s + into))

    def named(self, element: Element, name: str) -> _Link:
        if name not in self.links:
            raise mistake(self.path, element.line, f"link {name!r}", "a link of this file")
        return self.links[name]

    def zone_routes(self, zone: Element) -> None:
        for route in zone.all("route", "zoneRoute", "ASroute"):
            ends = [route.attributes.get(k, "") for k in ("src", "dst")]
            links = []
            for at in route.all("link_ctn"):
                name = at.attributes.get("id", "")
                direction = at.attributes.get("direction", "NONE").upper()
                if f"{name}_{direction}" in self.links:
                    name = f"{name}_{direction}"
                links.append(self.named(at, name))
                if self.links[name].shared and ends[0] != ends[1]:
                    self.used[at.attributes.get("id", "")] += 1
            patterns = [self.nodes.get(end) for end in ends]
            if None in patterns:
                if route.tag == "route" and not all(
                    e in self.nodes or e.startswith("$") for e in ends
                ):
                    continue  # through a router: covered by the routes of zones
                self.omit(route, f"route {ends[0]} to {ends[1]}: zones within zones")
                continue
            self.route(route, str(patterns[0]), str(patterns[1]), links)

    def route(self, element: Element, a: str, b: str, links: list[_Link]) -> None:
        if a == b and links:
            self.loops.append(min(link.bits for link in links))
        if a == b or not links:
            return
        if (a, b) in self.routed:
            raise mistake(self.path, element.line, f"a second route from {a} to {b}", "one of them")
        self.routed.add((a, b))
        latency = sum(link.latency_s for link in links)
        for end in (a, b):  # routes of zones exclude the links of the nodes
            zone = next((n for n, pattern in self.nodes.items() if pattern == end), "")
            latency += self.links[f"{zone} "].latency_s if f"{zone} " in self.links else 0.0
        bits = min(link.bits for link in links)
        both = element.attributes.get("symmetrical", "YES").upper() in ("YES", "TRUE", "1")
        self.matrix.setdefault(a, {})[b] = seconds(latency)
        if both:
            self.matrix.setdefault(b, {}).setdefault(a, seconds(latency))
        self.routes.append((a, b, bits, element.line))
        for end in (a, b):
            self.widest[end] = max(self.widest.get(end, 0.0), bits)

    def result(self) -> Foreign:
        fastest = max(self.speeds.values())
        for name, group in self.groups.items():
            share = self.speeds[name] / fastest
            if share < 1:
                group["speed"] = float(f"{share:.6g}")
                group["cpu_ratio"] = float(f"{share:.6g}")
            widest = self.widest.get(f"{name}-0") or self.widest.get(f"{name}-*")
            if widest and "network" not in group:
                group["network"] = {"bandwidth": bit_rate(widest)}
        self.unconnected()
        self.losses()
        self.port_delays()
        disks = any("storage" in group for group in self.groups.values())
        loopback = bit_rate(min(self.loops)) if self.loops else "2 GB/s"
        network: dict[str, Any] = {"bandwidth": self.most(), "loopback": loopback}
        if len(set(self.loops)) > 1:
            self.omitted.append("routes of hosts to themselves differ: the file has one loopback")
        if self.matrix:
            network["matrix"] = self.matrix
        if len(self.fabric) == 1 and self.fabric[0][1] == len(self.groups):
            network["fabric"] = bit_rate(self.fabric[0][0])
        elif self.fabric:
            which = "backbones of several clusters" if self.fabric[1:] else "backbone of some hosts"
            self.omitted.append(f"{which}: the file has one for all hosts")
        document: dict[str, Any] = {
            "penstock_platform": 1,
            "name": re.sub(r"[^A-Za-z0-9_-]+", "-", self.path.stem)[:32].strip("-") or "simgrid",
            "description": f"Imported from SimGrid's {self.path.name}.",
            "hosts": list(self.groups.values()),
            "network": network,
        }
        if disks:
            document["store"] = {"chunk": "1MiB", "placement": "striped", "allocation": "none"}
        if self.names.original:
            document["facts"] = {"names": self.names.original}
        if not self.loops:
            document["assumed"] = [
                {
                    "path": "network.loopback",
                    "low": "500 MB/s",
                    "high": "8 GB/s",
                    "note": "not in the file",
                }
            ]
        if not disks:
            # without storage there is no prediction, so no roles
            for group in document["hosts"]:
                group.pop("roles", None)
        return Foreign(document, self.omitted)

    def unconnected(self) -> None:
        """Report hosts without a route: their rate is that of the widest one, their delays are 0."""
        alone = [name for name, group in self.groups.items() if "network" not in group]
        if alone and len(self.groups) > 1:
            named = ", ".join(first_of(alone, 5))
            self.omitted.append(
                f"hosts without a route between hosts ({named}): read with a rate of {self.most()} "
                "and without delays"
            )

    def losses(self) -> None:
        """Report shared links and narrow routes, which separate links per node cannot express."""
        shared = [name for name, times in self.used.items() if times > 1]
        if shared:
            named = ", ".join(first_of(shared, 5))
            self.omitted.append(
                f"links that several routes share ({named}): each node has its own link, so routes "
                "slow each other down only at their ends"
            )
        narrow = [
            (a, b)
            for a, b, bits, _ in self.routes
            if bits < min(self.widest[a], self.widest[b]) * 0.999
        ]
        if narrow:
            a, b = narrow[0]
            self.omitted.append(
                f"bandwidth of {len(narrow)} routes that are narrower than both their ends (as {a} to {b}): "
                "a pair has its own delay, but no bandwidth"
            )

    def most(self) -> str:
        return bit_rate(max(self.widest.values(), default=1e9))
