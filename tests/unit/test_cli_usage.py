"""Options and arguments that the command line cannot use: one line, status 2."""

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

#: verbs that run a command, and what of them is to fail
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


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["penstock", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_one_line_says_what_is_wrong(
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith(f"penstock: {said}")
    assert "--help" in line


@pytest.mark.parametrize(
    "more",
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
def test_what_a_disk_cannot_honour_is_refused(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "trace", "--disk", "/nowhere", *more, "--", "true") == 2
    option = {"-p": "--pid", "--no-layers": "--layers"}.get(more[0], more[0])
    told = capsys.readouterr().err
    assert told == f"penstock: --disk: cannot be combined with {option}\n"


def test_and_with_json_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "trace", "--json", "--wrong") == 2
    assert "No such option" in json.loads(capsys.readouterr().out)["error"]


def test_what_is_right_stays_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    assert run(monkeypatch, "trace", "--help") == 0
    assert "Usage: penstock trace" in capsys.readouterr().out
    assert run(monkeypatch) == 2  # nothing asked for: the help page
    assert "trace" in capsys.readouterr().err


@pytest.mark.parametrize("wrapped", ["", "class", "import"])
def test_an_interrupt_while_modules_load(
    wrapped: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def build() -> None:
        if wrapped == "class":  # as Python 3.11 does it
            type("Made", (), {"field": Interrupted()})
        if wrapped == "import":  # as pybind11 does it
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


@pytest.mark.parametrize("words", [("a", "-c", "b"), ("a", "--all")])
def test_one_cluster_at_a_time(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "nodes", "down", *words) == 2
    assert "found" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "place"), WRAPPERS)
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (PenstockError("it failed:\nno room"), 125, "penstock: it failed:\npenstock: no room\n"),
        (OSError(28, "No space left"), 125, "penstock: [Errno 28] No space left\n"),
        (BadInput("found a; expected b"), 2, "penstock: found a; expected b\n"),
    ],
)
def test_a_failure_of_ours_is_not_that_of_the_command(
    words: tuple[str, ...],
    place: str,
    as_json: bool,
    error: Exception,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(place, failing)
    asked = ("--json",) if as_json else ()
    assert run(monkeypatch, *words, *asked, "--", "true") == status
    told = capsys.readouterr()
    assert told.err == said
    assert told.out == (f"{json.dumps({'error': str(error), 'mistakes': []})}\n" * as_json)
