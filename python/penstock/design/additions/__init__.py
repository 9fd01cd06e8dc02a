"""Additions to a design: further treatments, stages, and the levels of the looks at a sequential study."""
