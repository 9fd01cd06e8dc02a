"""Analysis of measurements: effects, fidelity, agreement, findings. Pure functions of tables."""
