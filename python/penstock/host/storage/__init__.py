"""Block devices, mounts and the page cache of the host."""
