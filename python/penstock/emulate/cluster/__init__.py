"""Clusters of virtual nodes, and the supervisor process that owns them."""
