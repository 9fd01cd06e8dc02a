"""Rules of every test run: signal dispositions, marks, and which skips count as failures."""

from __future__ import annotations

import functools
import gc
import os
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from penstock.scratch import remove_abandoned

pytest_plugins = ["tests.support.costs"]

#: prefix of skip reasons that `--strict-skips` accepts: the kernel lacks the feature under test
KERNEL = "kernel: "
#: prefix of skip reasons of tests whose measurement other load on the host disturbed, by separate evidence
BUSY = "busy host: "
#: prefix of skip reasons of long tests that did not start because the time of the test run was nearly over
LATE = "out of time: "
#: environment variable with the latest start time of long tests [s since 1970]
DEADLINE = "PENSTOCK_TEST_DEADLINE"

# the matrices of the tests are small: threads of BLAS would spend more time waiting than they save
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# no property depends on how busy the host is
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# a suite in the background of a shell, or under nohup, ignores signals, and every program that it starts
# would inherit this; tests need the signal dispositions of a terminal
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        default = signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, default)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help=f"fail if a test was skipped for a reason that does not begin with '{KERNEL}'",
    )
    parser.addoption(
        "--busy-skips",
        type=int,
        default=0,
        metavar="N",
        help=f"with --strict-skips: accept up to N skips whose reason begins with '{BUSY}'",
    )
    parser.addoption(
        "--files-marked",
        action="append",
        default=[],
        choices=MARKS,
        help="collect only test files that name this mark: importing all of them takes several seconds",
    )


#: memory for one worker and the processes of its tests [bytes]
WORKER_BYTES = 2 << 30


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Number of workers of `-n logical`: two per processor, because many tests wait, if memory suffices."""
    processors = len(os.sched_getaffinity(0))
    available = psutil.virtual_memory().available // WORKER_BYTES
    return max(processors, min(2 * processors, available))


def _unaccepted_skips(config: pytest.Config) -> list[tuple[str, str]]:
    """Skipped tests that `--strict-skips` does not accept, each with its reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("--strict-skips"):
        return []
    reasons = ((r.nodeid, str(r.longrepr[2])) for r in reporter.stats.get("skipped", []))
    reasons = ((test, reason.removeprefix("Skipped: ")) for test, reason in reasons)
    rejected = [skip for skip in reasons if not skip[1].startswith((KERNEL, LATE))]
    busy = [skip for skip in rejected if skip[1].startswith(BUSY)]
    if len(busy) > config.getoption("--busy-skips"):
        return rejected
    return [skip for skip in rejected if skip not in busy]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for test, reason in _unaccepted_skips(terminalreporter.config):
        terminalreporter.write_line(
            f"skipped, though not for the kernel: {test}: {reason}", red=True
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unaccepted_skips(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a long test after the deadline of a run that would be cut off."""
    deadline = os.environ.get(DEADLINE)
    if deadline and item.get_closest_marker("long") and time.time() > float(deadline):
        pytest.skip(f"{LATE}${DEADLINE} is over")


#: marks that `--files-marked` selects by; a file that uses one names it
MARKS = ("long", "timed")


@functools.cache
def _names(path: Path, mark: str) -> bool:
    """True if a test file names a mark."""
    return f"pytest.mark.{mark}" in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore test files without the requested marks."""
    if collection_path.suffix != ".py":
        return None
    marks = config.getoption("--files-marked")
    return None if all(_names(collection_path, mark) for mark in marks) else True


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Generator[None, None, None]:
    """Disable garbage collection during test collection, and exclude imported objects from it later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Include all objects in the interpreter's last collection: libraries warn about leaked ones.

    Remove the temporary directories of killed processes as well.
    """
    gc.unfreeze()
    remove_abandoned(Path(tempfile.gettempdir()))


#: folders whose tests need root, FUSE, BPF or a virtual machine
HOST = ("tests/integration/", "tests/guest/", "tests/fuzz/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the host; refuse marks that a file uses but does not name."""
    unnamed = set()
    for item in items:
        if item.nodeid.startswith(HOST):
            item.add_marker(pytest.mark.host)
        unnamed |= {
            f"{item.path}: found tests marked '{mark}'; expected pytest.mark.{mark} in the file"
            for mark in MARKS
            if item.get_closest_marker(mark) and not _names(item.path, mark)
        }
    if unnamed:
        raise pytest.UsageError("\n".join(sorted(unnamed)))
