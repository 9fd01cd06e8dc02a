"""Results of a verb as JSON."""

from __future__ import annotations

import json
from typing import Any

from penstock.text import without_nan


def print_json(document: Any, indent: int | None = None) -> None:
    """Print a result with findings: null for a number that JSON lacks, values of other types as text."""
    print(json.dumps(without_nan(document), default=str, indent=indent))
