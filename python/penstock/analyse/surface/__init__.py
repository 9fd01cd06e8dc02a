"""Responses as surfaces over their factors, and where they are best."""
