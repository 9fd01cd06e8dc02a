"""A workload on a platform, by the queue network: time, energy, cost, and applicability of the model."""
