"""Traffic between hosts that the rates of the nodes' links permit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.parts.remote.cluster.demand import Floats, Ints, Links

#: rate of a link without limit, where only the sizes of alternatives are compared [bytes/s]
_NOMINAL_BPS = 125e6


@dataclass(frozen=True)
class Traffic:
    """Largest traffic of each host to and from the others [bytes/s]; `members`: links, hosts × networks;
    `unlimited`: True if links without a limit connect nodes on several hosts.

    The traffic of a host in a network is bounded by its own links and by those of the other hosts. Links
    without a limit of their own are promised nothing, and do not bound the others.
    """

    out_bps: Floats
    in_bps: Floats
    members: Ints
    unlimited: bool = False

    @property
    def spanning(self) -> Ints:
        """Numbers of the networks with nodes on several hosts."""
        return np.flatnonzero((self.members > 0).sum(axis=0) > 1)


def traffic_of(links: Links, host_of: Ints, hosts: int) -> Traffic:
    """Traffic of a placement; `host_of`: host of each node."""
    at = host_of[links.node] * len(links.networks) + links.network
    shape = (hosts, len(links.networks))

    def summed(weights: Floats | None) -> Floats:
        size = hosts * len(links.networks)
        return np.bincount(at, weights=weights, minlength=size).astype(np.float64).reshape(shape)

    out, inwards = (summed(np.nan_to_num(rate)) for rate in (links.out_bps, links.in_bps))
    open_out, open_in = (
        summed(np.isnan(rate).astype(np.float64)) for rate in (links.out_bps, links.in_bps)
    )
    members = summed(None).astype(np.intp)
    spanning = (members > 0).sum(axis=0) > 1
    return Traffic(
        np.minimum(out, _elsewhere(inwards, open_in)).sum(axis=1),
        np.minimum(inwards, _elsewhere(out, open_out)).sum(axis=1),
        members,
        bool((open_out + open_in)[:, spanning].any()),
    )


def _elsewhere(rates: Floats, unlimited: Floats) -> Floats:
    """Rates of the other hosts: infinite where one of them has a link without limit."""
    other = np.maximum(rates.sum(axis=0) - rates, 0.0)
    return np.where(unlimited.sum(axis=0) - unlimited > 0.5, np.inf, other)


def crossing(links: Links, host_of: Ints, hosts: int) -> float:
    """Cost of a placement: total traffic between hosts, if every link is used at its rate."""
    filled = Links(
        links.node,
        links.network,
        np.nan_to_num(links.out_bps, nan=_NOMINAL_BPS),
        np.nan_to_num(links.in_bps, nan=_NOMINAL_BPS),
        links.networks,
    )
    return float(traffic_of(filled, host_of, hosts).out_bps.sum())
