"""One thing of every kind that can be added to penstock: see docs/extending.md."""
