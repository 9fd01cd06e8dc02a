"""Rows of this part in the tables of `penstock.plugins`."""

from __future__ import annotations

ROWS = {"conductors": {"hosts": "penstock.parts.remote.conductor:conductor_of"}}
