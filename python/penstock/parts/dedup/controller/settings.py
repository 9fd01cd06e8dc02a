"""Settings of the controller, and the defaults of Costa 2014, section 5.3.2."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

from penstock.errors import BadInput
from penstock.parts.dedup.controller.energy import PowerModel
from penstock.parts.dedup.controller.utility import Utility

OFF = "off"
#: a system-wide switch, or one for each family of files
SYSTEM, FAMILY = "system", "family"


@dataclass(frozen=True)
class Sampling:
    """Shadow sampling: hash a share of the chunks of writes without deduplication.

    `time_share` bounds the time of sampling, as a share of the write; `share` bounds the sampled chunks.
    """

    time_share: float = 0.01
    share: float = 0.25


@dataclass(frozen=True)
class Settings:
    """Settings of `OnlineController`.

    `window`: writes of a probe and of the moving averages. `reprobe_after`: writes without deduplication
    before the next probe; with `doubling` it doubles while probes confirm that, to `reprobe_most` at most.
    `least_gain`: least improvement of the utility for a switch; `confidence`: one-sided confidence in it.
    `drift`: relative change of the time to send after which probes are frequent again. `memory`: observations
    of the long mean. `adaptive`: estimates from the mean that predicts best, probes that end as soon as they
    are conclusive. `sampling` is None without shadow sampling. `decisions` bounds the decisions in memory;
    `log` is a file to which all are appended, as JSON lines.
    """

    window: int = 5
    reprobe_after: int = 100
    reprobe_most: int = 3200
    doubling: bool = True
    utility: Utility = field(default_factory=Utility)
    sampling: Sampling | None = field(default_factory=Sampling)
    least_gain: float = 0.02
    confidence: float = 0.8
    drift: float = 0.1
    memory: int = 40
    adaptive: bool = True
    scope: str = FAMILY
    power: PowerModel | None = None
    decisions: int = 10_000
    log: Path | None = None

    def __post_init__(self) -> None:
        if self.utility.uses("energy") and self.power is None:
            raise BadInput(
                "power: found nothing; expected the powers of a machine, as energy is used"
            )

    @property
    def quantile(self) -> float:
        """Standard errors of the one-sided interval of `confidence`."""
        return NormalDist().inv_cdf(self.confidence)


def published(
    utility: Utility | None = None, reprobe_after: int = 100, power: PowerModel | None = None
) -> Settings:
    """The published controller: moving averages, probes at a constant interval, no sampling."""
    return Settings(
        utility=utility or Utility(),
        reprobe_after=reprobe_after,
        doubling=False,
        sampling=None,
        least_gain=0.0,
        adaptive=False,
        power=power,
    )
