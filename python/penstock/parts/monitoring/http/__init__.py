"""Routes of experiments, dashboards and metrics."""
