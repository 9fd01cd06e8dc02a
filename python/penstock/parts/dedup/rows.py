"""Rows of this part in the tables of `penstock.plugins`, and its verbs."""

from __future__ import annotations

ROWS = {"commands": {"dedup": "penstock.parts.dedup.cli.dedup"}}
VERBS = {
    "Emulate storage and clusters": {
        "dedup": "Store similar versions of files once, on any mounted file system.",
    },
}
