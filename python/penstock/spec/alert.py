"""Alert rules: `disk_busy{entity=vd*} > 90% for 5s then abort`, in the syntax of studies and command
lines."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from penstock.spec.units import parse_duration, parse_quantity, parse_unit

Action = Literal["note", "abort"]

#: metrics of a monitor for rules, and their units: KIND_METRIC of `utilisation`, gauges of `samples`,
#: SOURCE_METRIC
METRICS: dict[str, str] = {
    **{f"cpu_{m}": "%" for m in ("busy", "stolen", "waited_for")},
    **{f"disk_{m}": "%" for m in ("busy", "busy_of_time")},
    "emulated_disk_busy": "%",
    **{
        f"block_latency_{operation}_{metric}": "s"
        for operation in ("read", "write", "flush", "discard")
        for metric in ("p50", "p99", "mean", "queue_p99", "queue_mean")
    },
    **{
        f"{disk}_{metric}": unit
        for disk in ("disk", "emulated_disk")
        for metric, unit in (
            ("queue_depth", "1"),
            ("read_rate", "B/s"),
            ("write_rate", "B/s"),
            ("read_operations", "1/s"),
            ("write_operations", "1/s"),
        )
    },
    **{f"network_{m}_rate": "B/s" for m in ("send", "receive")},
    **{f"network_{m}": "%" for m in ("used", "used_out", "used_in")},
    "cgroup_cpu_busy": "%",
    "cgroup_cpu_cores": "1",
    **{
        f"memory_{m}": "B"
        for m in ("free", "available", "page_cache", "dirty", "writeback", "anonymous", "swap_free")
    },
    "cgroup_memory": "B",
    **{f"cpu_load_{minutes}min": "1" for minutes in (1, 5, 15)},
    "sampler_lateness": "ns",
    **{f"{source}_{m}": "1" for source in ("file", "command") for m in ("value", "up")},
    "command_seconds": "s",
}
#: labels that a rule may select by
LABELS = ("entity",)
_RULE = re.compile(
    r"\s*(?P<metric>[A-Za-z_][A-Za-z0-9_]*)\s*(?:\{(?P<labels>[^{}]*)\})?\s*(?P<comparison>>=|<=|>|<)"
    r"\s*(?P<threshold>[^\s].*?)(?:\s+for\s+(?P<lasting>\S+))?(?:\s+then\s+(?P<action>\S+))?\s*"
)
_LABEL = re.compile(r"\s*([a-z_]+)\s*=\s*\"?([^\s\",{}]{1,200})\"?\s*")
MOST_RULES = 100
EXPECTED = "METRIC > VALUE [for TIME] [then note|abort], such as disk_busy > 90% for 5s then abort"


@dataclass(frozen=True)
class Rule:
    """One alert rule; `threshold` is in `unit`, which is the metric's, `labels` are names or patterns.

    It fires once the metric has satisfied the condition in all samples of `lasting_s`.
    """

    text: str
    metric: str
    comparison: str
    threshold: float
    unit: str
    lasting_s: float = 0.0
    action: Action = "note"
    labels: dict[str, str] = field(default_factory=dict)


def parse_rule(text: str) -> Rule:
    """Parse a rule; ValueError with the expected syntax."""
    match = _RULE.fullmatch(text) if len(text) <= 1000 else None
    if match is None:
        raise ValueError(EXPECTED)
    metric = match["metric"]
    if metric not in METRICS:
        raise ValueError(f"a metric of the monitor: {', '.join(METRICS)}")
    action = match["action"] or "note"
    if action not in ("note", "abort"):
        raise ValueError("`then note` or `then abort` at its end")
    try:
        lasting_s = parse_duration(match["lasting"]) if match["lasting"] else 0.0
    except ValueError as error:
        raise ValueError(f"`for` and {error}") from None
    return Rule(
        " ".join(text.split()),
        metric,
        match["comparison"],
        _threshold(match["threshold"], METRICS[metric]),
        METRICS[metric],
        lasting_s,
        "abort" if action == "abort" else "note",
        _labels(match["labels"]),
    )


def _threshold(text: str, unit: str) -> float:
    """A threshold in the metric's unit; a plain number is in it already."""
    expected = f"a threshold in {unit}, such as {_example(unit)}"
    try:
        value = float(text) if unit == "1" else _in_unit(text, unit)
    except ValueError:
        raise ValueError(expected) from None
    if not math.isfinite(value):
        raise ValueError(expected)
    return value


def _in_unit(text: str, unit: str) -> float:
    number, unit_text = parse_quantity(text)
    target = parse_unit(unit)
    if unit_text.dimension != target.dimension:
        raise ValueError(unit)
    return (
        number if unit_text.factor == target.factor else number * unit_text.factor / target.factor
    )


def _example(unit: str) -> str:
    return {
        "%": "90%",
        "B/s": "100 MiB/s",
        "1/s": "500 1/s",
        "B": "1 GiB",
        "s": "20ms",
        "ns": "5ms",
    }.get(unit, "8")


def _labels(text: str | None) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in (text or "").split(",") if (text or "").strip() else []:
        label = _LABEL.fullmatch(part)
        if label is None or label[1] not in LABELS or label[1] in labels:
            raise ValueError(f"labels such as {{entity=vda}} ({', '.join(LABELS)}), each once")
        labels[label[1]] = label[2]
    return labels
