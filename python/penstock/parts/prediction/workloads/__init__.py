"""Descriptions of workloads: tasks, files, dependencies; their generation, input and output."""
