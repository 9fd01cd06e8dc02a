"""Networks between nodes: a bridge each, a link per interface, variable bandwidth, delay and loss."""

from penstock.emulate.network.network import LinkChange, Network
from penstock.emulate.network.port import Interface

__all__ = ["Interface", "LinkChange", "Network"]
