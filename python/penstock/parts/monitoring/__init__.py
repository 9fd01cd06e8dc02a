"""Experiments and monitoring: collectors, their points, delivery to a store, queries and dashboards."""
