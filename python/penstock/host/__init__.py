"""All access to the host: the undo journal, control groups, mounts, processes, probing."""
