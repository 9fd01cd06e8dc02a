"""State that a run starts from: data, caches, devices, commands of the study."""
