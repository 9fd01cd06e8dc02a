"""Statements about a study, each with a stable code, and the answer made of them."""
