"""The verb `penstock check`."""
