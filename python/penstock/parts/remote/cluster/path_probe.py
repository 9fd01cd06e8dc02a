"""Probes of the paths between hosts; these functions run in the workers of the hosts.

A probe is a UDP packet to the port of VXLAN, which the other host returns.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from typing import TypedDict

from penstock.errors import PenstockError
from penstock.parts.remote.cluster.network_plan import VXLAN_PORT
from penstock.parts.remote.cluster.own_facts import own_facts

#: probes of one path
_PROBES = 200
_PROBE_BYTES = 64
#: a probe is lost after this time [s]
_PATIENCE_S = 0.5
#: probes that are lost one after the other, after which a host is unreachable
_MOST_LOST = 10
_NUMBER_BYTES = 8

_ECHOES: list[socket.socket] = []


class RoundTrips(TypedDict):
    """Probes of one path: the shortest round trip [s], and how many of them were sent and lost."""

    shortest_s: float
    sent: int
    lost: int


def facts(address: str, refresh: bool) -> Mapping[str, object]:
    """Facts of this host, see `own_facts`."""
    return own_facts(address, refresh=refresh)


def listen(address: str, port: int = VXLAN_PORT) -> None:
    """Return the probes that arrive at an address, until `close`."""
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        echo.bind((address, port))
    except OSError as error:
        echo.close()
        raise PenstockError(
            f"UDP port {port} of {address}: {error.strerror}; expected no cluster that uses it"
        ) from None
    _ECHOES.append(echo)
    threading.Thread(target=_echo, args=(echo,), daemon=True).start()


def _echo(echo: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed
        while (received := echo.recvfrom(_PROBE_BYTES))[0]:
            echo.sendto(*received)


def close() -> None:
    """Stop returning probes."""
    while _ECHOES:
        echo = _ECHOES.pop()
        with contextlib.suppress(OSError):  # not connected: it ends the thread's wait nevertheless
            echo.shutdown(socket.SHUT_RDWR)
        echo.close()


def round_trips(
    own: str, targets: Mapping[str, str], port: int = VXLAN_PORT
) -> dict[str, RoundTrips]:
    """Probe the paths from an address of this host to those of others; raises PenstockError for one that
    returns nothing."""
    return {name: _probed(own, name, address, port) for name, address in targets.items()}


def _probed(own: str, name: str, address: str, port: int) -> RoundTrips:
    times_s: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((own, 0))
        probe.connect((address, port))
        probe.settimeout(_PATIENCE_S)
        for number in range(_PROBES):
            if number == _MOST_LOST and not times_s:
                raise PenstockError(
                    f"no reply from {name} ({address}); expected UDP port {port} to be open there"
                )
            sent = number.to_bytes(_NUMBER_BYTES).ljust(_PROBE_BYTES, b"\0")
            start = time.perf_counter()
            try:
                probe.send(sent)
                while probe.recv(_PROBE_BYTES) != sent:
                    pass  # late reply to an earlier probe
            except OSError:
                continue
            times_s.append(time.perf_counter() - start)
    return {"shortest_s": min(times_s), "sent": _PROBES, "lost": _PROBES - len(times_s)}
