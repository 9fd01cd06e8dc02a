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
#: as of timeout(1), which ends a command, too
_ABORTED = 124

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
    partial: bool = typer.Option(
        False, "--partial", help="Say nothing of series that are not complete."
    ),
    server: str = _SERVER,
) -> None:
    """Write the data of an experiment: rows by time, an empty cell where there is no value.

    stderr names the series that are not complete and what they lack; penstock plot and compare refuse them.
    """
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
    found = opened(server).get(name, {k: v for k, v in said.items() if v is not None})
    parts = found.parts
    for line in [] if partial else found.verdict.lines:
        _say(line)
    if output is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    with whole_file(output) as draft, draft.open("wb") as file:
        file.writelines(parts)


@app.command()
def derive(
    name: str = typer.Argument(
        ...,
        metavar="X",
        help="Experiments or runs that have ended: NAME, NAME#1..5, OUT:r001, a bundle.",
    ),
    said: str = typer.Argument(
        ...,
        metavar="NAME=EXPR",
        help="For example total='sum(disk_read)', smooth='moving_mean(m, 10)'.",
    ),
    unit: str = typer.Option(None, "--unit", help="Of the values, where it is not what follows."),
    table: str = typer.Option(None, "--table", help="Of a run: utilisation (default) or samples."),
    as_json: bool = _JSON,
) -> None:
    """Compute a series from others, and keep it with its expression beside them.

    EXPR has + - * / ( ), names of series ("with * and ?"), {NODE}, and sum, mean, min, max, rate, delta,
    ratio, join, moving_mean, abs, quantile.
    """
    from penstock.archive.expression import split
    from penstock.observe.monitor.derived import derive as kept
    from penstock.observe.monitor.named import selected

    word, expression = split(said)
    made = kept(selected(name).runs, word, expression, unit, table)
    if as_json:
        print(json.dumps({"name": word, "expression": expression, "points": made}))
        return
    _say(f"{word}: {sum(made.values()):,} points in {len(made)} run{'' if len(made) == 1 else 's'}")


@app.command()
def push(
    name: str = _NAME,
    table_file: Path = typer.Argument(
        ...,
        metavar="INPUT",
        help="CSV, JSON Lines, Parquet, or a bundle (as of penstock trace -o).",
    ),
    column: str = typer.Option(..., "--column", "-c", help="Which column has the values."),
    metric: str = typer.Option(None, "--metric", "-m", help="Its name (default: the column's)."),
    time_column: str = typer.Option(
        None, "--time", help="Column of times, ns since 1970; without it a sequence 0, 1, 2, …"
    ),
    unit: str = typer.Option("", "--unit", help="Of the values, as B or s."),
    label: list[str] = typer.Option([], "--label", help="KEY=VALUE of the series."),
    where: list[str] = typer.Option([], "--where", help="COLUMN=TEXT: only rows that are so."),
    file: str = typer.Option(
        None, "--file", help="Of a bundle: only this file, by its path's end."
    ),
    order: str = typer.Option(None, "--order", help="Column that the rows are put in order of."),
    table: str = typer.Option(None, "--table", help="Of a bundle (default: io_events)."),
    source: str = typer.Option(None, "--source", help="Of the points (default: by their content)."),
    batch: int = typer.Option(100_000, "--batch", help="Points that are sent at once."),
    patience: float = typer.Option(60.0, "--patience", help="Seconds to wait for a server."),
    as_json: bool = _JSON,
    server: str = _SERVER,
) -> None:
    """Push what a file holds, all at once, in order: values by number, or by time.

    What was acknowledged is kept. The same file pushed again doubles nothing.
    """
    from penstock.observe.monitor.door import opened
    from penstock.observe.monitor.pushing import (
        batches_of,
        column_of,
        file_id_of,
        read_table,
        rows_where,
    )
    from penstock.observe.monitor.pushing import push as pushed

    wanted = _params(where, "--where")
    if file is not None:
        wanted["file_id"] = str(file_id_of(table_file, file))
    found = rows_where(read_table(table_file, table), wanted)
    if order is not None:
        column_of(found, order)
        found = found.sort_by(order)
    batches = batches_of(
        column_of(found, column),
        metric=metric or column,
        labels=_params(label, "--label"),
        unit=unit,
        utc_ns=None if time_column is None else column_of(found, time_column),
        source=source,
        each=batch,
    )
    done = pushed(opened(server), name, batches, patience_s=patience, tell=_say)
    if as_json:
        print(json.dumps({"points": done.points, "batches": done.batches, "source": done.source}))
    else:
        _say(f"{done.points} points in {done.batches} batches from {done.source}")


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


@app.command()
def bandwidth(
    what: str = typer.Argument(
        None,
        help="A bundle, OUT:r001, or an experiment's name; without it the disks of this host, now.",
    ),
    device: list[str] = typer.Option([], "--device", "-d", help="Only these disks (*, ?)."),
    series: list[str] = typer.Option(
        [], "--series", "-s", help="Not disks, but series of a bundle whose name fits (*, ?)."
    ),
    window: list[int] = typer.Option([], "--window", "-w", help="Minutes (default: 1, 2, 3, 5)."),
    watch: float = typer.Option(5.0, "--for", help="Seconds to watch the disks of this host."),
    as_json: bool = _JSON,
) -> None:
    """Bandwidth of disks now and over the last minutes: mean, least and most of each window.

    Read and written bytes together, in MB/s. `coverage` is the share of a window for which there are samples.
    """
    from penstock.observe.monitor.bandwidth import as_json as shown
    from penstock.observe.monitor.bandwidth import bandwidths
    from penstock.observe.monitor.swift_bandwidth import WINDOWS

    if what is None and series:
        raise BadInput("found --series without a bundle; expected one")
    if not 0.2 <= watch <= 86_400:
        raise BadInput(f"found --for {watch:g}; expected 0.2 to 86400 seconds")
    windows = sorted(set(window)) or list(WINDOWS)
    found = bandwidths(what, device, series, windows, watch)
    if as_json:
        print(shown(found))
        return
    for name, said in found.items():
        unit = said["unit"]
        insta = said["insta"]
        print(f"{name}: " + ("no sample" if insta is None else f"{insta:.6g} {unit}"))
        for k in windows:
            if said[f"mean{k}min"] is not None:
                mean, least, most = (said[f"{w}{k}min"] for w in ("mean", "min", "max"))
                cover = f"coverage {said[f'cov{k}min']:.0%}"
                print(f"  {k:>3} min: mean {mean:.6g}, {least:.6g} to {most:.6g} {unit}, {cover}")


@app.command()
def grafana(
    directory: Path = typer.Argument(..., help="Where to; made where it is not there."),
    server: str = typer.Option(
        "http://127.0.0.1:5000", "--server", help="Where Grafana finds `penstock serve`."
    ),
) -> None:
    """Write dashboards and provisioning for Grafana: compute, object storage, volumes, tenants, run.

    Its data source is the plugin simpod-json-datasource; its token, $PENSTOCK_TOKEN in Grafana's environment.
    """
    from penstock.observe.monitor.grafana import write

    for path in write(directory, server):
        print(path)


@app.command()
def middleware(
    output: Path = typer.Option(None, "-o", "--output", help="Write the file into this directory."),
    server: str = typer.Option(
        "object-server", "--pipeline", help="Name of the application in the pipeline."
    ),
) -> None:
    """The filter for Swift's object servers that answers GET /bwinfo and GET /osinfo.

    Without -o it is printed. With -o it is written, and what object-server.conf needs is printed.
    """
    from importlib import resources

    from penstock.writing import whole_file

    name = "swift_bandwidth.py"
    text = (resources.files("penstock.observe.monitor") / name).read_text(encoding="utf-8")
    if output is None:
        sys.stdout.write(text)
        return
    if not output.is_dir():
        raise BadInput(
            f"-o: found no directory {output}; expected one that Swift's Python may read"
        )
    with whole_file(output / name) as draft:
        draft.write_text(text, encoding="utf-8")
    _say(f"{output / name} written; start the object servers with PYTHONPATH={output.resolve()}")
    print(
        f"[pipeline:main]\npipeline = bandwidth {server}\n\n[filter:bandwidth]\n"
        "paste.filter_factory = swift_bandwidth:filter_factory"
    )


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
    block_latency: bool = typer.Option(
        False,
        "--block-latency",
        help="How long requests to block devices take, too: histograms by BPF (needs what tracing needs).",
    ),
    output: Path = typer.Option(None, "-o", "--output", help="Leave a one-run bundle there, too."),
    alert: list[str] = typer.Option(
        [],
        "--alert",
        metavar="RULE",
        help="`disk_busy > 90% for 5s then abort`: told when it fires, and ends the command (`then note`: "
        "only told).",
    ),
    calibrate: int = typer.Option(
        None,
        "--calibrate",
        min=6,
        help="Run it so many times with and without sampling instead, in turns, its output thrown away: what "
        "sampling adds, with its 95 % interval.",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object on stdout; the command's stdout goes to stderr."
    ),
    server: str = _SERVER,
) -> None:
    """Run a command as an experiment: sample processors, memory, disks, network, pressure and its group.

    Returns the command's own status, 124 where an alert ended it, 125 when penstock itself failed. Ctrl-C,
    SIGTERM and SIGHUP are passed on to the command, and the experiment is ended as aborted.
    """
    rules = _rules(alert)
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    if calibrate is not None:
        _calibrated(words, interval, calibrate, as_json, block_latency)
        return
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
                done = monitor_command(
                    words,
                    every_ns,
                    output,
                    quiet=as_json,
                    rules=rules,
                    name=experiment or "",
                    told=lambda stretch: _say(f"alert: {stretch.words}"),
                    signals=signals,
                    block_latency=block_latency,
                )
                status = done.finished.exit_status
                cut_short = done.aborted or done.interrupted is not None
                for stretch in done.alerts:
                    door.mark(experiment, "note", f"alert: {stretch.words}")
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
        ended: dict[str, Any] = {
            "exit_status": done.finished.exit_status,
            "wall_s": done.finished.wall_s,
        }
        ended |= {"aborted": done.aborted, "alerts": [s.row() for s in done.alerts]}
        place = {"experiment": experiment, "bundle": str(done.bundle) if done.bundle else None}
        print(json.dumps({**ended, **place, "receipt": done.result.receipt, "utilisation": means}))
    else:
        _show(done.finished.wall_s, done.result.receipt, means)
    raise typer.Exit(_ABORTED if done.aborted else done.finished.exit_status)


@app.command()
def alerts(
    runs: list[str] = typer.Argument(
        ..., metavar="RUN...", help="OUT, OUT:t01, OUT:r001, bundles."
    ),
    alert: list[str] = typer.Option(
        ..., "--alert", metavar="RULE", help="A rule, as `monitor run` and studies have them."
    ),
    as_json: bool = _JSON,
) -> None:
    """Hold alert rules against what runs recorded, as while they went on; status 3 where one fires."""
    from penstock.archive.selection import select
    from penstock.observe.monitor.alerts import of_bundle

    rules = _rules(alert)
    found = []
    for named in runs:
        for path in select(named).runs:
            stretches = sorted(of_bundle(rules, path).stretches, key=lambda s: s.fired_ns)
            found += [(str(path), stretch) for stretch in stretches]
    if as_json:
        print(json.dumps({"alerts": [{"run": path, **s.row()} for path, s in found]}))
    for named, stretch in [] if as_json else found:
        print(f"{named}: {stretch.words}")
    if found:
        raise typer.Exit(3)


def _rules(texts: list[str]) -> list[Any]:
    from penstock.spec.alert import MOST_RULES, parse_rule

    if len(texts) > MOST_RULES:
        raise BadInput(f"found {len(texts)} times --alert; expected {MOST_RULES} at most")
    rules = []
    for text in texts:
        try:
            rules.append(parse_rule(text))
        except ValueError as error:
            raise BadInput(f"--alert: found {text!r}; expected {error}") from None
    return rules


def _calibrated(
    words: list[str], interval: float, pairs: int, as_json: bool, block_latency: bool
) -> None:
    from penstock.observe.monitor.session import impact_of

    def told(done: int, whole: int) -> None:
        print(f"penstock: calibrating, run {done} of {whole}", file=sys.stderr)

    every_ns = round(interval * 1e9)
    found = impact_of(words, every_ns, pairs, told, block_latency=block_latency)
    if as_json:
        print(json.dumps(found.as_document()))
        return
    print(
        f"sampling every {interval:g} s lengthens it by {found.share:+.2%}, {found.high:+.2%} at most (95 %, "
        f"{pairs} pairs): {found.verdict} {found.limit:.0%}"
    )


def _patient(server: str | None) -> Any:
    from penstock.observe.monitor.door import Patient, opened

    return Patient(opened(server))


def _params(said: list[str], option: str = "--param") -> dict[str, str]:
    found = {}
    for text in said:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"found {option} {text!r}; expected KEY=VALUE")
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
