"""Axis labels of responses."""

from __future__ import annotations

from penstock.analyse.outcome import Outcome, ResponseUnit

#: maximum characters of a label on one line with the speed
_LONG = 16


def response_axis(
    outcome: Outcome, response: ResponseUnit, template: str = "{}", upright: bool = False
) -> str:
    """`bandwidth (MiB/s), disk at ¼ speed`: the response in `template` with its unit, and the disks'
    speed, in two lines if the axis is vertical or the name is long."""
    name = template.format(response.name)
    label = f"{name} ({response.unit})" if response.unit else name
    return (",\n" if upright or len(label) > _LONG else ", ").join(
        filter(None, [label, outcome.speeds.common])
    )
