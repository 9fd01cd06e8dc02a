"""Convert Distem's JSON description of a virtual platform to a platform file.

The format is that of Distem's output (`GET /` of its coordinator, `distem --get-vplatform`) and of the input
of `vplatform_create`. Units of rates are those of tc(8): `mbit` is 10⁶ bit/s, `mbps` is 10⁶ bytes/s.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
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
from penstock.platform.foreign import Foreign

_DECIMAL = {p: 1000.0**n for n, p in enumerate(("", "k", "m", "g", "t"))}
_BINARY = {f"{p}i": 1024.0**n for n, p in enumerate(("", "k", "m", "g", "t")) if p}
_RATES = {f"{p}bit": f for p, f in (_DECIMAL | _BINARY).items()} | {
    f"{p}bps": 8 * f for p, f in (_DECIMAL | _BINARY).items()
}
_TIMES = {
    f"{p}{unit}": f
    for p, f in (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9))
    for unit in ("s", "sec", "secs")
}
_SIZES = {"k": 1024.0, "m": 1024.0**2, "g": 1024.0**3, "t": 1024.0**4, "b": 1.0}
_SHARES = {
    "loss": "loss",
    "duplication": "duplicate",
    "corruption": "corrupt",
    "reordering": "reorder",
}
_LIMITS = {
    "read_limit": "read",
    "write_limit": "write",
    "read_iops": "read_iops",
    "write_iops": "write_iops",
}
#: keys of each object: those that are read, and those that do not matter on another host (generated names,
#: paths, states). Any other key is reported as omitted.
_KEYS = {
    "vplatform": ("pnodes vnodes vnetworks", ""),
    "vnode": (
        "name mode vcpu vmem vfilesystem vifaces ssh_key host",
        "id status",
    ),
    "vnetwork": ("name address vroutes", "vnodes opts"),
    "vcpu": ("vcores corenb val unit frequency", "pcpu"),
    "vcore": ("frequency", "id pcore"),
    "vmem": ("mem swap hierarchy hard_limit soft_limit", ""),
    "vfilesystem": ("image disk_throttling", "shared cow path sharedpath vnode id"),
    "disk_throttling": ("limits", "hierarchy"),
    "limit": ("device read_limit write_limit read_iops write_iops", ""),
    "viface": ("name vnetwork address output input", "id vnode macaddress bridge"),
    "traffic": ("bandwidth latency loss duplication corruption reordering", "id"),
    "bandwidth": ("rate", ""),
    "latency": ("delay jitter", ""),
    "share": ("percent", ""),
}


def read_distem(path: Path, raw: bytes) -> Foreign:
    """Read a description. Raises BadInput for another kind of document and for invalid values."""
    try:
        document = json.loads(raw, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise mistake(path, line, f"no JSON ({error})", "a Distem platform") from None
    described = document.get("vplatform") if isinstance(document, dict) else None
    if not isinstance(described, dict):
        raise mistake(path, 1, "no object called vplatform", "Distem's JSON description of one")
    return _Reader(path, described).read()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. ValueError for a key that it has several times."""
    keys = Counter(key for key, _ in pairs)
    if len(keys) < len(pairs):
        raise ValueError(f"the key {keys.most_common(1)[0][0]!r} several times")
    return dict(pairs)


class _Reader:
    def __init__(self, path: Path, described: Mapping[str, Any]) -> None:
        self.path = path
        self.described = described
        self.omitted: list[str] = []
        self.names = Names()
        self.vnodes: set[str] = set()
        #: a platform file has a network `net` already
        self.network_names = Names(["net"])
        #: name of each network here, by its name in Distem
        self.networks: dict[str, str] = {}
        #: nodes of each network
        self.members: dict[str, list[str]] = {}
        #: delays of each network by node: of outgoing and of incoming packets [s]
        self.delays: dict[str, dict[str, tuple[float, float]]] = {}

    def keys(self, kind: str, raw: Mapping[str, Any], where: str) -> None:
        """Report each key with a value that is not read and may matter."""
        read, ignored = _KEYS[kind]
        supported = {*read.split(), *ignored.split()}
        for key, value in raw.items():
            if str(key).lower() not in supported and value not in (None, "", [], {}):
                self.omitted.append(f"{where}: unknown key {key} ({json.dumps(value)[:60]})")

    def wrong(self, where: str, value: object, expected: str) -> Exception:
        return mistake(self.path, 1, f"{where} {value!r}", expected)

    def read(self) -> Foreign:
        networks = {}
        self.keys("vplatform", self.described, "vplatform")
        for raw in self.each(self.described.get("vnetworks"), "vnetworks"):
            name = self.text(raw, "name", "a network")
            if name in networks:
                raise self.wrong("a second network", name, "each name once")
            self.networks[name] = self.network_names.of(name)
            subnet = self.text(raw, "address", f"network {name}")
            self.keys("vnetwork", raw, f"network {name}")
            try:
                networks[name] = str(ipaddress.IPv4Network(subnet, strict=False))
            except ValueError:
                raise self.wrong(f"network {name}: address", subnet, "IPv4/length") from None
            if any(True for _ in self.each(raw.get("vroutes"), "vroutes")):
                self.omitted.append(f"network {name}: vroutes; networks are not joined by gateways")
        hosts = []
        for raw in self.each(self.described.get("vnodes"), "vnodes"):
            hosts.append(self.node(raw, networks))
        if not hosts:
            raise mistake(self.path, 1, "no vnodes", "at least one")
        physical = [
            self.text(raw, "address", "a pnode")
            for raw in self.each(self.described.get("pnodes"), "pnodes")
        ]
        document: dict[str, Any] = {
            "penstock_platform": 1,
            "name": "distem",
            "description": f"Imported from Distem's {self.path.name}.",
            "hosts": hosts,
            "network": {},
            "networks": [self.network(name, subnet) for name, subnet in networks.items()],
        }
        facts = {
            "names": self.names.original,
            "networks": self.network_names.original,
            "physical_hosts": physical,
        }
        if any(facts.values()):
            document["facts"] = {key: value for key, value in facts.items() if value}
        return Foreign(document, self.omitted)

    def each(self, many: Any, what: str) -> Iterator[dict[str, Any]]:
        """Yield the members of an object, a list, or a list of pairs; Distem writes all three forms."""
        if many is None:
            return
        values = list(many.values()) if isinstance(many, dict) else many
        if not isinstance(values, list):
            raise self.wrong(what, many, "an object or a list")
        for value in values:
            if isinstance(value, list) and len(value) == 2:
                value = value[1]
            if not isinstance(value, dict):
                raise self.wrong(what, value, "an object")
            yield value

    def within(self, raw: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
        """The object of a key; empty if it is missing or null."""
        value = raw.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(f"{where}: {key}", value, "an object")
        return value

    def text(self, raw: Mapping[str, Any], key: str, where: str) -> str:
        value = raw.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{where}: {key}", value, "text")
        return value.strip()

    def node(self, raw: Mapping[str, Any], networks: dict[str, str]) -> dict[str, Any]:
        original = self.text(raw, "name", "a vnode")
        if original in self.vnodes:
            raise self.wrong("a second vnode", original, "each name once")
        self.vnodes.add(original)
        name = self.names.of(original)
        where = f"vnode {original}"
        self.keys("vnode", raw, where)
        host: dict[str, Any] = {"group": name, "count": 1}
        if raw.get("mode") == "gateway":
            self.omitted.append(f"{where}: mode gateway; networks are not joined by gateways")
        host |= self.pin(raw, where)
        self.processors(host, self.within(raw, "vcpu", where), where)
        self.memory(host, self.within(raw, "vmem", where), where)
        system = self.within(raw, "vfilesystem", where)
        self.keys("vfilesystem", system, f"{where}: vfilesystem")
        if system.get("image"):
            image = Path(str(system["image"]).removeprefix("file://"))
            if os.path.isdir(image):
                host["image"] = str(image)
            else:
                self.omitted.append(
                    f"{where}: image {system['image']}; expected an existing directory"
                )
        if raw.get("ssh_key"):
            host["ssh"] = True
        host["disks"] = self.disks(self.within(system, "disk_throttling", where), where)
        host["interfaces"] = [
            self.interface(viface, f"{name}-0", networks, where)
            for viface in self.each(raw.get("vifaces"), "vifaces")
            if self.joined(viface, where)
        ]
        if not host["interfaces"]:
            self.omitted.append(f"{where}: on no network; it gets one interface in the network net")
        return {k: v for k, v in host.items() if v != []}

    def pin(self, raw: Mapping[str, Any], where: str) -> dict[str, str]:
        """The physical host of a node, of which Distem writes the address."""
        address = raw.get("host")
        if address in (None, ""):
            return {}
        if not isinstance(address, str) or not re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", address):
            raise self.wrong(f"{where}: host", address, "the address of a pnode")
        return {"host": address}

    def joined(self, viface: Mapping[str, Any], where: str) -> bool:
        if viface.get("vnetwork"):
            return True
        self.omitted.append(f"{where}: interface {viface.get('name')} without a network")
        return False

    def processors(self, host: dict[str, Any], vcpu: Mapping[str, Any], where: str) -> None:
        cores = list(self.each(vcpu.get("vcores"), "vcores"))
        declared_count = str(vcpu.get("corenb") or "0")
        if not declared_count.isdecimal() or len(declared_count) > 6:
            raise self.wrong(f"{where}: corenb", vcpu["corenb"], "a number of cores")
        count = len(cores) or int(declared_count)
        if count:
            host["cpus"] = count
        self.keys("vcpu", vcpu, f"{where}: vcpu")
        for core in cores:
            self.keys("vcore", core, f"{where}: vcore")
        unit = str(vcpu.get("unit") or "").lower()
        if unit not in ("", "mhz", "ratio"):
            raise self.wrong(f"{where}: vcpu: unit", vcpu["unit"], "mhz or ratio")
        declared = {str(c.get("frequency", "0")) for c in cores}
        declared |= {str(vcpu.get(key, "0")) for key in ("frequency", "val")}
        declared -= {"0", "None", ""}
        values = {number_with_unit(s, {"MHz": 1.0, "": 1.0}, 1.0) for s in declared}
        value = next(iter(values)) if len(values) == 1 else None
        if value is not None and 0 < value <= 1 and unit != "mhz":
            host["cpu_ratio"] = value
        elif declared:
            self.omitted.append(
                f"{where}: frequency {', '.join(sorted(declared))} MHz; expected a ratio in ]0, 1] of that "
                "of the host"
            )

    def memory(self, host: dict[str, Any], vmem: Mapping[str, Any], where: str) -> None:
        """Read the memory limits of a node. Their unit is MiB: Distem appends `M` for the cgroup files.

        In the unified hierarchy Distem sets `hard_limit` and `soft_limit` (memory.max and memory.high) and
        derives `mem` from them. In version 1 it sets `mem`.
        """
        self.keys("vmem", vmem, f"{where}: vmem")
        hierarchy = str(vmem.get("hierarchy") or "").lower()
        if hierarchy not in ("", "v1", "v2"):
            raise self.wrong(f"{where}: vmem: hierarchy", vmem["hierarchy"], "v1 or v2")
        read = {"v1": ("mem",), "v2": ("hard_limit", "soft_limit")}.get(
            hierarchy, ("mem", "hard_limit", "soft_limit")
        )
        for key in read:
            text = str(vmem.get(key) or "").strip().lower()
            if text in ("", "0", "max"):
                continue
            size = number_with_unit(
                text.removesuffix("b") if text[-2:-1].isalpha() else text, _SIZES, 1024.0**2
            )
            if size is None or size < 1:
                raise self.wrong(f"{where}: {key}", text, "a number of megabytes, or max")
            host["memory_soft" if key == "soft_limit" else "memory"] = f"{round(size)} B"
        if str(vmem.get("swap") or "0") not in ("0", ""):
            self.omitted.append(f"{where}: swap; nodes have none of their own")

    def disks(self, throttling: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
        disks = []
        self.keys("disk_throttling", throttling, f"{where}: disk_throttling")
        for limit in self.each(throttling.get("limits"), "limits"):
            device = self.text(limit, "device", f"{where}: disk_throttling")
            self.keys("limit", limit, f"{where}: {device}")
            limits: dict[str, Any] = {}
            for key, name_here in _LIMITS.items():
                value = limit.get(key)
                if value in (None, "", "max", 0, "0"):
                    continue
                is_iops = name_here.endswith("iops")
                number = number_with_unit(str(value).lower(), {} if is_iops else _SIZES, 1.0)
                if not number:
                    unit = "requests" if is_iops else "bytes"
                    raise self.wrong(
                        f"{where}: {device}: {key}", value, f"{unit} per second, above 0"
                    )
                limits[name_here] = f"{number:.12g} IOPS" if is_iops else byte_rate(number)
            name = (
                re.sub(r"[^A-Za-z0-9_-]+", "-", device.removeprefix("/dev/")).strip("-") or "disk"
            )
            if limits:
                disks.append({"name": name[:32], "limits": limits})
        return disks

    def interface(
        self, viface: Mapping[str, Any], node: str, networks: dict[str, str], where: str
    ) -> dict[str, Any]:
        network = str(viface["vnetwork"])
        if network not in networks:
            raise self.wrong(
                f"{where}: vnetwork", network, f"one of {', '.join(networks) or 'none'}"
            )
        interface: dict[str, Any] = {"network": self.networks[network]}
        self.keys("viface", viface, f"{where}, {network}")
        self.members.setdefault(network, []).append(node)
        address = str(viface.get("address") or "").split("/")[0]
        if address not in ("", "0.0.0.0"):
            interface["address"] = address
        out, incoming = (
            {key.lower(): value for key, value in self.within(viface, way, where).items()}
            for way in ("output", "input")
        )
        for way, traffic in (("out", out), ("in", incoming)):
            self.traffic(traffic, f"{where}, {network}: {way}put")
            rate = self.within(traffic, "bandwidth", where).get("rate")
            if rate is not None:
                bits = number_with_unit(str(rate).lower(), _RATES, 1.0)
                if not bits:
                    raise self.wrong(
                        f"{where}: rate", rate, "a rate as tc reads it, such as 20mbps"
                    )
                interface[way] = bit_rate(bits)
        self.latency(interface, out, incoming, node, network, where)
        for key, name_here in _SHARES.items():
            shares = [self.share(self.within(s, key, where), where, key) for s in (out, incoming)]
            if shares[0] != shares[1]:
                self.omitted.append(
                    f"{where}, {network}: {key} of input and output differ; an interface has one for both"
                )
            elif shares[0]:
                interface[name_here] = f"{shares[0]:.12g}%"
        delayed = any(self.delays.get(network, {}).get(node, ()))
        if "reorder" in interface and "latency" not in interface and not delayed:
            del interface["reorder"]
            self.omitted.append(
                f"{where}, {network}: reordering without a latency; packets that are not delayed keep "
                "their order"
            )
        return interface

    def traffic(self, raw: Mapping[str, Any], where: str) -> None:
        """Report the keys of one direction of an interface that are not read."""
        self.keys("traffic", raw, where)
        for key in ("bandwidth", "latency", *_SHARES):
            kind = "share" if key in _SHARES else key
            self.keys(kind, self.within(raw, key, where), f"{where}: {key}")

    def latency(
        self,
        interface: dict[str, Any],
        out: Any,
        incoming: Any,
        node: str,
        network: str,
        where: str,
    ) -> None:
        where = f"{where}, {network}"
        times = []
        for traffic in (out, incoming):
            latency = self.within(traffic, "latency", where)
            for key in ("delay", "jitter"):
                value = latency.get(key)
                read = 0.0 if value in (None, "") else number_with_unit(str(value), _TIMES, 1e-6)
                if read is None:
                    raise self.wrong(
                        f"{where}: {key}", value, "a time as tc reads it, such as 20ms"
                    )
                times.append(read)
        delay_out, jitter_out, delay_in, jitter_in = times
        if (delay_out, jitter_out) == (delay_in, jitter_in):
            if delay_out:
                interface["latency"] = seconds(delay_out)
            if jitter_out:
                # netem's default distribution
                interface |= {"jitter": seconds(jitter_out), "distribution": "uniform"}
        elif jitter_out or jitter_in:
            self.omitted.append(f"{where}: jitter of input and output differ; an interface has one")
        else:
            self.delays.setdefault(network, {})[node] = (delay_out, delay_in)

    def share(self, raw: Mapping[str, Any], where: str, key: str) -> float:
        value = raw.get("percent")
        if value in (None, ""):
            return 0.0
        share = number_with_unit(str(value).removesuffix("%"), {}, 1.0)
        if share is None or share > 100:
            raise self.wrong(f"{where}: {key}", value, "a percentage")
        return share

    def network(self, name: str, subnet: str) -> dict[str, Any]:
        """Describe a network; latencies that differ by direction become its matrix of delays."""
        network: dict[str, Any] = {"name": self.networks[name], "subnet": subnet}
        delays = self.delays.get(name, {})
        nodes = (
            self.members.get(name, []) if any(out or into for out, into in delays.values()) else []
        )
        none = (0.0, 0.0)
        matrix = {
            a: {
                b: seconds(delays.get(a, none)[0] + delays.get(b, none)[1]) for b in nodes if b != a
            }
            for a in nodes
        }
        if len(nodes) > 1:
            network["matrix"] = matrix
        return network
