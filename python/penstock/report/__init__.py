"""Reports of studies and of traced runs."""
