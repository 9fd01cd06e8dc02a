"""penstock: one experiment platform for the storage and I/O performance of data systems."""

from importlib.metadata import version

__version__ = version("penstock")
