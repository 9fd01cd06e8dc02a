"""What holds for every test: a measurement of this host that departs is made again before it counts."""

from __future__ import annotations

import pytest

#: how often a failed test of the host is run again; a wrong disk, tracer or network fails every time
AGAIN = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `host` share the processors with whatever else runs on the machine.

    A moment without a processor moves a rate or a time as a fault does, but does not come back
    on demand. The summary names every test that was run again (`-rR`).
    """
    for item in items:
        if item.get_closest_marker("host") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=AGAIN, reruns_delay=2))
