"""Further stages of a study, and the results of fewer runs."""
