"""Rows of this part in the tables of `penstock.plugins`, and its commands."""

from __future__ import annotations

ROWS = {"commands": {"check": "penstock.parts.conformity.cli.check"}}
VERBS = {
    "Look at results": {
        "check": "Compare a run with its prediction, and list the causes of lost time.",
    },
}
