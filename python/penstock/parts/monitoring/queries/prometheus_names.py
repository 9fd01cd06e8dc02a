"""A series under the name and labels that Prometheus and its like take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.parts.monitoring.experiments.recorded import labels_of


def exposed(row: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Name and labels of a row of `series`: letters, digits, `_`, and `penstock_source`.

    The values of labels with the same name then, as `a.b` and `a-b`, are joined by `;`, as OpenTelemetry's
    exporter joins them.
    """
    metric = re.sub(r"[^a-zA-Z0-9_:]", "_", row["metric"])
    metric = metric if re.match(r"[a-zA-Z_:]", metric) else f"_{metric}"
    labels: dict[str, str] = {}
    for name, value in labels_of(row["labels"]).items():
        plain = _label(name)
        labels[plain] = f"{labels[plain]};{value}" if plain in labels else value
    return metric, with_added(labels, {"penstock_source": row["source"]})


def with_added(labels: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Labels with others, before which a label of the same name is called `exported_…`, as by Prometheus."""
    names = {}
    for name in labels:
        free = name
        while free in added or (free != name and free in labels):
            free = f"exported_{free}"
        names[name] = free
    return {**{names[name]: value for name, value in labels.items()}, **added}


def _label(name: str) -> str:
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return plain if re.match(r"[a-zA-Z_]", plain) else f"_{plain}"
