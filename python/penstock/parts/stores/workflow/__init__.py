"""Workflows run for real: tasks as processes on virtual nodes, their files in a shared store."""
