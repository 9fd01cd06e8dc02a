"""Builders and drivers that several tests share."""
