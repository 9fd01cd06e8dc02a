"""Client of a cluster's relay daemon (crates/relay)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from penstock.emulate.network.traffic_shape import SHARES, Direction, TrafficShape
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.spec.cluster import Delay


class Relay:
    """One process for all relayed networks of a cluster; ends with its owner."""

    def __init__(self, netns: Path, journal: Journal, seed: int, run: str | None) -> None:
        self._daemon: Daemon = start_daemon(
            "relay", {"netns": str(netns), "seed": seed}, journal, run=run
        )

    @property
    def pid(self) -> int:
        return self._daemon.pid

    def fault(self) -> str:
        """Reason why it carries no frames; '' if it does."""
        return self._daemon.fault()

    def add(self, network: int, port: int, *, isolated: bool = False) -> None:
        """Relay frames that arrive at the link with index `port`; isolated links exchange none."""
        self._daemon.call("port", network=network, port=port, ifindex=port, isolated=isolated)

    def remote(self, network: int, nodes: Iterable[tuple[int, str]]) -> None:
        """Name nodes behind a tunnel: number and MAC address. Their delays are those of their numbers."""
        rows = [(number, [int(part, 16) for part in mac.split(":")]) for number, mac in nodes]
        self._daemon.call("remote", network=network, nodes=rows)

    def remove(self, port: int) -> None:
        """Release a link."""
        self._daemon.call("unport", port=port)

    def make(
        self, port: int, shapes: dict[Direction, TrafficShape]
    ) -> dict[Direction, TrafficShape]:
        """Change the handling of a link's packets, except bandwidth; returns the relay's values afterwards.

        Absent directions stay.
        """
        request: dict[str, Any] = {
            direction: _to_json(shape) for direction, shape in shapes.items()
        }
        answer = self._daemon.call("link", port=port, **request)
        return {"out": _read(answer["out"]), "in": _read(answer["in"])}

    def delays(
        self, network: int, default_s: float | None, pairs: Iterable[tuple[int, int, float]]
    ) -> None:
        """Set one-way delays from port to port [s]; absent pairs stay."""
        self._daemon.call("pairs", network=network, default_s=default_s, delays=list(pairs))

    def stats(self, reset: bool = False) -> dict[str, Any]:
        """Counters per port; lateness of delayed frames (`late`), time that other frames took (`turn`)."""
        return self._daemon.call("stats", reset=reset)

    def stop(self) -> None:
        self._daemon.stop()


def _to_json(shape: TrafficShape) -> dict[str, Any]:
    return {"delay": vars(shape.delay).copy(), **{k: getattr(shape, k) for k in SHARES}}


def _read(answer: Mapping[str, Any]) -> TrafficShape:
    delay = Delay(**{f.name: answer["delay"][f.name] for f in fields(Delay)})
    return TrafficShape(None, delay, **{k: float(answer[k]) for k in SHARES})
