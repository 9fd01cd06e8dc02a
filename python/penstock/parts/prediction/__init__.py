"""Prediction: workloads on platforms, which configuration to choose, and learned models of storage."""
