"""A kind of design: level i of every factor together, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def diagonal(levels: Sequence[int], options: Mapping[str, Any], seed: int) -> Any:
    """As many treatments as the factor with most levels has, or `options["runs"]`."""
    runs = int(options.get("runs", max(levels)))
    return np.array([[i % n for n in levels] for i in range(runs)])
