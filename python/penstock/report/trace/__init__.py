"""Pages and figures of one traced run."""
