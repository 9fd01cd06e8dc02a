"""Checks of a network's specification against the host's features; refusals name the feature."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Literal

from penstock.emulate.network.capabilities import offers
from penstock.emulate.network.patch import MOST_DELAY_S
from penstock.emulate.network.traffic_shape import shapes_of
from penstock.errors import BadInput
from penstock.spec.cluster import LinkSpec, NetworkSpec


def engine_of(spec: NetworkSpec) -> Literal["netem", "relay"]:
    """Engine that delays and drops packets in a network on this host."""
    if spec.engine == "auto":
        return "netem" if offers().netem else "relay"
    return spec.engine


def check_network(spec: NetworkSpec, nodes: Collection[str]) -> None:
    """Raises BadInput for an unavailable engine and for contradictory delays."""
    if spec.engine not in ("auto", "netem", "relay"):
        raise BadInput(
            f"network {spec.name}: found engine {spec.engine!r}; expected netem or relay"
        )
    if spec.engine != "auto" and not getattr(offers(), spec.engine):
        other = "relay" if spec.engine == "netem" else "netem"
        hint = (
            f"expected {other}, or auto" if getattr(offers(), other) else "nothing else offers it"
        )
        raise BadInput(
            f"network {spec.name}: engine {spec.engine}: {offers().why[spec.engine]}; {hint}"
        )
    _check_delay(f"network {spec.name}: delay", spec.delay_s)
    if spec.delay_s or spec.delays:
        _need_relay(f"network {spec.name}: delays between nodes")
    check_delays(spec.name, spec.delays, nodes)


def check_delays(
    network: str, delays: Mapping[tuple[str, str], float], nodes: Collection[str]
) -> None:
    """Raises BadInput for delays of unknown nodes (if the nodes are available)."""
    for (a, b), delay_s in delays.items():
        for node in (a, b):
            if nodes and node not in nodes:
                raise BadInput(f"network {network}: found a delay of node {node!r}; there is none")
        if a == b:
            raise BadInput(f"network {network}: found a delay from {a} to itself")
        _check_delay(f"network {network}: delay from {a} to {b}", delay_s)


def _check_delay(what: str, delay_s: float) -> None:
    if not (math.isfinite(delay_s) and 0 <= delay_s <= MOST_DELAY_S):
        raise BadInput(f"{what}: found {delay_s} s; expected 0 to {MOST_DELAY_S:g} s")


def _need_relay(what: str) -> None:
    if not offers().relay:
        raise BadInput(f"{what} is not available: {offers().why['relay']}")


def check_offered(spec: NetworkSpec, link: LinkSpec) -> None:
    """Raise BadInput that names the part of a link's specification that this host cannot emulate."""
    for direction, shape in shapes_of(link).items():
        if shape.bps is not None and not offers().bandwidth:
            why = offers().why.get("tbf") or offers().why["bandwidth"]
            raise BadInput(f"network {spec.name}: {direction}_bps is not available: {why}")
        if shape.impaired and not getattr(offers(), engine_of(spec)):
            impairments = [
                k for k in ("loss", "duplicate", "corrupt", "reorder") if getattr(shape, k)
            ]
            names = ", ".join(impairments or ["delay"])
            why = "; ".join(v for k, v in offers().why.items() if k in ("netem", "relay"))
            raise BadInput(f"network {spec.name}: {names} not available here: {why}")
