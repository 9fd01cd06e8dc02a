"""Commands in control groups: entry before the start, limits, timeouts and cleanup."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup, hierarchies
from penstock.host.journal.journal import Journal, new_token
from penstock.host.processes.launch import launch
from penstock.host.processes.processes import TOKEN_VARIABLE, Identity, with_token
from tests.support.waiting import read_pid, wait_for_end

needs_groups = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups"),
    pytest.mark.skipif(hierarchies().layout == "none", reason="kernel: no control groups"),
]
LIMIT_BYTES = 48 << 20


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def group(journal: Journal) -> Iterator[RunCgroup]:
    created = create_run_cgroup("launch", LIMIT_BYTES, journal)
    yield created
    created.remove()
    assert journal.open_entries() == []
    assert not any(d.exists() for d in created.directories)


@pytest.fixture
def foreign() -> Iterator[list[Path]]:
    """Groups of another program in each hierarchy, with a process in them."""
    layout = hierarchies()
    roots = dict.fromkeys([*layout.v1.values(), *([layout.unified] if layout.unified else [])])
    directories = [root / f"foreign-{new_token()}" for root in roots]
    with subprocess.Popen(["sleep", "600"]) as member:
        try:
            for directory in directories:
                directory.mkdir()
                if (directory / "cpuset.cpus").exists():  # empty in a new group of v1
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        (directory / name).write_text((directory.parent / name).read_text())
                (directory / "cgroup.procs").write_text(str(member.pid))
            yield directories
        finally:
            member.kill()
            member.wait()
            for directory in filter(Path.exists, directories):
                directory.rmdir()


class TestWithoutGroup:
    def test_status_output_and_times(self, tmp_path: Path) -> None:
        result = launch("echo out; echo err >&2; exit 3", None, tmp_path / "o", tmp_path / "e")
        assert (result.exit_status, result.signal, result.timed_out) == (3, None, False)
        assert (tmp_path / "o").read_text() == "out\n"
        assert (tmp_path / "e").read_text() == "err\n"
        assert 0 < result.end_ns - result.start_ns < 60e9

    def test_a_signal_is_reported(self) -> None:
        result = launch("kill -TERM $$")
        assert (result.exit_status, result.signal) == (128 + signal.SIGTERM, signal.SIGTERM)

    def test_environment_and_directory(self, tmp_path: Path) -> None:
        launch(
            'echo "$A $B"; pwd', None, tmp_path / "o", cwd=tmp_path, extra_env={"A": "1", "B": "2"}
        )
        assert (tmp_path / "o").read_text() == f"1 2\n{tmp_path}\n"

    def test_a_list_of_arguments_is_not_a_shell_line(self, tmp_path: Path) -> None:
        launch(["echo", "$HOME", "a  b", "; false"], None, tmp_path / "o")
        assert (tmp_path / "o").read_text() == "$HOME a  b ; false\n"

    def test_a_missing_program(self) -> None:
        with pytest.raises(PenstockError, match="no-such-program: no such program"):
            launch(["no-such-program"])

    def test_an_unknown_user(self) -> None:
        with pytest.raises(PenstockError, match="no such user"):
            launch(["true"], user="nobody-of-that-name")

    def test_status_125_of_the_command_is_returned(self) -> None:
        assert launch("exit 125").exit_status == 125

    def test_processor_time_is_counted(self) -> None:
        result = launch("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
        assert result.cpu_s > 0.001


class TestInGroup:
    pytestmark = needs_groups

    def test_the_command_starts_in_the_group(self, group: RunCgroup, tmp_path: Path) -> None:
        launch(["cat", "/proc/self/cgroup"], group, tmp_path / "o")
        lines = (tmp_path / "o").read_text().splitlines()
        entered = [line for line in lines if line.endswith(f"/{group.name}")]
        assert len(entered) >= len(group.directories)
        if "unified" in group.paths:
            assert group.cgroup_id == os.stat(group.paths["unified"]).st_ino
            assert any(line.startswith("0::") for line in entered)

    def test_the_limit_bounds_the_page_cache(self, group: RunCgroup, tmp_path: Path) -> None:
        command = ["dd", "if=/dev/zero", f"of={tmp_path / 'f'}", "bs=1M", "count=160"]
        assert launch(command, group, stderr=os.devnull).exit_status == 0
        peak = group.peak_memory_bytes()
        assert peak is not None
        assert LIMIT_BYTES // 2 < peak <= LIMIT_BYTES
        assert group.memory_stat()["page_cache_bytes"] > LIMIT_BYTES // 4
        assert group.oom_kills() == 0

    def test_excess_memory_is_reported(self, group: RunCgroup) -> None:
        command = ["python3", "-S", "-c", f"x = bytearray({4 * LIMIT_BYTES}); print(len(x))"]
        result = launch(command, group, os.devnull, os.devnull)
        assert result.signal == signal.SIGKILL
        assert group.oom_kills() >= 1

    def test_a_timeout_kills_the_complete_group(self, group: RunCgroup, tmp_path: Path) -> None:
        command = f"setsid sleep 600 & echo $! > {tmp_path / 'pid'}; sleep 600"
        result = launch(command, group, timeout_s=5)
        assert result.timed_out
        assert result.signal == signal.SIGKILL
        wait_for_end(int((tmp_path / "pid").read_text()))
        assert group.pids() == []

    def test_background_processes_end_with_the_group(
        self, journal: Journal, tmp_path: Path
    ) -> None:
        group = create_run_cgroup("behind", None, journal)
        launch(f"setsid sleep 600 >/dev/null & echo $! > {tmp_path / 'pid'}", group)
        pid = int((tmp_path / "pid").read_text())
        assert group.pids() == [pid]
        group.remove()
        wait_for_end(pid)

    def test_as_another_user(self, group: RunCgroup, tmp_path: Path) -> None:
        try:
            account = pwd.getpwnam("nobody")
        except KeyError:
            pytest.skip("no user nobody")
        launch('id -u; echo "$USER"; cat /proc/self/cgroup', group, tmp_path / "o", user="nobody")
        lines = (tmp_path / "o").read_text().splitlines()
        assert lines[:2] == [str(account.pw_uid), "nobody"]
        assert any(line.endswith(group.name) for line in lines[2:])

    def test_a_group_that_is_gone_is_an_error_and_nothing_runs(
        self, journal: Journal, tmp_path: Path
    ) -> None:
        group = create_run_cgroup("gone", None, journal)
        for directory in group.directories:
            directory.rmdir()
        with pytest.raises(PenstockError, match="could not enter"):
            launch(["touch", str(tmp_path / "ran")], group)
        assert not (tmp_path / "ran").exists()
        group.remove()

    def test_ctrl_c_kills_the_group_and_is_raised(self, group: RunCgroup, tmp_path: Path) -> None:
        pid = tmp_path / "pid"
        command = f"setsid sleep 600 & echo $! > {pid}; sleep 600"
        started = threading.Event()

        def interrupt() -> None:
            try:
                started.wait(60)
                read_pid(pid)
                time.sleep(0.5)  # `launch` waits for the command then
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            launch(command, group, started=lambda _: started.set())
        thread.join()
        wait_for_end(read_pid(pid))
        assert group.pids() == []

    def test_foreign_groups_are_not_touched(self, journal: Journal, foreign: list[Path]) -> None:
        names = ("cgroup.procs", "memory.limit_in_bytes", "notify_on_release")

        def state() -> dict[Path, str]:
            files = [d / name for d in foreign for name in names]
            return {file: file.read_text() for file in files if file.exists()}

        before = state()
        assert all(before[directory / "cgroup.procs"].strip() for directory in foreign)
        with create_run_cgroup("foreign", LIMIT_BYTES, journal) as group:
            launch(["true"], group)
        assert state() == before


def test_without_a_group_the_command_is_found_by_its_token(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from penstock.host.cgroups import cgroup as module

    monkeypatch.setattr(module, "mounts", list)
    group = create_run_cgroup("bare", 1 << 30, journal)
    assert group.paths == {}
    assert group.cgroup_id == 0
    assert group.missing
    launch(f"setsid sleep 60 >/dev/null & echo $! > {tmp_path / 'pid'}", group)
    pid = int((tmp_path / "pid").read_text())
    assert pid in group.pids()
    group.remove()
    assert Identity.of(pid) is None
    assert journal.open_entries() == []


def test_a_command_during_exec_is_found_by_its_token() -> None:
    token = new_token()
    loading = """i=0; while [ $i -lt 100 ]; do i=$((i+1)); done; exec /bin/sh -c "$0" "$0" """
    child = subprocess.Popen(["sh", "-c", loading, loading], env={TOKEN_VARIABLE: token})
    try:
        assert [with_token(token) for _ in range(300)] == 300 * [[child.pid]]
    finally:
        child.kill()
        child.wait()
    assert with_token(token) == []


def test_the_child_is_reaped() -> None:
    result = launch(["true"])
    assert not Path(f"/proc/{result.pid}").exists()
    assert subprocess.run(["true"]).returncode == 0
