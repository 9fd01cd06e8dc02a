"""Changes of a link: a patch, checked and applied to the link's specification."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from penstock.emulate.network.qdisc import MOST_BPS
from penstock.errors import BadInput
from penstock.spec.cluster import Delay, LinkSpec, NetworkSpec

RATES = ("out_bps", "in_bps")
DELAYS = ("delay", "in_delay")
SHARES = tuple(
    prefix + share
    for prefix in ("", "in_")
    for share in ("loss", "duplicate", "corrupt", "reorder")
)
#: keys of a patch that change both directions of a link
BOTH_WAYS = ("bandwidth_bps", "latency")
KEYS = (*RATES, *DELAYS, *SHARES)
DISTRIBUTIONS = ("constant", "uniform", "normal", "pareto")
#: longest plausible delay [s]
MOST_DELAY_S = 60.0


def each_way(patch: Mapping[str, Any], network: NetworkSpec) -> dict[str, Any]:
    """A patch of a link in `network`, with keys that change both directions (`BOTH_WAYS`) expanded.

    As in a platform file, `bandwidth_bps` and `latency` apply to packets that leave the node and to those
    that arrive. Raises BadInput if a direction is given as well.
    """
    directed = {k: v for k, v in patch.items() if k not in BOTH_WAYS}
    for key, ways in (("bandwidth_bps", RATES), ("latency", DELAYS)):
        if key not in patch:
            continue
        beside = [way for way in ways if way in directed]
        if beside:
            raise BadInput(f"{key}: found {beside[0]} with it; expected one of them")
        leaving = arriving = patch[key]
        if key == "latency" and network.link_delay_s:
            leaving = _with_network_delay(patch[key], network.link_delay_s)
        directed |= dict(zip(ways, (leaving, arriving), strict=True))
    return directed


def _with_network_delay(latency: Any, network_s: float) -> Any:
    if latency is None or latency == "max":
        return {"mean_s": network_s, "jitter_s": 0.0, "distribution": "constant"}
    if not isinstance(latency, Mapping):
        return _number("latency", latency) + network_s
    if "mean_s" not in latency:
        return latency
    return {**latency, "mean_s": _number("latency.mean_s", latency["mean_s"]) + network_s}


def check_patch(patch: Mapping[str, Any]) -> None:
    """Raises BadInput for unsupported keys, and for values that are invalid without the link."""
    patch = each_way(patch, NetworkSpec())
    alone = {k: v for k, v in patch.items() if not k.endswith("reorder")}
    delayed = LinkSpec(delay=Delay(MOST_DELAY_S), in_delay=Delay(MOST_DELAY_S))
    patched(LinkSpec(), {k: v for k, v in alone.items() if not isinstance(v, Mapping)})
    patched(delayed, {k: v for k, v in patch.items() if k not in alone})
    for key, value in alone.items():
        if isinstance(value, Mapping):
            patched(delayed, {key: {**value, "distribution": value.get("distribution", "uniform")}})


def patched(link: LinkSpec, patch: Mapping[str, Any]) -> LinkSpec:
    """The link after the patch; absent keys stay, `max` and None remove a limit.

    Raises BadInput for unsupported keys and contradictory values.
    """
    changes: dict[str, Any] = {}
    for key, value in patch.items():
        off = value is None or value == "max"
        if key in RATES:
            changes[key] = None if off else _rate(key, value)
        elif key in DELAYS:
            changes[key] = Delay() if off else _delay(key, value, getattr(link, key))
        elif key in SHARES:
            changes[key] = 0.0 if off else _share(key, value)
        else:
            raise BadInput(
                f"a link has no {key!r}; expected one of {', '.join((*BOTH_WAYS, *KEYS))}"
            )
    return checked(replace(link, **changes))


def checked(link: LinkSpec) -> LinkSpec:
    """The link itself. Raises BadInput for contradictory values."""
    for key in RATES:
        if getattr(link, key) is not None:
            _rate(key, getattr(link, key))
    for key in DELAYS:
        delay: Delay = getattr(link, key)
        _delay(key, {f.name: getattr(delay, f.name) for f in fields(Delay)}, delay)
    for key in SHARES:
        _share(key, getattr(link, key))
    for prefix in ("", "in_"):
        if getattr(link, prefix + "reorder") and not getattr(link, prefix + "delay").mean_s:
            raise BadInput(
                f"{prefix}reorder without {prefix}delay; expected a delay: "
                "what is not delayed overtakes the rest"
            )
    return link


def impairs(patch: Mapping[str, Any]) -> bool:
    """True if a patch may do more to a link than limit bandwidth."""
    return any(
        key not in (*RATES, "bandwidth_bps") and value not in (None, "max", 0)
        for key, value in patch.items()
    )


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{key}: found {value!r}; expected a number")
    return float(value)


def _rate(key: str, value: Any) -> float:
    rate = _number(key, value)
    if not 1 <= rate <= MOST_BPS:
        raise BadInput(
            f"{key}: found {rate:g} B/s; expected 1 B/s to {MOST_BPS / 1e9:g} GB/s "
            f"({MOST_BPS * 8 / 1e9:g} Gbit/s, what a veth pair carries)"
        )
    return rate


def _share(key: str, value: Any) -> float:
    share = _number(key, value)
    if not 0 <= share <= 1:
        raise BadInput(f"{key}: found {share:g}; expected a share of packets, 0 to 1")
    return share


def _delay(key: str, value: Any, now: Delay) -> Delay:
    if isinstance(value, Delay):
        value = {f.name: getattr(value, f.name) for f in fields(Delay)}
    if not isinstance(value, Mapping):
        value = {"mean_s": value}
    unknown = set(value) - {f.name for f in fields(Delay)}
    if unknown:
        raise BadInput(
            f"{key}: found {sorted(unknown)[0]!r}; expected mean_s, jitter_s, distribution"
        )
    seconds = {k: _number(f"{key}.{k}", value[k]) for k in ("mean_s", "jitter_s") if k in value}
    for name, number in seconds.items():
        if not 0 <= number <= MOST_DELAY_S:
            raise BadInput(f"{key}.{name}: found {number:g} s; expected 0 to {MOST_DELAY_S:g} s")
    named = value.get("distribution", now.distribution)
    if named not in DISTRIBUTIONS:
        raise BadInput(f"{key}: found distribution {named!r}; expected {', '.join(DISTRIBUTIONS)}")
    delay = replace(now, **seconds, distribution=named)
    if delay.distribution == "constant" and delay.jitter_s:
        raise BadInput(
            f"{key}: found a jitter of {delay.jitter_s:g} s without the name of its distribution; "
            "expected uniform, normal or pareto"
        )
    if delay.jitter_s > delay.mean_s:
        raise BadInput(
            f"{key}: found a jitter of {delay.jitter_s:g} s with a mean of {delay.mean_s:g} s; "
            "expected at most the mean, because no packet arrives before it was sent"
        )
    return delay
