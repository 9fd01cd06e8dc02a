"""Comparison of treatments: means, ranks, differences, costs, the recommendation."""
