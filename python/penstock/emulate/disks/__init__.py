"""Emulated disks: their server, its log of requests, how fast a host can be, disks that stand alone."""
