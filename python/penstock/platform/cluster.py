"""The cluster that a platform file declares, as a specification for the emulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from penstock.errors import BadInput
from penstock.platform.emulation import MAIN, SHARES, cluster_of, delays_of
from penstock.platform.file import LinkFile
from penstock.platform.hosts import Platform
from penstock.spec.check_cluster import check_cluster
from penstock.spec.cluster import (
    MOST_NODES,
    ClusterSpec,
)
from penstock.spec.machine import (
    InterfaceFile,
    MachineFile,
    NamedNetworkFile,
    NetworkPart,
    WireFile,
)
from penstock.text import duration

_Wire = TypeVar("_Wire", bound=WireFile)


def cluster_spec(platform: Platform) -> ClusterSpec:
    """Hosts of a platform as nodes to be started, `GROUP-0`, `GROUP-1`, … with their disks and links.

    Roles, service times, store, power and prices have no counterpart: the programs on the nodes determine
    them.
    """
    main = main_network(platform)
    machines: list[tuple[str, MachineFile]] = []
    for host in platform.hosts:
        own = _declared(host.part.network, WireFile.model_fields) if host.part.network else {}
        declared = host.part.interfaces or [InterfaceFile(network=MAIN)]
        interfaces = [_with_link(i, own) if i.network == MAIN else i for i in declared]
        machines.append((host.name, host.part.model_copy(update={"interfaces": interfaces})))
    return cluster_of(
        platform.name,
        machines,
        [main, *platform.file.networks],
        platform.file.schedule,
        lambda name: platform.profiles[name],
        base_dir=platform.base_dir,
        runtime=platform.file.runtime,
    )


def checked_cluster(platform: Platform) -> ClusterSpec:
    """Like `cluster_spec`, checked for this host. Raises BadInput with every mistake."""
    # before the pairs of all nodes are enumerated
    if len(platform.hosts) > MOST_NODES * (1 + len(platform.file.networks)):
        raise BadInput(
            f"{platform.name}: found {len(platform.hosts)} hosts; "
            f"expected at most {MOST_NODES} nodes on a network"
        )
    spec = cluster_spec(platform)
    check_cluster(spec)
    return spec


def main_network(platform: Platform) -> NamedNetworkFile:
    """Section `network` of a platform file as the network of its nodes, except for bandwidths, which are
    merged into each host's own link. BadInput for a rate that a link cannot enforce."""
    declared = _declared(platform.file.network, NetworkPart.model_fields)
    wire = {k: v for k, v in declared.items() if k not in ("bandwidth", "out", "in")}
    return _checked(NamedNetworkFile, {"name": MAIN, **wire})


def _with_link(interface: InterfaceFile, link: Mapping[str, Any]) -> InterfaceFile:
    """An interface in the main network; its defaults are those of the host's link."""
    own = interface.model_dump(by_alias=True, exclude_unset=True)
    return _checked(InterfaceFile, {**link, **own, "network": MAIN})


def _declared(part: LinkFile, keys: Iterable[str]) -> dict[str, Any]:
    names = {"in_": "in"}
    values = {names.get(k, k): getattr(part, k, None) for k in keys}
    return {k: v for k, v in values.items() if v is not None}


def _checked(model: type[_Wire], values: dict[str, Any]) -> _Wire:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"network.{key}: found '{first['input']}', which cannot be emulated; "
            f"expected {first['msg']}"
        ) from None


def not_predicted(platform: Platform) -> list[str]:
    """Parts of a platform's nodes that a prediction ignores, one text each."""
    file = platform.file
    texts = []
    links = [file.network, *(h.network for h in file.hosts if h.network is not None)]
    keys = ("jitter", *SHARES)
    impairments = [k for k in keys if any(getattr(link, k, None) is not None for link in links)]
    if impairments:
        texts.append(f"the network's {', '.join(impairments)}")
    texts += _unequal_latencies(platform)
    if file.networks:
        texts.append(f"the networks {', '.join(n.name for n in file.networks)}")
    features = {
        f"{g.group}.{d.name}" for g in file.hosts for d in g.disks if d.features is not None
    }
    if features:
        texts.append(f"features of the disks {', '.join(sorted(features))}")
    texts += _without_amounts(platform)
    if file.schedule:
        count = len(file.schedule)
        texts.append(f"the schedule ({count} change{'s' * (count != 1)})")
    return [f"not in the prediction: {text}" for text in texts]


def _unequal_latencies(platform: Platform) -> list[str]:
    """A text if pairs of hosts have different latencies, of which a prediction has the mean."""
    names = [host.name for host in platform.hosts]
    delays = delays_of(platform.file.network.matrix or {}, names)
    latencies = set(delays.values())
    if len(delays) < len(names) * (len(names) - 1):
        latencies.add(0.0)  # of the other pairs
    if len(latencies) < 2:
        return []
    low, high = (duration(1e9 * s) for s in (min(latencies), max(latencies)))
    return [f"latencies of {low} to {high} between pairs of hosts; it has their mean"]


def _without_amounts(platform: Platform) -> list[str]:
    """Texts on hosts without power or price on a platform where others have them."""
    texts = []
    for what, amounts, roles in (
        ("energy", platform.power, {"client", "storage"}),
        ("price", platform.price, {"client", "storage", "manager"}),
    ):
        groups = dict.fromkeys(
            h.group for h in platform.hosts if h.roles & roles and h.name not in amounts
        )
        if amounts and groups:
            texts.append(f"the {what} of {', '.join(groups)}, for which the platform has none")
    return texts
