"""Delivery of points to experiments on this host or on a server."""
