"""penstock monitor start, mark, stop, list, rm, token: experiments and access to them."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import typer

from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.cli.monitor.options import (
    AT,
    JSON,
    NAME,
    SERVER,
    app,
    moment,
    params,
    patient,
)
from penstock.terminal import say


@app.command()
def start(
    name: str = NAME,
    param: list[str] = typer.Option(
        [], ("--param"), "-p", help="KEY=VALUE, a parameter of the experiment; repeatable."
    ),
    tag: list[str] = typer.Option([], "--tag", "-t", help="Tag of the experiment; repeatable."),
    shared: bool = typer.Option(False, "--shared", help="Allow other users to read it."),
    timeout: float = typer.Option(None, help="End the experiment after this many seconds."),
    sample: bool = typer.Option(
        None,
        "--sample/--no-sample",
        help="Sample this host until `stop` (default: yes, but not with --server or --at).",
    ),
    interval: float = typer.Option(
        1.0, "--interval", "-i", help="Seconds between samples, from 0.01."
    ),
    at: str = AT,
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """Start an experiment, or its next repeat, and sample this host until `stop`.

    If the requested server is down, stderr reports it and the status is 0, so that a script continues.
    """
    if sample is None:
        sample = at is None and not (server or os.environ.get("PENSTOCK_SERVER"))
    options = {
        "params": params(param),
        "tags": tag,
        "shared": shared,
        "timeout_s": timeout,
        "at_ns": moment(at),
    }
    store = patient(server)
    sampling = _sampling(server, interval) if sample else None
    try:
        begun = store.start(name, **options)
        if sampling is not None and not store.down:
            sampling.begin(begun, timeout)
            sampling = None
    finally:
        if sampling is not None:
            sampling.stop()
    if as_json:
        print(json.dumps({"experiment": begun}))
    else:
        say(f"{begun} begun")


def _sampling(server: str | None, interval_s: float) -> Any:
    """A process that is ready to sample this host; None, and the reason on stderr, where it cannot be."""
    from penstock.parts.monitoring.sampling import Sampling

    try:
        return Sampling.opened(server, interval_s)
    except BadInput:
        raise
    except PenstockError as error:
        say(f"this host is not sampled: {error}")
        return None


@app.command()
def mark(
    name: str = NAME,
    begin: str = typer.Option(None, help="Start a phase, inside the current one if there is one."),
    end: str = typer.Option(None, help="End a phase and the phases inside it."),
    note: str = typer.Option(None, help="Text of a note."),
    at: str = AT,
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """Start or end a phase, or add a note."""
    marks = [(k, w) for k, w in (("begin", begin), ("end", end), ("note", note)) if w is not None]
    if len(marks) != 1:
        raise BadInput(f"found {len(marks)} marks; expected one of --begin, --end, --note")
    kind, text = marks[0]
    patient(server).mark(name, kind, text, moment(at) or _called_ns(server))
    if as_json:
        print(json.dumps({"experiment": name, "kind": kind, "name": text}))


def _called_ns(server: str | None) -> int | None:
    """Start time of this command, for a store of this host; None for one with another clock."""
    from penstock.host.processes.processes import called_ns
    from penstock.host.processes.servers import server_at

    url = server or os.environ.get("PENSTOCK_SERVER")
    return called_ns() if url is None or server_at(url) is not None else None


@app.command()
def stop(
    name: str = NAME,
    exit_status: int = typer.Option(None, "--exit", help="Exit status of the measured program."),
    aborted: bool = typer.Option(False, "--aborted", help="Mark the experiment as aborted."),
    at: str = AT,
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """End an experiment and store its bundle in the archive."""
    from penstock.parts.monitoring.sampling import finish

    at_ns, finished = moment(at), finish(server, name)
    for line in finished.messages:
        say(line)
    ended = patient(server).stop(
        name, at_ns=at_ns, exit_status=exit_status, aborted=aborted, receipts=finished.receipts
    )
    if as_json:
        print(json.dumps({"experiment": ended, "aborted": aborted}))
    else:
        say(f"{ended} ended")


@app.command("list")
def listed(
    user: str = typer.Option(None, help="Only experiments of this user."),
    name: str = typer.Option(None, help="Only experiments with this name."),
    tag: str = typer.Option(None, help="Only experiments with this tag."),
    state: str = typer.Option(
        None, help="Only experiments in this state: running, ended, aborted, closed-by-timeout, …"
    ),
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """List experiments, including runs of studies."""
    from penstock.parts.monitoring.experiments.timestamps import iso_text
    from penstock.parts.monitoring.outbox.client import opened
    from penstock.text import duration

    experiments = opened(server).listed(user=user, name=name, tag=tag, state=state)
    if as_json:
        print(json.dumps({"experiments": experiments}))
        return
    if experiments:
        print(
            f"{'experiment':<36} {'state':<10} {'begun':<21} {'lasted':>12} {'user':<10} tags, parameters"
        )
    for one in experiments:
        lasted = "-" if one["end_ns"] is None else duration(one["end_ns"] - one["start_ns"])
        who = f"{one['name']}#{one['repeat']}"
        begun = iso_text(one["start_ns"] // 10**9 * 10**9)
        about = [*one.get("tags", ()), *(f"{k}={v}" for k, v in one.get("params", {}).items())]
        line = f"{who:<36} {one['state']:<10} {begun:<21} {lasted:>12} {one['user']:<10} "
        print((line + " ".join(about)).rstrip())


@app.command()
def rm(name: str = NAME, as_json: bool = JSON, server: str = SERVER) -> None:
    """Move an experiment to the trash for seven days."""
    from penstock.parts.monitoring.outbox.client import opened
    from penstock.parts.monitoring.sampling import finish

    finish(server, name)
    opened(server).remove(name)
    if as_json:
        print(json.dumps({"removed": name}))


@app.command()
def token(
    user: str = typer.Argument(None, help="User of the token."),
    role: Literal["owner", "reader"] = typer.Option("owner", help="Permissions of the token."),
    revoke: str = typer.Option(None, help="Revoke the token with this id."),
    as_json: bool = JSON,
) -> None:
    """Create a token for a user of the server, which is shown only once; without a user, list tokens."""
    from penstock.archive.catalogue import open_index

    with open_index() as index:
        if revoke is not None:
            if not index.revoke(revoke):
                raise BadInput(
                    f"found no token {revoke}; expected an id of `penstock monitor token`"
                )
            return
        if user is not None:
            created = index.add_token(user, role)
            print(
                json.dumps({"user": user, "role": role, "token": created}) if as_json else created
            )
            return
        rows = [vars(t) for t in index.tokens()]
    if as_json:
        print(json.dumps({"tokens": rows}))
    for row in [] if as_json else rows:
        print(f"{row['token_id']}  {row['role']:<8}{row['owner']}")
