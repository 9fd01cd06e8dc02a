"""Rows of this part in the tables of `penstock.plugins`."""

from __future__ import annotations

from collections.abc import Mapping

ROWS: Mapping[str, Mapping[str, str]] = {}
