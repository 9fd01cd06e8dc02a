"""The verb `penstock serve`."""
