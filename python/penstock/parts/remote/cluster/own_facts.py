"""Facts of this host for a plan: those of `penstock doctor`, its link, and a trial of VXLAN."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pyroute2 import IPRoute

from penstock.emulate.disks.measure_floor import host_floor
from penstock.errors import BadInput, PenstockError
from penstock.host.probe.bpf_trial import Verdict
from penstock.host.probe.facts import host_facts
from penstock.host.probe.probe import Feature, probe_host
from penstock.parts.remote.cluster.verify import VXLAN
from penstock.state import state_dir

_NET = Path("/sys/class/net")


def own_facts(address: str | None = None, *, refresh: bool = False) -> Mapping[str, object]:
    """Facts of this host, as JSON values; `address`: end point of its tunnels, whose link is described.

    Raises BadInput if no interface has the address.
    """
    link = link_facts(address) if address is not None else {}
    trouble = ""
    floors: Mapping[str, object] | None = None
    try:
        floors = asdict(host_floor(refresh=refresh))
    except PenstockError as error:
        trouble = str(error)
    return {
        "host": host_facts(state_dir()),
        "features": [asdict(f) for f in (*probe_host(), vxlan_feature())],
        "floors": floors,
        "floors_unknown_because": trouble or None,
        "link": link,
    }


def link_facts(address: str) -> Mapping[str, object]:
    """Interface with an address, its MTU and its nominal rate [bytes/s; None where the kernel has none]."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise BadInput(
            f"--address: found {address!r}; expected an IP address of this host"
        ) from None
    with IPRoute() as ip:
        indices = {
            message["index"]
            for message in ip.get_addr()
            if address in (message.get_attr("IFA_ADDRESS"), message.get_attr("IFA_LOCAL"))
        }
        links = [link for link in ip.get_links() if link["index"] in indices]
    if not links:
        raise BadInput(
            f"--address: found {address}, which no interface has; expected one of this host"
        )
    name = str(links[0].get_attr("IFLA_IFNAME"))
    return {
        "interface": name,
        "mtu": links[0].get_attr("IFLA_MTU"),
        "rate_bps": _nominal_bps(name),
        "method": "nominal",
    }


def _nominal_bps(interface: str) -> float | None:
    try:
        speed = int((_NET / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed * 1e6 / 8 if speed > 0 else None


def vxlan_feature() -> Feature:
    """VXLAN, tried in a separate network namespace."""
    use = "networks of nodes on several hosts"
    tool, unshare = shutil.which("ip"), shutil.which("unshare")
    if tool is None or unshare is None:
        return Feature("kernel", VXLAN, "unknown", "no ip to try with", "apt install iproute2", use)
    line = [unshare, "-n", tool, "link", "add", "vx0", "type", "vxlan", "id", "4096", "dev", "lo"]
    try:
        tried = subprocess.run(
            [*line, "dstport", "4789"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Feature("kernel", VXLAN, "unknown", str(error), "", use)
    if tried.returncode == 0:
        return Feature("kernel", VXLAN, "supported", "tried in a separate namespace", "", use)
    message = (tried.stderr.strip().splitlines() or [""])[0]
    verdict: Verdict = "unknown" if "unshare" in message else "unsupported"
    remedy = "root" if verdict == "unknown" else "the kernel module vxlan (CONFIG_VXLAN)"
    return Feature("kernel", VXLAN, verdict, message, remedy, use)
