"""Experiments: their points, how complete they are, and the bundles that they leave."""
