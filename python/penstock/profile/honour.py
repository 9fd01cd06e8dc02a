"""Speed of a host compared with a profile, and the time scale at which the host can emulate it."""

from __future__ import annotations

import math
from itertools import product
from typing import Protocol

from penstock.errors import BadInput
from penstock.profile.model import StorageProfile

SMALL_BYTES = 4096
LARGE_BYTES = 1 << 20
#: proposed time scales, in each decade
_NICE = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


class HostLimits(Protocol):
    """Limits of the host's disk path, measured with a disk without service time."""

    def of(self, profile: StorageProfile) -> HostLimits:
        """Limits of the path that the profile's disk would use."""

    @property
    def service_floor_ns(self) -> float:
        """Shortest sustainable mean service time, nanoseconds."""

    @property
    def read_bps(self) -> float:
        """Bytes per second, reading."""

    @property
    def write_bps(self) -> float:
        """Bytes per second, writing."""

    @property
    def iops(self) -> float:
        """Small requests per second of one disk."""

    @property
    def loop_service_ns(self) -> float:
        """Shortest service time at which a closed-loop program gets the nominal rate, nanoseconds."""

    @property
    def loaded_iops(self) -> float:
        """Small requests per second of several closed-loop programs."""

    @property
    def flushed_iops(self) -> float:
        """Small writes per second, each flushed, of several such programs."""


def demands(
    profile: StorageProfile, floor: HostLimits, *, loaded: bool = False
) -> list[tuple[float, str]]:
    """Demands of the profile over limits of the host: (ratio, text), largest ratio first.

    `loaded`: limits while programs keep the disk fully busy, including their own processor time.
    """
    ratios = []
    floor = floor.of(profile)
    for op, sequential in product(("read", "write"), (True, False)):
        kind = f"{'sequential' if sequential else 'random'} {op}s"
        shortest_ns, needs = floor.service_floor_ns, "the host needs"
        iops, reached = floor.iops, "the host reaches"
        # small sequential requests are merged by the page cache
        if loaded and not sequential:
            got = "and if programs wait for each this host needs"
            shortest_ns, needs = max((shortest_ns, needs), (floor.loop_service_ns, got))
            iops, reached = min((iops, reached), (floor.loaded_iops, "busy programs get"))
        small = profile.moments(op, sequential, SMALL_BYTES)
        service_s = min(small.mean, small.p50)
        if service_s > 0:
            ratios.append(
                (
                    shortest_ns * 1e-9 / service_s,
                    f"4 KiB {kind} take {service_s * 1e6:.0f} us, {needs} {shortest_ns / 1e3:.0f} us",
                )
            )
        ratios.append(
            (
                small.capacity_iops / iops,
                f"{small.capacity_iops:,.0f} {kind}/s, {reached} {iops:,.0f}/s",
            )
        )
        rate_bps = profile.moments(op, sequential, LARGE_BYTES).capacity_iops * LARGE_BYTES
        possible_bps = floor.read_bps if op == "read" else floor.write_bps
        ratios.append(
            (
                rate_bps / possible_bps,
                f"{kind} at {rate_bps / 2**20:.0f} MiB/s, the host reaches "
                f"{possible_bps / 2**20:.0f} MiB/s",
            )
        )
    if loaded and profile.moments("flush", False, 0).mean > 0:
        ratios.append(_flushed(profile, floor))
    return sorted(ratios, reverse=True)


def _flushed(profile: StorageProfile, floor: HostLimits) -> tuple[float, str]:
    """The demand of programs that flush each write: two requests, and the path through the page cache."""
    write = profile.moments("write", False, SMALL_BYTES)
    both_s = write.mean + profile.moments("flush", False, 0).mean
    most = min(write.capacity_iops, profile.servers / both_s)
    text = f"{most:,.0f} random writes/s with a flush after each, programs get {floor.flushed_iops:,.0f}/s"
    return most / floor.flushed_iops, text


def nearest_honest_time_scale(profile: StorageProfile, host_floor: HostLimits) -> float:
    """Smallest round time scale (relative to the device) at which programs get the nominal rates, even if
    they keep the disk fully busy."""
    hardest, _ = demands(profile, host_floor, loaded=True)[0]
    return _round_up(max(1.0, hardest) * profile.time_scale)


def check_honourable(profile: StorageProfile, host_floor: HostLimits) -> None:
    """Raises BadInput, with the nearest sustainable time scale, if the profile is faster than the host."""
    hardest, text = demands(profile, host_floor)[0]
    if hardest > 1.0:
        nearest = nearest_honest_time_scale(profile, host_floor)
        raise BadInput(
            f"profile {profile.name} at time_scale {profile.time_scale:g} is too fast for this host "
            f"({text}); the nearest sustainable time_scale is {nearest:g}"
        )


def too_fast_when_loaded(profile: StorageProfile, host_floor: HostLimits) -> str:
    """Reason why programs that keep the disk fully busy get less than the nominal rates; empty if they do
    not."""
    hardest, text = demands(profile, host_floor, loaded=True)[0]
    if hardest <= 1.0:
        return ""
    nearest = nearest_honest_time_scale(profile, host_floor)
    return (
        f"profile {profile.name} at time_scale {profile.time_scale:g} is accurate only for programs that "
        f"request less than the host can deliver ({text}); runs that request more are degraded "
        f"or excluded; at time_scale {nearest:g} every program gets the specified times"
    )


def _round_up(value: float) -> float:
    decade = 10.0 ** math.floor(math.log10(value))
    for step in (*_NICE, 10.0):
        if step * decade >= value * (1 - 1e-9):
            return step * decade
    return 10 * decade
