"""Errors in workloads and predictions: one line on stderr, status 2, no files written."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import cli
from penstock.analyse.statistics.prediction_intervals import conformal_rank, least_pairs
from penstock.parts.prediction import quantities
from penstock.parts.prediction.workloads.check import printable
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.make import make_workload
from penstock.text import counted, shortened
from penstock.writing import atomic_folder, write_atomic
from tests.support import commands

PLATFORM = """\
penstock_platform: 1
name: small
hosts:
  - group: nodes
    count: 4
    roles: [client, storage]
    storage: {read: {per_byte: 1 ms/MiB}, write: {per_byte: 1 ms/MiB}}
  - {group: boss, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 12.5 MB/s, loopback: 125 MB/s}
"""
VALID = """\
{"schema": "penstock/workload/1", "name": "w",
 "files": [{"name": "in", "size_bytes": 1000, "preloaded": true}],
 "tasks": [
  {"name": "a", "operations": [
    {"op": "open", "file": "in"},
    {"op": "read", "file": "in", "size_bytes": 1000},
    {"op": "compute", "seconds": 1},
    {"op": "write", "file": "x", "size_bytes": 10}]},
  {"name": "b", "operations": [{"op": "read", "file": "x", "size_bytes": 10}]}]}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Status, stdout and stderr of `penstock …` in a directory with p.yaml and w.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    Path("p.yaml").write_text(PLATFORM)
    Path("w.json").write_text(VALID)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        code = exited.value.code
        return int(code or 0), out, err

    return command


def one_error(err: str) -> str:
    """The only line of stderr."""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("penstock: ")
    return lines[0].removeprefix("penstock: ")


BROKEN: dict[str, tuple[str, str, str]] = {
    # case: (text of the valid workload, replacement, expected line:column and message)
    "a file that no task writes": ('"op": "open", "file": "in"', '"op": "open", "file": "no"',
        "5:28: found 'no'"),
    "no operations": ('[{"op": "read", "file": "x", "size_bytes": 10}]', "[]",
        "9:3: found no operations in the task 'b'"),
    "negative time": ('"seconds": 1', '"seconds": -1', "7:34: found -1"),
    "a time beyond all clocks": ('"seconds": 1', '"seconds": 1e300', "7:34: found 1e+300"),
    "a number of too many digits": ('"seconds": 1', '"seconds": 1' + "0" * 5000,
        "7:34: found a number of 5001 digits"),
    "a number that no float holds": ('"seconds": 1', '"seconds": 1' + "0" * 400,
        "7:34: found a number of 401 digits"),
    "NaN": ('"seconds": 1', '"seconds": NaN', "7:34: found NaN"),
    "a version of the future": ("workload/1", "workload/2", "1:12: found the text 'penstock/workload/2'"),
    "half of a surrogate pair": ('"name": "a"', '"name": "\\ud800"',
        "4:12: found the character U+D800 in a name"),
    "a line feed in a name": ('"name": "a"', '"name": "a\\nb"', "4:12: found the character U+000A in a name"),
    "an escape sequence in a name": ('"name": "a"', '"name": "\\u001b[31m"',
        "4:12: found the character U+001B"),
    "a name that turns round": ('"name": "a"', '"name": "\\u202egnp"', "4:12: found the character U+202E"),
    "a name without end": ('"name": "a"', f'"name": "{"x" * 5000}"',
        "4:12: found a name of 5,000 characters"),
    "waiting for itself": ('"name": "a",', '"name": "a", "after": ["a"],',
        "4:27: found the task 'a' waiting for itself"),
    "after is no list": ('"name": "b",', '"name": "b", "after": "a",',
        "9:26: found the text 'a'; expected a list of names of tasks"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_workload(run: Run, case: str):
    original, replacement, message = BROKEN[case]
    assert original in VALID
    Path("w.json").write_text(VALID.replace(original, replacement, 1))
    for command in (["workload", "show", "w.json"], ["predict", "w.json", "-p", "p.yaml"]):
        status, out, err = run(*command)
        assert (status, out) == (2, "")
        assert one_error(err).startswith(f"w.json:{message}")
    assert sorted(os.listdir()) == ["p.yaml", "w.json"]


def test_cyclic_tasks(run: Run):
    text = VALID.replace('"op": "open", "file": "in"', '"op": "read", "file": "y", "size_bytes": 1')
    more = '{"op": "write", "file": "y", "size_bytes": 1}]}]}'
    Path("w.json").write_text(text.replace('"size_bytes": 10}]}]}', f'"size_bytes": 10}}, {more}'))
    status, out, err = run("predict", "w.json", "-p", "p.yaml")
    assert (status, out) == (2, "")
    assert "tasks that wait for each other: a → b → a" in one_error(err)


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "1:1: found an empty file"),
    "blanks": (b" \n\n ", "1:1: found an empty file"),
    "binary": (bytes(range(128, 256)), "1:1: found the byte 0x80"),
    "nested json": (b"[" * 4000 + b"]" * 4000, "1:1: found values nested without end"),
    "nested deep": (b"a: " + b'[{"b": ' * 100_000, "1:1: found values nested without end"),
    "nested yaml": (b"a: " + b"[" * 2000 + b"]" * 2000, "1:1: found values nested without end"),
    "bomb": (
        b'a: &a ["x","x","x","x","x","x","x","x","x"]\n'
        + b"".join(
            b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9))
            for i in range(12)
        ),
        "1:12: found values without end",
    ),
    "an alias of itself": (b"a: &a [*a]\n", "1:4: found values without end"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_files(run: Run, case: str):
    raw, message = UNREADABLE[case]
    Path("broken").write_bytes(raw)
    for command in (
        ["predict", "broken", "-p", "p.yaml"],
        ["predict", "w.json", "-p", "broken"],
    ):
        status, out, err = run(*command)
        assert (status, out) == (2, ""), err
        assert one_error(err).startswith(f"broken:{message}")


@pytest.mark.parametrize("path", ["/dev/zero", "nowhere", "."])
def test_paths_that_are_not_files(run: Run, path: str):
    for command in (["predict", path, "-p", "p.yaml"], ["predict", "w.json", "-p", path]):
        status, out, err = run(*command)
        assert (status, out) == (2, "")
        one_error(err)


OPTIONS: dict[str, tuple[str, ...]] = {
    "found an interval level of 1.5": ("--level", "1.5"),
    "found an interval level of nan": ("--level", "nan"),
    "'0s'": ("--measured", "0s"),
    "--set x": ("--set", "x"),
    "is not in the platform": ("--set", "moon=3"),
    "expected a value, such as": ("--set", "store.chunk={a"),
    "found 5 replicas on 4 storage hosts": ("--set", "store.replicas=5"),
    "found a stripe of 9 on 4 storage hosts": ("--set", "store.stripe=9"),
    "at most 2^60": ("--set", "store.chunk=1e30GiB"),
    "found a directory; expected a file": ("--html", "."),
    "expected one for x.html": ("--html", "none/x.html"),
    "w.json: found a file; expected a directory": ("-o", "w.json"),
}


@pytest.mark.parametrize("message", OPTIONS)
def test_bad_options(run: Run, message: str):
    status, out, err = run("predict", "w.json", "-p", "p.yaml", "--seeds", "2", *OPTIONS[message])
    assert (status, out) == (2, "")
    assert message in one_error(err)
    assert sorted(os.listdir()) == ["p.yaml", "w.json"]


MISFITS: dict[str, tuple[str, str]] = {
    'task "a" is to run on "moon"': ('"name": "a",', '"name": "a", "machine": "moon",'),
    'task "a" is to run on "boss-0"': ('"name": "a",', '"name": "a", "machine": "boss-0",'),
    'there is no host "moon"': (
        '"preloaded": true',
        '"preloaded": true, "hints": {"host": "moon"}',
    ),
    'host "boss-0" has no storage': (
        '"preloaded": true',
        '"preloaded": true, "hints": {"host": "boss-0"}',
    ),
    'file "in": replicas is 9': (
        '"preloaded": true',
        '"preloaded": true, "hints": {"replicas": 9}',
    ),
    'file "in": stripe_width is 9': (
        '"preloaded": true',
        '"preloaded": true, "hints": {"stripe_width": 9}',
    ),
    "larger chunks": ('"size_bytes": 1000,', '"size_bytes": 1152921504606846976,'),
}


@pytest.mark.parametrize("message", MISFITS)
def test_workload_that_does_not_fit_the_platform(run: Run, message: str):
    original, replacement = MISFITS[message]
    text = VALID.replace(original, replacement, 1)
    if message == "larger chunks":
        text = text.replace('"file": "in", "size_bytes": 1000}', '"file": "in"}')
    Path("w.json").write_text(text)
    status, out, err = run("predict", "w.json", "-p", "p.yaml", "--seeds", "2")
    assert (status, out) == (2, "")
    assert message in one_error(err)


def test_full_store_fails(run: Run):
    full = "hosts.nodes.storage.capacity=300B"
    status, out, err = run("predict", "w.json", "-p", "p.yaml", "--seeds", "2", "--set", full)
    assert (status, out) == (1, "")
    assert "nodes-" in one_error(err)


@pytest.mark.parametrize("option", ["--html", "--perfetto"])
def test_full_disk(run: Run, option: str):
    status, _, err = run("predict", "w.json", "-p", "p.yaml", "--seeds", "2", option, "/dev/full")
    assert status == 1
    assert one_error(err) == "/dev/full cannot be written: No space left on device"
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_output_directory_that_cannot_be_created(run: Run):
    status, _, err = run("predict", "w.json", "-p", "p.yaml", "--seeds", "2", "-o", "/proc/none/x")
    assert status == 1
    assert "/proc/none/x cannot be written" in one_error(err)


def test_unusual_valid_names(run: Run):
    Path("w.json").write_text(VALID.replace('"name": "a"', '"name": "[/b] :smile: [red]ü"'))
    for command in (["workload", "show", "w.json"], ["predict", "w.json", "-p", "p.yaml"]):
        status, out, err = run(*command)
        assert status == 0, err
        assert "[/b] :smile: [red]ü" in out
        assert max(map(len, out.splitlines())) <= 100


def test_long_tables_are_shortened(run: Run):
    task = {"operations": [{"op": "compute", "seconds": 1}]}
    tasks = [{"name": f"t{i}", **task} for i in range(300)]
    values = {"schema": "penstock/workload/1", "name": "w", "tasks": tasks}
    Path("w.json").write_text(json.dumps(values))
    for command in (["workload", "show", "w.json"], ["predict", "w.json", "-p", "p.yaml"]):
        status, out, _ = run(*command)
        assert status == 0
        assert len(out.splitlines()) < 100
        assert "260 further" in out


def test_json_has_only_standard_numbers(run: Run):
    def refuse(name: str) -> None:
        raise AssertionError(name)

    command = ["predict", "w.json", "-p", "p.yaml", "--seeds", "1", "--json", "--detail"]
    status, out, _ = run(*command)
    assert status == 0
    json.loads(out, parse_constant=refuse)


def test_file_of_zero_bytes(run: Run):
    text = VALID.replace('"size_bytes": 1000', '"size_bytes": 0')
    Path("w.json").write_text(text.replace('"size_bytes": 10}', '"size_bytes": 0}'))
    status, out, err = run("predict", "w.json", "-p", "p.yaml", "--seeds", "2", "--json")
    assert status == 0, err
    # compute time, then three manager requests of 0.5 ms, each with control messages on 2 links
    expected = 1 + 3 * (0.5e-3 + 4 * 1024 / 12.5e6)
    assert json.loads(out)["makespan_s"] == pytest.approx(expected, rel=1e-6)


# files are written atomically


def test_symbolic_link_is_written_through(tmp_path: Path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_devices_and_pipes_are_not_replaced(tmp_path: Path, run: Run):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    status, _, err = run("workload", "make", "reduce", "--width", "1", "-o", str(pipe))
    text = reader.communicate(timeout=60)[0]
    assert status == 0, err
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert len(workload_from_dict(json.loads(text)).tasks) == 2
    assert run("workload", "make", "reduce", "-o", "/dev/null")[0] == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_failed_write_leaves_the_old_folder(tmp_path: Path):
    folder = tmp_path / "a" / "b"

    def fail_half_way() -> None:
        with atomic_folder(folder) as draft:
            (draft / "x").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert os.listdir(tmp_path) == []
    folder.mkdir(parents=True)
    (folder / "mine").write_text("kept")
    with pytest.raises(ZeroDivisionError), atomic_folder(folder) as draft:
        (draft / "mine").write_text(str(1 / 0))
    assert os.listdir(folder) == ["mine"]
    assert (folder / "mine").read_text() == "kept"
    with atomic_folder(folder) as draft:
        (draft / "sub").mkdir()
        (draft / "sub" / "y").write_text("y")
    assert sorted(p.name for p in folder.rglob("*")) == ["mine", "sub", "y"]


def test_too_large_generated_workloads(run: Run):
    for options in (
        ("reduce", "--width", "1000000000"),
        ("pipeline", "--stages", "1000000000"),
        ("checkpoint", "--rounds", "1000000000"),
        ("reduce", "--file-bytes", "-1"),
        ("reduce", "--file-bytes", str(2**62)),
        ("reduce", "--compute", "nan"),
        ("moon",),
    ):
        status, out, err = run("workload", "make", *options, "-o", "x")
        assert (status, out) == (2, ""), options
        one_error(err)
    assert not Path("x").exists()


def test_least_pairs_of_high_levels():
    for level in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        least = least_pairs(level)
        assert conformal_rank(least, level) <= least
        assert conformal_rank(least - 1, level) > least - 1
    assert least_pairs(0.999999999) == 999_999_999


def test_dependencies_through_one_file_are_linear():
    operations = [
        {"op": "read", "file": "f", "size_bytes": 10},
        {"op": "write", "file": "f", "size_bytes": 10},
    ]
    tasks = [{"name": f"t{i}", "operations": operations} for i in range(5000)]
    work = workload_from_dict(
        {
            "schema": "penstock/workload/1",
            "name": "w",
            "files": [{"name": "f", "size_bytes": 1000, "preloaded": True}],
            "tasks": tasks,
        }
    )
    assert sum(map(len, work.dependencies)) == 4999
    assert work.levels == tuple(range(5000))


@pytest.mark.long
def test_broken_pipe_and_full_stdout_give_no_traceback(tmp_path: Path):
    (tmp_path / "p.yaml").write_text(PLATFORM)
    (tmp_path / "w.json").write_text(VALID)
    base = [sys.executable, "-m", "penstock", "predict", "w.json", "-p", "p.yaml", "--seeds", "1"]
    with open("/dev/full", "w") as full:
        result = commands.run(base, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 1
    assert one_error(result.stderr.decode()) == "cannot continue: No space left on device"
    read, write = os.pipe()
    os.close(read)
    result = commands.run(base, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert result.returncode == 1
    assert b"Traceback" not in result.stderr


def test_ctrl_c_leaves_no_files(tmp_path: Path):
    (tmp_path / "p.yaml").write_text(PLATFORM)
    (tmp_path / "w.json").write_text(make_workload("reduce", "large", {"width": 200}).to_json())
    command = [sys.executable, "-m", "penstock", "predict", "w.json", "-p", "p.yaml", "-o", "out"]
    process = subprocess.Popen(
        [*command, "--seeds", "100000", "-q"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    for _ in range(600):  # until the simulator is loaded; the process then reads or simulates
        if "_native" in Path(f"/proc/{process.pid}/maps").read_text():
            break
        time.sleep(0.05)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(2)
    err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["p.yaml", "w.json"]


def test_ctrl_c_during_import(tmp_path: Path):
    (tmp_path / "interrupted.py").write_text(
        "import penstock.cli as cli\n"
        "def interrupted():\n"
        "    exec('import os, signal; os.kill(os.getpid(), signal.SIGINT)')\n"
        "cli._build = interrupted\n"
        "cli.main()\n"
    )
    result = commands.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (130, b"penstock: stopped\n")


def test_plurals_and_extreme_values_as_text():
    assert counted(1, "task") == "1 task"
    assert counted(2000, "task") == "2,000 tasks"
    assert quantities.percent(0.999999) == "99.9999 %"
    assert quantities.share(1e-9) == "< 0.01 %"
    assert shortened("x" * 100) == "x" * 30 + "…" + "x" * 29
    assert printable("a\nb\x1b") == "a\\nb\\x1b"
    assert quantities.seconds(1.00297, 6) == "1.00297 s"


@pytest.mark.long
def test_ten_terabytes_in_bounded_memory(tmp_path: Path):
    """10 TB read in chunks of 1 MiB: ten million requests at once; three quarters cross one link."""
    (tmp_path / "p.yaml").write_text(PLATFORM)
    values: dict[str, Any] = {
        "schema": "penstock/workload/1",
        "name": "w",
        "files": [{"name": "in", "size_bytes": 10**13, "preloaded": True}],
        "tasks": [{"name": "a", "operations": [{"op": "read", "file": "in"}]}],
    }
    (tmp_path / "w.json").write_text(json.dumps(values))
    command = [sys.executable, "-m", "penstock", "predict", "w.json", "-p", "p.yaml", "--json"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

    result = commands.run(
        [*command, "--seeds", "1", "--no-explain"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        preexec_fn=limit,
    )
    assert result.returncode == 0, result.stderr.decode()
    expected = 0.75 * 10**13 / 12.5e6
    assert json.loads(result.stdout)["makespan_s"] == pytest.approx(expected, rel=2e-3)
