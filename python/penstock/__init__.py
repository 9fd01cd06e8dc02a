"""penstock: one experiment platform for the storage and I/O performance of data systems."""


def __getattr__(name: str) -> str:
    """`__version__`, read when it is asked for: reading it takes as long as importing half a command line."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("penstock")
