"""Labels of axes that carry a response."""

from __future__ import annotations

from penstock.analyse.outcome import Outcome, ResponseUnit

#: characters of a response beside which no speed fits
_LONG = 16


def response_axis(
    outcome: Outcome, response: ResponseUnit, template: str = "{}", upright: bool = False
) -> str:
    """`bandwidth (MiB/s), disk at ¼ speed`: the response in `template` with its unit, and the disks' speed,
    in two lines where the axis stands upright or the name is long."""
    name = template.format(response.name)
    label = f"{name} ({response.unit})" if response.unit else name
    return (",\n" if upright or len(label) > _LONG else ", ").join(
        filter(None, [label, outcome.speeds.common])
    )
