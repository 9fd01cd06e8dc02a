"""Live shared stores from existing engines, on virtual nodes, for the length of a study."""
