"""Limit of the connections of one port."""

from __future__ import annotations

import resource

#: maximum number of connections; at the limit, a new one replaces the one that was idle longest
MOST_CONNECTIONS = 512


def most_connections() -> int:
    """Maximum number of connections of one port, by this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MOST_CONNECTIONS, soft // 4))
