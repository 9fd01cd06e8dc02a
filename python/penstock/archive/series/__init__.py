"""Series: read from bundles and files, selected, computed, put on common times."""
