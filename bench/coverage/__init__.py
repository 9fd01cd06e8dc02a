"""Comparison of the tracer's records with fio's reports."""
