"""One traced command, group or tree: from its scope to the tables of its bundle."""
