"""Machines that penstock makes: virtual nodes and guests."""
