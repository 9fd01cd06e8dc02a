"""Runs in virtual machines with another kernel."""
