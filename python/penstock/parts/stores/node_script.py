"""Text of a program for nodes, with the module that such programs share.

Nodes may not see penstock's files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from penstock.parts.stores import node_processes

_WITH_MODULE = """import sys, types
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec({text!r}, module.__dict__)
"""


@cache
def node_script(program: Path) -> str:
    """Argument of `python -c` that runs a program which imports `node_processes`."""
    name, text = node_processes.__name__, Path(node_processes.__file__).read_text()
    return _WITH_MODULE.format(name=name, text=text) + program.read_text()
