"""Measurements of devices, hosts and programs as studies."""
