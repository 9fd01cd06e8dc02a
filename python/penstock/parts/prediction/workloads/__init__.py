"""Descriptions of workloads: tasks, files, dependencies; how they are generated, read and printed."""
