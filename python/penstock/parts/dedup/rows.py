"""Rows of this part in the tables of `penstock.plugins`."""

from __future__ import annotations

ROWS: dict[str, dict[str, str]] = {}
