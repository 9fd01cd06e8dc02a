"""A series under the name and labels that Prometheus and its like take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.parts.monitoring.experiments.recorded import labels_of


def exposed(row: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Name and labels of a row of `series`: letters, digits, `_`, and `penstock_source`."""
    metric = re.sub(r"[^a-zA-Z0-9_:]", "_", row["metric"])
    metric = metric if re.match(r"[a-zA-Z_:]", metric) else f"_{metric}"
    labels = {**labels_of(row["labels"]), "penstock_source": row["source"]}
    return metric, {_label(name): value for name, value in labels.items()}


def _label(name: str) -> str:
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return plain if re.match(r"[a-zA-Z_]", plain) else f"_{plain}"
