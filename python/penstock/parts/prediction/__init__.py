"""Prediction: workloads on platforms, choice of a configuration, and learned models of storage."""
