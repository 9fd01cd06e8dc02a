"""Page and figures of measured workflows."""
