"""Places of runs: the host, nodes, guests."""
