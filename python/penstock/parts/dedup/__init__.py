"""Deduplication of file versions: chunk store, mount, and the online controller of it."""
