"""Properties of this host: features, facts, clocks, power."""
