"""Layers under the calls: page cache, block requests, the files' layout, faults of mapped files."""
