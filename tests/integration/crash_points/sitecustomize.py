"""Kills a process of penstock at the n-th change it makes to the host (PENSTOCK_CRASH=ROLE:N[:COUNTFILE]).

Put on PYTHONPATH by the crash sweep. ROLE: `command`, `nodes` (the supervisor), `spawn` (what builds nodes).
With N = 0 nothing is killed; the number of changes is written to COUNTFILE at the end.
"""

import os
import signal
import sys

_CHANGES = {
    *(
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.rmdir",
        "os.chmod",
        "os.symlink",
        "os.fork",
        "os.exec",
    ),
    *(
        "subprocess.Popen",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "os.kill",
        "os.truncate",
    ),
}
_role, _, _rest = os.environ.get("PENSTOCK_CRASH", "").partition(":")
_number, _, _file = _rest.partition(":")
_argv = sys.orig_argv
_mine = "nodes" if "penstock.emulate.cluster.daemon" in _argv else "command"
if "penstock.host.processes.native_daemon" in _argv:
    _mine = "other"
_first = os.getpid()
_seen = 0


def _changes(event: str, arguments: tuple[object, ...]) -> None:
    global _seen
    if event == "open":
        flags = arguments[2]
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
    elif event not in _CHANGES:
        return
    if (os.getpid() != _first) != (_role == "spawn"):
        return
    _seen += 1
    if _seen == int(_number):
        os.kill(os.getpid(), signal.SIGKILL)


def _write() -> None:
    with open(_file, "w") as sink:
        sink.write(str(_seen))


if _role and (_mine == _role or (_role == "spawn" and _mine == "nodes")):
    sys.addaudithook(_changes)
    if _file:
        import atexit

        atexit.register(_write)
