"""A workload on a platform, by the queue network: time, energy, cost, and whether the model applies."""
