"""Emulated disks without nodes as resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException

from penstock.emulate.disks import persistent
from penstock.parts.server.api import models
from penstock.parts.server.api.clusters import events_of
from penstock.parts.server.api.jobs import JobRegistry, Prefer


def _mount(disk: str) -> Path:
    for one in persistent.status():
        if one["disk_id"] == disk:
            return Path(one["mount"])
    raise HTTPException(404, f"no disk {disk} is up")


def router(registry: JobRegistry) -> APIRouter:
    """The disks of `penstock disk up`."""
    api = APIRouter(prefix="/disks", tags=["disks"])

    @api.get("", summary="Disks that are up without a node, with counters")
    def disks() -> list[dict[str, Any]]:
        return persistent.status()

    @api.post("", status_code=201, summary="Put one up")
    def put_up(asked: models.MountRequest, prefer: Prefer = None) -> Any:
        def act() -> dict[str, Any]:
            return persistent.up(
                asked.profile,
                Path(asked.backing),
                Path(asked.mount),
                time_scale=asked.time_scale,
                durable=asked.durable,
            )

        return registry.do(prefer, f"put a disk up at {asked.mount}", act, 201)

    @api.get("/{disk}", summary="One of them")
    def disk(disk: str) -> dict[str, Any]:
        return persistent.status(_mount(disk))[0]

    @api.patch("/{disk}", summary="Limits, features, faults, profile: changed now")
    def change(disk: str, asked: models.MountChange) -> dict[str, Any]:
        return persistent.change(
            _mount(disk), asked.patch, asked.profile, time_scale=asked.time_scale
        )

    @api.get("/{disk}/events", summary="What was changed, what is planned, what is in force")
    def events(disk: str) -> dict[str, Any]:
        return persistent.events(_mount(disk))

    @api.post("/{disk}/events", status_code=201, summary="Schedule changes, from now on")
    def schedule(disk: str, asked: models.Events) -> dict[str, Any]:
        return {"events": persistent.schedule(_mount(disk), events_of(asked))}

    @api.post("/{disk}/marks", summary="A phase begins now")
    def mark(disk: str, asked: models.Mark) -> dict[str, Any]:
        return {"events": persistent.mark(_mount(disk), asked.phase)}

    @api.post("/{disk}/power_cut", summary="What was not synced is lost, or torn")
    def power_cut(disk: str, asked: models.PowerCut) -> dict[str, Any]:
        return persistent.power_cut(_mount(disk), mode=asked.mode, seed=asked.seed)

    @api.delete("/{disk}", summary="Take it down; its files stay")
    def down(disk: str, force: bool = False, prefer: Prefer = None) -> Any:
        mount = _mount(disk)
        return registry.do(prefer, f"take {disk} down", lambda: persistent.down(mount, force=force))

    return api
