"""Treatments beside each other: means, ranks, differences, costs, the recommendation."""
