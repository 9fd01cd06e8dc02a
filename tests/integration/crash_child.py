"""Change the host through the journal and kill this process after LINES lines (0: count them).

Arguments: LINES LABEL WHERE. Uses $PENSTOCK_STATE and $PENSTOCK_RUNTIME.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal, new_token
from penstock.host.journal.undo import put_back
from penstock.host.processes.launch import launch
from penstock.host.processes.processes import TOKEN_VARIABLE, Identity

limit, label, where = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
lines = 0


def count(frame: FrameType, event: str, argument: object) -> object:
    global lines
    name = frame.f_code.co_filename
    if "/penstock/host/" not in name and name != __file__:
        return None
    if event == "line":
        lines += 1
        if lines == limit:
            os.kill(os.getpid(), signal.SIGKILL)
    return count


def main() -> None:
    journal = Journal()
    made = make_directory(where / "disk", journal, run="r001")
    token = new_token()
    mounted = journal.plan("mount", where / "disk", run="r001", token=token)
    libc = ctypes.CDLL(None, use_errno=True)
    source = f"penstock:{token}".encode()
    if libc.mount(source, os.fsencode(where / "disk"), b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    journal.done(mounted)
    setting = where / "setting"
    change = journal.plan("setting", setting, old=setting.read_text().strip(), new="ours")
    setting.write_text("ours")
    journal.done(change)
    token = new_token()
    daemon = journal.plan("process", "penstock-test", token=token)
    child = subprocess.Popen(
        ["sleep", "300"], env={**os.environ, TOKEN_VARIABLE: token}, start_new_session=True
    )
    identity = Identity.of(child.pid)
    assert identity is not None
    journal.done(daemon, pid=identity.pid, start=identity.start)
    group = create_run_cgroup(label, 64 << 20, journal, run="r001")
    launch("sleep 300 & sleep 300 & exit 0", group, stdout=os.devnull, stderr=os.devnull)
    if limit == -1:
        print("up", flush=True)
        time.sleep(300)
    group.remove()
    put_back(daemon, journal)
    child.wait()
    put_back(change, journal)
    put_back(mounted, journal)
    remove_directory(made, journal)


sys.settrace(count)
main()
sys.settrace(None)
print(lines)
