"""Emulated clusters, nodes, disks, links, schedules and jobs as resources over HTTP under /api/v1."""
