"""Command lines that run a command inside a node: in its control groups and namespaces, with its rights."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.nodes.node_trial import enter_trouble
from penstock.host.nodes.spawner import ENTER, PATH


@dataclass(frozen=True)
class Entrance:
    """Arguments of `penstock-enter` (crates/enter) for a node.

    `pid`: its first process; `groups`: files by which a single-threaded process enters its control groups;
    `capabilities`: bits of the node's capabilities; `filter`: its system call filter, a file of this host.
    """

    pid: int
    groups: tuple[str, ...]
    capabilities: int
    filter: str


def enter_argv(
    entrance: Entrance,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
) -> list[str]:
    """Command line for this host that runs `argv` in a node.

    The environment is `env`, with defaults for PATH and HOME, and USER and LOGNAME of a given `user` (a name
    on this host or a number); nothing is inherited. `cwd` is a directory of the node (default: /). The status
    is the command's, or 125 if the node is gone.
    """
    if trouble := enter_trouble():
        raise PenstockError(f"{trouble}; `make build` makes it")
    described: dict[str, Any] = asdict(entrance)
    own = {"PATH": PATH, "HOME": "/root"}
    if user is not None:
        uid, gid, home = _account(user)
        described["user"] = (uid, gid)
        own["HOME"] = home or "/"
        if home:
            own |= {"USER": user, "LOGNAME": user}
    described |= {"env": own | dict(env or {}), "cwd": cwd or "/"}
    return [ENTER, json.dumps(described), *argv]


def _account(user: str) -> tuple[int, int, str]:
    if user.isdigit():
        return int(user), int(user), ""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise BadInput(f"no such user: {user}") from None
    if os.geteuid() != 0 and account.pw_uid != os.geteuid():
        raise PenstockError(f"only root can run a command as {user}")
    return account.pw_uid, account.pw_gid, account.pw_dir
