"""Measurements that are studies: of devices, hosts and programs."""
