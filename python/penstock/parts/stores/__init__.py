"""Shared stores from existing engines, on virtual nodes, for the duration of a study."""
