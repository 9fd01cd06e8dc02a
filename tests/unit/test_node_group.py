"""The control group of a node, over files that stand for the kernel's."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from penstock.host.nodes.node_group import NodeGroup

MIB = 1 << 20


def test_a_hard_limit_that_is_set_while_memory_is_pressed_stays(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text(str(100 * MIB))
    (tmp_path / "memory.soft_limit_in_bytes").write_text(str(50 * MIB))
    (tmp_path / "memory.usage_in_bytes").write_text(str(80 * MIB))
    os.mkfifo(tmp_path / "memory.oom_control")  # who presses waits here until it is read
    group = NodeGroup("n", {"memory": tmp_path}, None, [], "t")
    press = threading.Thread(target=group.press)
    change = threading.Thread(target=group.set_memory, args=(200 * MIB, 50 * MIB))
    press.start()
    time.sleep(0.1)
    change.start()
    time.sleep(0.1)
    reader = os.open(tmp_path / "memory.oom_control", os.O_RDONLY | os.O_NONBLOCK)
    for thread in (press, change):
        thread.join(timeout=5)
        assert not thread.is_alive()
    os.close(reader)
    assert group.memory() == (200 * MIB, 50 * MIB)
