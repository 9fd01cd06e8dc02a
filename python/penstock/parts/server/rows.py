"""Rows of this part in the tables of `penstock.plugins`, and its verb."""

from __future__ import annotations

ROWS = {
    "commands": {"serve": "penstock.parts.server.cli.serve"},
    "http-routes": {
        "resources": "penstock.parts.server.api.routes:add_routes",
        "pages": "penstock.parts.server.bundle_routes:add_pages",
        "studies": "penstock.parts.server.bundle_routes:add_studies",
        "traces": "penstock.parts.server.bundle_routes:add_traces",
    },
}
VERBS = {
    "Look at results": {"serve": "Browse traces, nodes and disks in a web browser; HTTP interface."}
}
