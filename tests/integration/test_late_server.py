"""A disk server that is late by its own doing is not honoured; one that its host held up is told from it."""

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
#: as long as a certificate needs for all its rows, at 3 ms per request
SECONDS = 4.0


def reading(bench: Bench, profile: str) -> dict[str, Any]:
    """One client reads for some seconds; what `Bench.logged` gives."""
    path = bench.file("f", MIB)
    page = mmap.mmap(-1, 4096)
    with bench.logged(profile) as run:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        until = time.monotonic() + SECONDS
        i = 0
        while time.monotonic() < until:
            os.preadv(fd, [page], 4096 * ((i * 37) % 256))
            i += 1
        os.close(fd)
    return run


def verdicts(run: dict[str, Any]) -> set[str]:
    return set(run["certificate"]["verdict"].to_pylist())


def taken_s(run: dict[str, Any]) -> float:
    """What the host took from the server's threads, as its witness says."""
    waits = run["host_waits"].to_pandas()
    return float(waits[["waited_ns", "stolen_ns", "overslept_ns"]].max(axis=1).sum()) * 1e-9


@contextlib.contextmanager
def held_processors(held_s: float, every_s: float) -> Iterator[None]:
    """Somebody takes all processors for `held_s` once in `every_s`, before every thread of a disk server."""
    script = f"""
import os, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
while True:
    time.sleep({every_s} - time.monotonic() % {every_s})
    until = time.monotonic() + {held_s}
    while time.monotonic() < until:
        pass
"""
    takers = [
        subprocess.Popen([sys.executable, "-c", script, str(cpu)])
        for cpu in os.sched_getaffinity(0)
    ]
    try:
        time.sleep(0.5)
        yield
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()


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
    run = reading(bench, profile)
    assert verdicts(run) == {"not-honoured"}, is_valid(run["certificate"])
    assert "overdue" in is_valid(run["certificate"])[1]


# Timed: it takes the processors from every other program, and so does the next one.
@pytest.mark.timed
def test_a_late_server_is_found_on_a_host_that_holds_it_up_as_well(bench: Bench):
    profile = flat(0.003)
    bench.up(profile, plant={"lock_held_s": 0.060})
    with held_processors(0.020, 1.0):
        run = reading(bench, profile)
    assert taken_s(run) > 0.02
    assert verdicts(run) == {"not-honoured"}, is_valid(run["certificate"])


@pytest.mark.timed
def test_a_server_that_its_host_holds_up_is_told_from_a_late_one(bench: Bench):
    profile = flat(0.003)
    bench.up(profile)
    with held_processors(0.040, 0.5):
        run = reading(bench, profile)
    log = run["requests"].to_pandas()
    assert np.maximum(log["done_ns"] - log["due_ns"], 0).max() > 10e6
    assert verdicts(run) == {"host-saturated"}, is_valid(run["certificate"])
    assert "of which the host explains" in is_valid(run["certificate"])[1]


@pytest.mark.timed
def test_a_disk_in_which_nothing_is_planted_is_honoured(bench: Bench):
    profile = flat(0.003)
    bench.up(profile)
    run = reading(bench, profile)
    if verdicts(run) != {"honoured"}:  # then the host's witness says why
        assert verdicts(run) == {"host-saturated"}, is_valid(run["certificate"])
        assert taken_s(run) > 0.005 * SECONDS
