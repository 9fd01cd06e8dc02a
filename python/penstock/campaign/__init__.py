"""Campaigns: execution of studies and their analysis."""
