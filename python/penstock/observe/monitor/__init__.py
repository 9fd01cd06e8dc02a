"""observe/monitor."""
