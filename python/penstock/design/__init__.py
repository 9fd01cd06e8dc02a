"""Experimental designs and run plans."""
