"""Runs on several hosts: variance between hosts and between runs of one host, hosts taken as random.

Each block of a design is run on one host, so the variance between hosts belongs to the blocks, not to the
factors. Restricted maximum likelihood estimates both variances (Patterson & Thompson, Biometrika 58, 1971).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics import strata
from penstock.analyse.statistics.fit import usable
from penstock.analyse.statistics.scale import BOX_COX, LINEAR, LOG, power_beside, scaled
from penstock.analyse.statistics.terms import design_of
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.text import counted, quantity

#: share of the hosts in the variance from which it is a warning
_MUCH = 0.5
#: minimum number of hosts for an estimate of their variance
_LEAST = 2


@dataclass(frozen=True)
class HostVariance:
    """Standard deviations between hosts and between runs of one host, on a scale; number of each."""

    hosts: int
    runs: int
    between: float
    within: float

    @property
    def share(self) -> float:
        """Share of the hosts in the variance of a run."""
        total = self.between**2 + self.within**2
        return self.between**2 / total if total > 0 else 0.0


def host_variance(outcome: Outcome, response: ResponseUnit) -> HostVariance | None:
    """Variances of one response, adjusted for treatments; None for a single host.

    PenstockError if they have no estimate.
    """
    runs = outcome.measured
    if "host_id" not in runs or runs["host_id"].nunique() < _LEAST:
        return None
    plan = plan_from_json(outcome.plan)
    data = usable(runs, plan, response.name)
    group = np.unique(data["host_id"].astype(str), return_inverse=True)[1]
    scale = scale_of_effects(outcome, response)
    values = data[response.name].to_numpy(float)
    of_run = design_of(data, plan).of_run
    treatments = np.eye(int(of_run.max()) + 1)[of_run]
    y = scaled(values, scale, power_beside(values, treatments) if scale == BOX_COX else None)
    variances = strata.mixed(y, treatments, group)
    return HostVariance(
        int(group.max()) + 1,
        len(y),
        math.sqrt(max(variances.setting_variance, 0.0)),
        math.sqrt(variances.run_variance),
    )


def hosts(outcome: Outcome) -> Iterator[Finding]:
    """Difference between hosts in each response."""
    for response in outcome.responses:
        try:
            parts = host_variance(outcome, response)
        except (BadInput, PenstockError):
            continue
        if parts is None:
            continue
        much = parts.share >= _MUCH
        scale = scale_of_effects(outcome, response)
        yield Finding(
            "hosts",
            "warning" if much else "info",
            f"{counted(parts.hosts, 'host')} made the runs: {response.name} differs between hosts with a "
            f"standard deviation of {_spread(parts.between, scale, response)}, between runs of one host of "
            f"{_spread(parts.within, scale, response)}. Blocks take that out of the comparisons.",
            {"table": "runs", "response": response.name, "share": round(parts.share, 4)},
            "These statements apply to hosts like these, on average." if much else "",
            f"Restricted maximum likelihood, hosts random; {100 * parts.share:.0f} % of the variance of a "
            "run is the hosts'.",
        )


def _spread(value: float, scale: str, response: ResponseUnit) -> str:
    if scale == LOG:
        return f"{100 * math.expm1(value):.2g} %"
    return quantity(value, response.unit if scale == LINEAR else "")
