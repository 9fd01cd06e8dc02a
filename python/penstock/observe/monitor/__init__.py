"""The monitor: samples and utilisations around a run."""
