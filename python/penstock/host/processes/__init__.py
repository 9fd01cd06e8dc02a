"""Processes: commands, daemons, their sockets and signals."""
