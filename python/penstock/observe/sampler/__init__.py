"""The sampler: counters around a run, utilisations from them, alerts over them."""
