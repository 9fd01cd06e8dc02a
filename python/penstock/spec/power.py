"""Power of a host in its activities, and the energy model of published studies of workflows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Power:
    """Power of one host, in watts: `idle_w` always, the others above idle (Costa 2014, eq. 3.4).

    `proportional` (0…1) is the share of the idle power that is consumed only while the host is busy; with
    `cap` the total never exceeds `peak_w`.
    """

    idle_w: float
    app_w: float
    storage_w: float
    network_w: float
    peak_w: float | None = None
    cap: bool = False
    proportional: float = 0.0
    frequency_hz: float | None = None

    def idle_j(self, elapsed_s: float, busy_s: float) -> float:
        """Joules of the idle part in `elapsed_s`, with computing, storing or sending for `busy_s`."""
        share = self.proportional
        return self.idle_w * ((1 - share) * elapsed_s + share * min(busy_s, elapsed_s))

    def energy_j(self, elapsed_s: float, app_s: float, storage_s: float, network_s: float) -> float:
        """Joules of a host in `elapsed_s` (eq. 3.4): states do not overlap, so their powers add up."""
        total = self.idle_j(elapsed_s, app_s + storage_s + network_s)
        total += self.app_w * app_s + self.storage_w * storage_s + self.network_w * network_s
        if self.cap and self.peak_w is not None:
            return min(total, self.peak_w * elapsed_s)
        return total
