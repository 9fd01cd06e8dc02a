"""Prediction of every treatment of a study from the trace of one of them."""
