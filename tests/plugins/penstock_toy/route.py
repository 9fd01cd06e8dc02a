"""A route: `GET /api/toys`."""

from __future__ import annotations

from fastapi import FastAPI

from penstock.parts.server.server import Server


def add_routes(app: FastAPI, server: Server) -> None:
    @app.get("/api/toys")
    def toys() -> dict[str, int]:
        return {"traces": len(server.served.traces)}
