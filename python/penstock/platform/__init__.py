"""Platform files: validation, lowering to numbers, and conversion to clusters."""
