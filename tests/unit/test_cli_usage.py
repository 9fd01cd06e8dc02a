"""Invalid options and arguments of the command line: one line, exit status 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock import cli
from penstock.errors import BadInput, PenstockError

WRONG = [
    (("nosuch",), "No such command 'nosuch'; see penstock --help"),
    (("trace", "--wrong"), "trace: No such option: --wrong"),
    (("trace", "--ring-size", "0", "--", "true"), "trace: Invalid value for '--ring-size'"),
    (("plot",), "plot: Missing argument"),
    (("disk", "up"), "disk up: Missing argument"),
    (("compare", "a", "b", "--metrics"), "compare: "),
]

#: verbs that run a command, and the function that fails in the test
WRAPPERS = [
    (("trace",), "penstock.observe.trace.capture.session.trace_command"),
    (("trace", "--disk", "/nowhere"), "penstock.campaign.evidence.trace_disk.trace_on_disk"),
    (("monitor", "run"), "penstock.parts.monitoring.session.monitor_command"),
]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No experiment of another test is running."""
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_invalid_arguments_have_a_message_of_one_line(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith(f"penstock: {message}")
    assert "--help" in line


@pytest.mark.parametrize(
    "options",
    [
        ("--anonymize", "key"),
        ("--fail-on", "warning"),
        ("--file", "/f"),
        ("--mode", "pattern"),
        ("-p", "1"),
        ("--calibrate", "2"),
        ("--no-layers",),
    ],
)
def test_options_that_exclude_a_disk_are_refused(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "trace", "--disk", "/nowhere", *options, "--", "true") == 2
    option = {"-p": "--pid", "--no-layers": "--layers"}.get(options[0], options[0])
    stderr = capsys.readouterr().err
    assert stderr == f"penstock: --disk: cannot be combined with {option}\n"


def test_a_resumed_workflow_refuses_other_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options of a resumed workflow are those of its journal."""
    options = ("--resume", "out", "--retries", "0", "--set", "network.latency=1ms")
    assert run(monkeypatch, "workflow", "run", *options) == 2
    error = capsys.readouterr().err
    assert "--resume: found --set, --retries; expected nothing else" in error


def test_errors_with_json_are_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "trace", "--json", "--wrong") == 2
    assert "No such option" in json.loads(capsys.readouterr().out)["error"]


def test_valid_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    assert run(monkeypatch, "trace", "--help") == 0
    assert "Usage: penstock trace" in capsys.readouterr().out
    assert run(monkeypatch) == 2  # without arguments: the help page
    assert "trace" in capsys.readouterr().err


@pytest.mark.parametrize("wrapped", ["", "class", "import"])
def test_an_interrupt_while_modules_load(
    wrapped: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def build() -> None:
        if wrapped == "class":  # as in Python 3.11
            type("Made", (), {"field": Interrupted()})
        if wrapped == "import":  # as in pybind11
            raise ImportError("initialization failed") from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_build", build)
    assert run(monkeypatch, "trace", "--help") == 130
    assert capsys.readouterr().err == "penstock: stopped\n"


def test_an_interrupt_inside_a_verb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.study.load.load_study", load)
    assert run(monkeypatch, "plan", "a.study.yaml") == 130
    assert capsys.readouterr().err == "penstock: stopped\n"


@pytest.mark.parametrize("arguments", [("a", "-c", "b"), ("a", "--all")])
def test_one_cluster_at_a_time(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "nodes", "down", *arguments) == 2
    assert "found" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "function"), WRAPPERS)
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (PenstockError("it failed:\nno room"), 125, "penstock: it failed:\npenstock: no room\n"),
        (OSError(28, "No space left"), 125, "penstock: [Errno 28] No space left\n"),
        (BadInput("found a; expected b"), 2, "penstock: found a; expected b\n"),
    ],
)
def test_own_failures_have_another_status_than_the_command(
    arguments: tuple[str, ...],
    function: str,
    as_json: bool,
    error: Exception,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(function, failing)
    options = ("--json",) if as_json else ()
    assert run(monkeypatch, *arguments, *options, "--", "true") == status
    output = capsys.readouterr()
    assert output.err == message
    assert output.out == (f"{json.dumps({'error': str(error), 'mistakes': []})}\n" * as_json)
