"""penstock monitor: experiments, their marks, their data; a command that is sampled meanwhile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import typer

from penstock.errors import BadInput, PenstockError

app = typer.Typer(
    help="Record experiments: marks, points, what a command does.", no_args_is_help=True
)
_FAILED = 125

_SERVER = typer.Option(
    None, "--server", help="http://HOST:PORT ($PENSTOCK_SERVER); by default the store of this user."
)
_AT = typer.Option(None, "--at", help="When: seconds since 1970, or ISO 8601 (default: now).")
_NAME = typer.Argument(..., help="Its name; NAME#2 is its second repeat, a bare name the latest.")
_JSON = typer.Option(False, "--json", help="One JSON object on stdout.")


@app.callback()
def _monitor() -> None:
    """Record experiments: marks, points, what a command does."""


@app.command()
def start(
    name: str = _NAME,
    param: list[str] = typer.Option([], "--param", "-p", help="KEY=VALUE, a factor's level."),
    tag: list[str] = typer.Option([], "--tag", "-t", help="A word to find it by."),
    shared: bool = typer.Option(False, "--shared", help="Let other users read it."),
    timeout: float = typer.Option(None, help="End it after so many seconds, where nobody does."),
    at: str = _AT,
    server: str = _SERVER,
) -> None:
    """Begin an experiment, or the next repeat of one that has ended.

    Where a server that was asked for is down, stderr says so and the status is 0: a script goes on.
    """
    options = {
        "params": _params(param),
        "tags": tag,
        "shared": shared,
        "timeout_s": timeout,
        "at_ns": _moment(at),
    }
    _say(f"{_patient(server).start(name, **options)} begun")


@app.command()
def mark(
    name: str = _NAME,
    begin: str = typer.Option(None, help="A phase begins; inside of one that lasts."),
    end: str = typer.Option(None, help="A phase ends, and those inside of it."),
    note: str = typer.Option(None, help="Some words."),
    at: str = _AT,
    server: str = _SERVER,
) -> None:
    """Begin or end a phase, or note something."""
    said = [(k, w) for k, w in (("begin", begin), ("end", end), ("note", note)) if w is not None]
    if len(said) != 1:
        raise BadInput(f"found {len(said)} marks; expected one of --begin, --end, --note")
    _patient(server).mark(name, *said[0], _moment(at))


@app.command()
def stop(
    name: str = _NAME,
    exit_status: int = typer.Option(None, "--exit", help="Status of what was run."),
    aborted: bool = typer.Option(False, "--aborted", help="It did not come to its end."),
    at: str = _AT,
    server: str = _SERVER,
) -> None:
    """End an experiment; its bundle is left in the archive."""
    ended = _patient(server).stop(name, at_ns=_moment(at), exit_status=exit_status, aborted=aborted)
    _say(f"{ended} ended")


@app.command()
def get(
    name: str = _NAME,
    metric: str = typer.Option(..., "--metric", "-m", help="Which metric."),
    kind: Literal["timestamp", "duration", "sample"] = typer.Option(
        None, "--type", help="The first column: time, seconds since the start, or a number."
    ),
    label: list[str] = typer.Option([], "--label", help="Labels whose values name the columns."),
    phase: str = typer.Option(None, help="Only of this phase."),
    form: Literal["csv", "jsonl", "parquet", "openmetrics"] = typer.Option(
        "csv", "--format", help="How it is written."
    ),
    correct_clocks: bool = typer.Option(
        False,
        "--correct-clocks",
        help="Times by the server's clock, where the sender's was measured against it.",
    ),
    output: Path = typer.Option(None, "-o", "--output", help="A file (default: stdout)."),
    server: str = _SERVER,
) -> None:
    """Write the data of an experiment: rows by time, an empty cell where there is no value."""
    from penstock.observe.monitor.door import opened
    from penstock.writing import whole_file

    said: dict[str, Any] = {
        "metric": metric,
        "format": form,
        "type": kind,
        "phase": phase,
        "labels": label or None,
    }
    if correct_clocks:
        said["clocks"] = "corrected"
    parts = opened(server).get(name, {k: v for k, v in said.items() if v is not None})
    if output is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    with whole_file(output) as draft, draft.open("wb") as file:
        file.writelines(parts)


@app.command("list")
def listed(
    user: str = typer.Option(None, help="Whose."),
    name: str = typer.Option(None, help="Of this name."),
    tag: str = typer.Option(None, help="With this tag."),
    state: str = typer.Option(None, help="running, ended, aborted, closed-by-timeout, …"),
    as_json: bool = _JSON,
    server: str = _SERVER,
) -> None:
    """List experiments, and runs of studies, which are experiments, too."""
    from penstock.observe.monitor.door import opened
    from penstock.observe.monitor.moments import iso_text

    found = opened(server).listed(user=user, name=name, tag=tag, state=state)
    if as_json:
        print(json.dumps({"experiments": found}))
        return
    for one in found:
        lasted = (
            "-" if one["end_ns"] is None else f"{(one['end_ns'] - one['start_ns']) / 1e9:.3f} s"
        )
        who = f"{one['name']}#{one['repeat']}"
        begun = iso_text(one["start_ns"] // 10**9 * 10**9)
        print(f"{who:<36} {one['state']:<10} {begun:<21} {lasted:>12} {one['user']}")


@app.command()
def rm(name: str = _NAME, server: str = _SERVER) -> None:
    """Remove an experiment; it is kept in the trash for seven days."""
    from penstock.observe.monitor.door import opened

    opened(server).remove(name)


@app.command()
def token(
    user: str = typer.Argument(None, help="For whom."),
    role: Literal["owner", "reader"] = typer.Option("owner", help="What it lets."),
    revoke: str = typer.Option(None, help="Make the token of this id worth nothing."),
    as_json: bool = _JSON,
) -> None:
    """Make a token for a user of the server, which is told just once; without a user list them."""
    from penstock.archive.catalogue import open_index

    with open_index() as index:
        if revoke is not None:
            if not index.revoke(revoke):
                raise BadInput(
                    f"found no token {revoke}; expected an id of `penstock monitor token`"
                )
            return
        if user is not None:
            made = index.add_token(user, role)
            print(json.dumps({"user": user, "role": role, "token": made}) if as_json else made)
            return
        rows = [vars(t) for t in index.tokens()]
    if as_json:
        print(json.dumps({"tokens": rows}))
    for row in [] if as_json else rows:
        print(f"{row['token_id']}  {row['role']:<8}{row['owner']}")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    words: list[str] = typer.Argument(..., metavar="-- COMMAND", help="What to run."),
    name: str = typer.Option(
        None, "--name", "-n", help="Of the experiment (default: the command's own)."
    ),
    tag: list[str] = typer.Option([], "--tag", "-t", help="A word to find it by."),
    param: list[str] = typer.Option([], "--param", "-p", help="KEY=VALUE, a factor's level."),
    interval: float = typer.Option(
        1.0, "--interval", "-i", help="Seconds between samples, from 0.01."
    ),
    output: Path = typer.Option(None, "-o", "--output", help="Leave a one-run bundle there, too."),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object on stdout; the command's stdout goes to stderr."
    ),
    server: str = _SERVER,
) -> None:
    """Run a command as an experiment: sample processors, memory, disks, network, pressure and its group.

    Returns the command's own status, 125 when penstock itself failed. Ctrl-C, SIGTERM and SIGHUP are passed
    on to the command, and the experiment is ended as aborted.
    """
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    import time

    from penstock.observe.monitor.door import clocks, sampled
    from penstock.observe.monitor.session import Signals, monitor_command

    options = {"tags": tag, "params": _params(param)}
    status: int | None = None
    cut_short = True
    try:
        with Signals() as signals:
            door = _patient(server)
            begun = {"facts": {"command": words}, **options}
            experiment = door.start(name or Path(words[0]).name, **begun)
            try:
                every_ns = round(interval * 1e9)
                measured = [(time.time_ns(), door.clock())]
                done = monitor_command(words, every_ns, output, quiet=as_json, signals=signals)
                status, cut_short = done.finished.exit_status, done.interrupted is not None
                shift_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                told = done.result.receipt
                due = (int(told["end_ns"]) - int(told["start_ns"])) // int(told["used_ns"])
                for batch in sampled(done.result.tables, due, shift_ns):
                    door.write(experiment, batch)
                measured.append((time.time_ns(), door.clock()))
                known = [(at, offset) for at, offset in measured if offset is not None]
                if known:
                    door.write(experiment, clocks(known, ("samples", "utilisation")))
                if any(offset.warns(every_ns) for _, offset in known):
                    _say(
                        "this host's clock is more than half an interval from the server's; "
                        "get --correct-clocks takes that out"
                    )
            finally:
                door.stop(experiment, exit_status=status, aborted=cut_short)
    except BadInput:
        raise
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": str(error)}))
        raise typer.Exit(_FAILED) from None
    means = _means(done.result.tables["utilisation"])
    if as_json:
        ended = {"exit_status": done.finished.exit_status, "wall_s": done.finished.wall_s}
        place = {"experiment": experiment, "bundle": str(done.bundle) if done.bundle else None}
        print(json.dumps({**ended, **place, "receipt": done.result.receipt, "utilisation": means}))
    else:
        _show(done.finished.wall_s, done.result.receipt, means)
    raise typer.Exit(done.finished.exit_status)


def _patient(server: str | None) -> Any:
    from penstock.observe.monitor.door import Patient, opened

    return Patient(opened(server))


def _params(said: list[str]) -> dict[str, str]:
    found = {}
    for text in said:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"found --param {text!r}; expected KEY=VALUE")
        found[key] = value
    return found


def _moment(said: str | None) -> int | None:
    from penstock.observe.monitor.moments import moment_ns

    return None if said is None else moment_ns(said)


def _say(text: str) -> None:
    print(f"penstock: {text}", file=sys.stderr)


def _means(table: Any) -> list[dict[str, Any]]:
    """Mean and maximum of every utilisation over the run."""
    frame = table.to_pandas().dropna(subset=["value"])
    grouped = frame.groupby(["kind", "entity", "metric", "unit"])["value"].agg(["mean", "max"])
    rows: list[dict[str, Any]] = json.loads(grouped.reset_index().to_json(orient="records"))
    return rows


def _show(wall_s: float, receipt: dict[str, Any], means: list[dict[str, Any]]) -> None:
    made, late_ms = receipt["samples"], receipt["late_p99_ns"] / 1e6
    print(f"{wall_s:.3f} s, {made} of {receipt['expected']} samples, p99 {late_ms:.2f} ms late")
    if receipt.get("died"):
        print("penstock: the sampler was killed; what came after is missing", file=sys.stderr)
    if not means:
        print("Too short for a utilisation: ask for a shorter --interval.")
        return
    print(f"{'':<38}{'mean':>14}{'most':>14}")
    for row in means:
        name = f"{row['kind']} {row['entity']} {row['metric']}"
        print(f"{name:<38}{row['mean']:>14.4g}{row['max']:>14.4g} {row['unit']}")
