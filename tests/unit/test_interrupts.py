"""Signals during a wait of the tracer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

WAITS = """
import time
from penstock.host.processes.interrupts import Interrupts
with Interrupts() as interrupts:
    print("waiting", flush=True)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        interrupts.wait(time.monotonic() + 1e-4)
    print(interrupts.name, interrupts.wait(None), flush=True)
"""


def test_signal_at_any_moment_of_a_wait_is_handled() -> None:
    program = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "waiting\n"
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            os.kill(program.pid, signal.SIGINT)
        assert program.communicate(timeout=30)[0] == "SIGINT True\n"
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()
