"""One direction of a link: bandwidth, delay, loss and other impairments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.spec.cluster import Delay, LinkSpec

#: latency of a link without a delay: shorter delays are not added [s]
FLOOR_S = 50e-6

SHARES = ("loss", "duplicate", "corrupt", "reorder")
Direction = Literal["out", "in"]


@dataclass(frozen=True)
class TrafficShape:
    """`bps` [bytes/s], None: no limit; shares are probabilities per packet."""

    bps: float | None = None
    delay: Delay = Delay()  # noqa: RUF009 - frozen
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0

    @property
    def shared(self) -> bool:
        """True if single packets are lost, duplicated, corrupted or reordered."""
        return any(getattr(self, share) for share in SHARES)

    @property
    def impaired(self) -> bool:
        """True if anything but bandwidth is requested."""
        return self.shared or matters(self.delay)

    def without_rate(self) -> TrafficShape:
        """The shape without a bandwidth limit."""
        return replace(self, bps=None)


def matters(delay: Delay) -> bool:
    """True if a delay is longer than that of the link itself."""
    return delay.mean_s > FLOOR_S or delay.jitter_s > 0


def shape_of(link: LinkSpec, direction: Direction) -> TrafficShape:
    """One direction of a link."""
    before = "" if direction == "out" else "in_"
    values: dict[str, Any] = {share: getattr(link, before + share) for share in SHARES}
    return TrafficShape(
        getattr(link, f"{direction}_bps"), getattr(link, f"{before}delay"), **values
    )


def shapes_of(link: LinkSpec) -> dict[Direction, TrafficShape]:
    """Both directions of a link."""
    return {"out": shape_of(link, "out"), "in": shape_of(link, "in")}


def as_patch(shapes: dict[Direction, TrafficShape]) -> dict[str, Any]:
    """Both directions with the keys of a patch."""
    patch: dict[str, Any] = {}
    for direction, shape in shapes.items():
        before = "" if direction == "out" else "in_"
        patch[f"{direction}_bps"] = shape.bps
        patch[f"{before}delay"] = vars(shape.delay).copy()
        patch |= {before + share: getattr(shape, share) for share in SHARES}
    return patch
