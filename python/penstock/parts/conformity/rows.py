"""Rows of this part in the tables of `penstock.plugins`, and its verbs."""

from __future__ import annotations

ROWS = {"commands": {"check": "penstock.parts.conformity.cli.check"}}
VERBS = {
    "Look at results": {
        "check": "Compare a run with what was predicted; name what made it slow.",
    },
}
