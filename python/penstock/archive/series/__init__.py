"""Series: read from bundles and files, selected, computed, aligned in time."""
