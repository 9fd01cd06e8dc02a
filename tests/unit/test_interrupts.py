"""Signals during a wait of the tracer, and before the start of its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

WAITS = """
import os, time
from penstock.host.processes.interrupts import Interrupts
os.set_blocking(0, False)
def input_is_open():
    try:
        return os.read(0, 1) != b""
    except BlockingIOError:
        return True
with Interrupts() as interrupts:
    print("waiting", flush=True)
    while input_is_open():
        interrupts.wait(time.monotonic() + 1e-4)
    print(interrupts.name, interrupts.wait(None), flush=True)
"""


def test_signal_at_any_moment_of_a_wait_is_handled() -> None:
    pipe = subprocess.PIPE
    program = subprocess.Popen([sys.executable, "-c", WAITS], stdin=pipe, stdout=pipe, text=True)
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "waiting\n"
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            os.kill(program.pid, signal.SIGINT)
        # the end of its input ends the loop
        assert program.communicate(timeout=60)[0] == "SIGINT True\n"
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()


EARLY = """
import os, signal, subprocess
from penstock.host.processes.interrupts import Interrupts
with Interrupts() as interrupts:
    os.kill(os.getpid(), signal.SIGTERM)
    command = subprocess.Popen(["sleep", "300"], start_new_session=True)
    assert not interrupts.command_began
    interrupts.begun(command.pid)
    print(command.wait(60), interrupts.name)
"""


def test_signal_before_the_start_of_the_command_is_forwarded() -> None:
    result = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=120
    )
    assert (result.stdout, result.stderr) == ("-15 SIGTERM\n", "")
