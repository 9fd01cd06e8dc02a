"""How a command gets into a node: its control groups, then its namespaces."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping, Sequence

from penstock.errors import BadInput, PenstockError

#: $1: how many groups; enters each, then becomes what enters the namespaces
_ENTER = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do { echo $$ >"$1"; } 2>/dev/null || '
    '{ echo "penstock: the node is gone ($1)" >&2; exit 125; }; shift; n=$((n-1)); done; exec "$@"'
)


def enter_words(
    pid: int,
    entrances: Sequence[str],
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
) -> list[str]:
    """A command line for this host that runs `argv` in the node whose first process is `pid`.

    `entrances`: the `cgroup.procs` of the node's groups. `env` adds to the environment, `cwd` is a directory
    of the node (default: /), `user` a name of this host or a number. The status is the command's own.
    """
    tool = shutil.which("nsenter")
    if tool is None:
        raise PenstockError("nsenter (Debian package util-linux) is needed to enter a node")
    words = ["/bin/sh", "-c", _ENTER, "penstock", str(len(entrances)), *entrances]
    added = dict(env or {})
    ids: list[str] = []
    if user is not None:
        uid, gid, home = _account(user)
        ids = [f"--setuid={uid}", f"--setgid={gid}"]
        if home:
            added = {"HOME": home, "USER": user, "LOGNAME": user, **added}
    if added:
        words += ["/usr/bin/env", *(f"{key}={value}" for key, value in added.items())]
    words += [tool, f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]
    return [*words, f"--wdns={cwd or '/'}", *ids, "--", *argv]


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
