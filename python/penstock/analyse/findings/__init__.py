"""Findings of a study, each with a stable code, and the answer composed of them."""
