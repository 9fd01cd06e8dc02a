"""Routes of the physical host: properties, network capabilities, undo journal."""

from __future__ import annotations

import os
from typing import Any

from fastapi import APIRouter

from penstock.emulate.network.capabilities import offers
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.state import state_dir


def router() -> APIRouter:
    """Routes of this host. Every other host has a server of its own."""
    api = APIRouter(tags=["host"])

    @api.get("/host", summary="Get name, processors, memory and supported network features")
    def host() -> dict[str, Any]:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return {
            "name": os.uname().nodename,
            "kernel": os.uname().release,
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": pages * size,
            "networks": vars(offers()),
        }

    @api.get("/journal", summary="List changes to the host that have not been undone")
    def journal() -> dict[str, Any]:
        entries = Journal().open_entries()
        return {
            "journal": str(state_dir() / "journal.jsonl"),
            "entries": [
                {
                    "id": e.id,
                    "kind": e.kind,
                    "target": e.target,
                    "run": e.run,
                    "owner_pid": e.owner.pid,
                    "owner_alive": e.owner.alive,
                    "made": e.completed,
                }
                for e in entries
            ],
        }

    @api.post("/journal/undo", summary="Undo changes of processes that have ended")
    def put_back() -> list[dict[str, Any]]:
        return [vars(u) for u in undo(Journal())]

    return api
