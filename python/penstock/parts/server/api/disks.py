"""Routes of emulated disks without a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException

from penstock.emulate.disks import persistent
from penstock.parts.server.api import models
from penstock.parts.server.api.clusters import events_of
from penstock.parts.server.api.jobs import JobRegistry, Prefer


def _mount(disk: str) -> Path:
    for status in persistent.status():
        if status["disk_id"] == disk:
            return Path(status["mount"])
    raise HTTPException(404, f"no disk {disk} is up")


def router(registry: JobRegistry) -> APIRouter:
    """Routes of the disks of `penstock disk up`."""
    api = APIRouter(prefix="/disks", tags=["disks"])

    @api.get("", summary="List live disks without a node, with counters")
    def disks() -> list[dict[str, Any]]:
        return persistent.status()

    @api.post("", status_code=201, summary="Start a disk")
    def put_up(body: models.MountRequest, prefer: Prefer = None) -> Any:
        def start() -> dict[str, Any]:
            return persistent.up(
                body.profile,
                Path(body.backing),
                Path(body.mount),
                time_scale=body.time_scale,
                durable=body.durable,
            )

        return registry.do(prefer, f"start a disk at {body.mount}", start, 201)

    @api.get("/{disk}", summary="Get a disk")
    def disk(disk: str) -> dict[str, Any]:
        return persistent.status(_mount(disk))[0]

    @api.patch("/{disk}", summary="Change limits, features, faults or the profile now")
    def change(disk: str, body: models.MountChange) -> dict[str, Any]:
        return persistent.change(_mount(disk), body.patch, body.profile, time_scale=body.time_scale)

    @api.get("/{disk}/events", summary="Get past changes, scheduled ones and current settings")
    def events(disk: str) -> dict[str, Any]:
        return persistent.events(_mount(disk))

    @api.post("/{disk}/events", status_code=201, summary="Schedule changes, with times from now")
    def schedule(disk: str, body: models.Events) -> dict[str, Any]:
        return {"events": persistent.schedule(_mount(disk), events_of(body))}

    @api.post("/{disk}/marks", summary="Begin a phase now")
    def mark(disk: str, body: models.Mark) -> dict[str, Any]:
        return {"events": persistent.mark(_mount(disk), body.phase)}

    @api.post("/{disk}/power_cut", summary="Cut the power: unsynced writes are lost or torn")
    def power_cut(disk: str, body: models.PowerCut) -> dict[str, Any]:
        return persistent.power_cut(_mount(disk), mode=body.mode, seed=body.seed)

    @api.delete("/{disk}", summary="Stop a disk; its files remain")
    def down(disk: str, force: bool = False, prefer: Prefer = None) -> Any:
        mount = _mount(disk)
        return registry.do(prefer, f"stop {disk}", lambda: persistent.down(mount, force=force))

    return api
