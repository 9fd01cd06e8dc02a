"""Certificates distinguish a disk server that is late by itself from one that its host delays."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.analyse.fidelity.fidelity import is_valid
from tests.integration.disk_bench import (  # noqa: F401 - fixtures
    BOTH_TRANSPORTS,
    HOST,
    Bench,
    each_transport,
    flat,
    one_bench,
)

pytestmark = [*HOST, BOTH_TRANSPORTS]
MIB = 1 << 20
#: time that a certificate needs for all its rows at 3 ms per request
SECONDS = 4.0


def read_with_one_client(bench: Bench, profile: str) -> dict[str, Any]:
    """Result of `Bench.logged` for a client that reads for `SECONDS`."""
    path = bench.file("f", MIB)
    page = mmap.mmap(-1, 4096)
    with bench.logged(profile) as run:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        deadline = time.monotonic() + SECONDS
        i = 0
        while time.monotonic() < deadline:
            os.preadv(fd, [page], 4096 * ((i * 37) % 256))
            i += 1
        os.close(fd)
    return run


def verdicts(run: dict[str, Any]) -> set[str]:
    return set(run["certificate"]["verdict"].to_pylist())


def delay_by_host_s(run: dict[str, Any]) -> float:
    """Delay of the server's threads by the host according to `host_waits` [s]."""
    waits = run["host_waits"].to_pandas()
    return float(waits[["waited_ns", "stolen_ns", "overslept_ns"]].max(axis=1).sum()) * 1e-9


@contextlib.contextmanager
def occupied_processors(busy_s: float, period_s: float) -> Iterator[None]:
    """Occupy all processors for `busy_s` every `period_s`, with a higher priority than disk servers."""
    script = f"""
import os, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
while True:
    time.sleep({period_s} - time.monotonic() % {period_s})
    until = time.monotonic() + {busy_s}
    while time.monotonic() < until:
        pass
"""
    programs = [
        subprocess.Popen([sys.executable, "-c", script, str(cpu)])
        for cpu in os.sched_getaffinity(0)
    ]
    try:
        time.sleep(0.5)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


PLANTS = {
    "a sleep in the reply path": {"reply_sleep_s": 0.002},
    "a lock held for 30 ms once a second": {"lock_held_s": 0.030},
    "a slow timer": {"timer_late_s": 0.002},
}


# Not timed: threads of a disk server are real-time tasks, so that other programs do not delay them.
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("service_s", [0.003, 0.005])
def test_a_late_server_is_not_honoured(bench: Bench, plant: str, service_s: float):
    profile = flat(service_s)
    bench.up(profile, plant=PLANTS[plant])
    run = read_with_one_client(bench, profile)
    assert verdicts(run) == {"not-honoured"}, is_valid(run["certificate"])
    assert "overdue" in is_valid(run["certificate"])[1]


# Timed: this test and the next one occupy all processors.
@pytest.mark.timed
def test_a_late_server_is_detected_on_a_host_that_delays_it_too(bench: Bench):
    profile = flat(0.003)
    bench.up(profile, plant={"lock_held_s": 0.060})
    with occupied_processors(0.020, 1.0):
        run = read_with_one_client(bench, profile)
    assert delay_by_host_s(run) > 0.02
    assert verdicts(run) == {"not-honoured"}, is_valid(run["certificate"])


@pytest.mark.timed
def test_a_server_delayed_by_its_host_is_host_saturated(bench: Bench):
    profile = flat(0.003)
    bench.up(profile)
    with occupied_processors(0.040, 0.5):
        run = read_with_one_client(bench, profile)
    log = run["requests"].to_pandas()
    assert np.maximum(log["done_ns"] - log["due_ns"], 0).max() > 10e6
    assert verdicts(run) == {"host-saturated"}, is_valid(run["certificate"])
    assert "of which the host explains" in is_valid(run["certificate"])[1]


@pytest.mark.timed
def test_a_disk_without_a_planted_delay_is_honoured(bench: Bench):
    profile = flat(0.003)
    bench.up(profile)
    run = read_with_one_client(bench, profile)
    if verdicts(run) != {"honoured"}:  # host_waits must explain the delay
        assert verdicts(run) == {"host-saturated"}, is_valid(run["certificate"])
        assert delay_by_host_s(run) > 0.005 * SECONDS
