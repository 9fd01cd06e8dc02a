"""One traced command, group or process tree: from its scope to the tables of its bundle."""
