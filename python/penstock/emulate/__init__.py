"""Emulation of disks, networks and clusters of virtual nodes."""
