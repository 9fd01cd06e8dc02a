"""Analysis of what was measured: effects, fidelity, agreement, findings. Pure functions of tables."""
