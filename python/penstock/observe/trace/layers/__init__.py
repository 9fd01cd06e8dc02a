"""Layers below the calls: page cache, block requests, layout of the files, faults of mapped files."""
