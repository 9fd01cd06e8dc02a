"""The undo journal: changes of the host and how they are reversed."""
