"""Analysis of traced runs."""
