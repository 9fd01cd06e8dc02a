"""Emulated disks: server, request log, speed limits of the host, persistent disks."""
