"""A short pass over every target, and planted failures that the driver must detect."""

from __future__ import annotations

import faulthandler
import os
import socket
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.fuzz import daemons, drive
from tests.fuzz.__main__ import fuzz, shares
from tests.fuzz.drive import Driver, Feed, Target, input_of, stateless
from tests.fuzz.targets import all_targets

pytestmark = [pytest.mark.host]

INPUTS = 300
BAD = 77


def numbers(draw: Random) -> bytes:
    return b"%d" % draw.randrange(200)


def planted_target(fail: Feed) -> Target:
    """A target that fails for the input 77 only."""

    def feed(data: bytes) -> None:
        if int(data) == BAD:
            fail(data)

    return Target("planted", numbers, lambda _: stateless(feed), (ValueError,))


class Panic(BaseException):
    """An error that is not an Exception, like a panic of a crate in Python."""


def panic(data: bytes) -> None:
    raise Panic(data)


def end(data: bytes) -> None:
    faulthandler.disable()
    os.abort()


def grow(data: bytes) -> None:
    blocks = [np.empty(1 << 28, np.uint8) for _ in range(1 << 10)]  # untouched, but counted
    assert blocks


def hang(data: bytes) -> None:
    time.sleep(3600)


@pytest.mark.parametrize(
    ("fail", "message"),
    [(panic, "Panic"), (end, "ended with"), (grow, "MemoryError"), (hang, "took more than")],
)
def test_a_planted_failure_is_detected_and_stored(
    fail: Feed, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fail is hang:
        monkeypatch.setattr(drive, "PATIENCE_S", 10.0)
    driver, target = Driver(tmp_path / "kept", seed=3, processes=1), planted_target(fail)
    outcome = driver.run(target, INPUTS)
    assert outcome.failures
    for failure in outcome.failures:
        assert message in failure.reason
        assert failure.file.read_bytes() == b"%d" % BAD == input_of(target, 3, failure.number)
        assert message in failure.file.with_name(failure.file.name + ".txt").read_text()


def test_a_memory_leak_over_all_inputs_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "LEAK_LIMIT_BYTES", 10 << 20)
    leaked: list[bytes] = []
    leaks = Target(
        "leaks", numbers, lambda _: stateless(lambda d: leaked.append(os.urandom(1 << 17)))
    )
    (failure,) = Driver(tmp_path, seed=1, processes=1).run(leaks, INPUTS + 200).failures
    assert "MiB were kept" in failure.reason


def test_documented_errors_are_not_failures(tmp_path: Path) -> None:
    def refuse(data: bytes) -> None:
        raise ValueError(data)

    outcome = Driver(tmp_path / "kept", seed=3, processes=2).run(planted_target(refuse), INPUTS)
    assert (outcome.inputs, outcome.failures) == (INPUTS, ())
    assert not (tmp_path / "kept").exists()


def panicking_daemon(config: dict[str, Any]) -> None:
    """A daemon that aborts on request, as after a panic."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(config["socket"])
        listener.listen()
        os.write(config["ready_fd"], b"ready\n")
        connection, _ = listener.accept()
        for line in connection.makefile("rb"):
            if line == b"panic\n":
                end(line)
            connection.sendall(b'{"ok": true}\n')


def test_a_panic_of_a_daemon_is_detected(tmp_path: Path) -> None:
    target = Target(
        "panicking",
        lambda draw: b"panic" if draw.random() < 0.02 else b"ping",
        lambda directory: daemons.run_daemon(directory, panicking_daemon),
    )
    failures = Driver(tmp_path, seed=1, processes=1).run(target, INPUTS).failures
    assert failures
    assert "ended with 6" in failures[0].reason
    assert failures[0].file.read_bytes() == b"panic"


def test_names_of_targets_are_unique() -> None:
    names = [target.name for target in all_targets(by_route=True)]
    assert sorted(set(names)) == sorted(names)


def test_each_target_gets_the_minimum_of_inputs() -> None:
    targets = all_targets(by_route=True)
    counts = shares(targets, 1_000_000, 10_000)
    assert min(counts.values()) == 10_000
    assert sum(counts.values()) >= 1_000_000
    assert sum(name.startswith("route-") for name in counts) > 50


def test_every_reader_survives_a_short_pass(tmp_path: Path) -> None:
    """`make fuzz` runs a million inputs."""
    outcomes = fuzz(Driver(tmp_path, seed=2, processes=os.cpu_count() or 1), all_targets(), 20_000)
    assert [f for outcome in outcomes for f in outcome.failures] == []
    assert sum(outcome.inputs for outcome in outcomes) >= 20_000
