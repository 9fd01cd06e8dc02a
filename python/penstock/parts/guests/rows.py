"""Rows of this part in the tables of `penstock.plugins`."""

from __future__ import annotations

ROWS = {"run-places": {"guest": "penstock.parts.guests.stage:GuestStage"}}
