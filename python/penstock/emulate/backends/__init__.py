"""Back ends of emulated disks: one protocol, one file each, one table of names.

| name | mechanism | file |
|---|---|---|
| `fuse` | the disk server's station model | `fuse.py` |
| `cgroup2` | a loop device's file system, throttled by `io.max` of the node's control group | `cgroup2.py` |
| `cgroup1` | the same by the `blkio` hierarchy: direct I/O and uncached reads | `cgroup1.py` |
"""

from penstock.emulate.backends.base import Applied, Backend, Group, Place, UpDisk
from penstock.emulate.backends.choice import Choice, choose
from penstock.emulate.backends.table import Backends

__all__ = [
    "Applied",
    "Backend",
    "Backends",
    "Choice",
    "Group",
    "Place",
    "UpDisk",
    "choose",
]
