"""Initial state of a run: data, caches, devices, commands of the study."""
