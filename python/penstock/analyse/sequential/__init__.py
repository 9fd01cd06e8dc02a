"""Further stages of a study, and conclusions from fewer runs."""
