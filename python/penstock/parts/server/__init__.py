"""The HTTP server: pages of results, live view, experiments, emulated resources."""
