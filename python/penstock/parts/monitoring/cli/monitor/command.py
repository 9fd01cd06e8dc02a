"""penstock monitor run, alerts: a command that is sampled while it runs, and its alerts."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.shared import failure
from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.cli.monitor.application import application, lacking
from penstock.parts.monitoring.cli.monitor.options import JSON, SERVER, app, params
from penstock.terminal import say
from penstock.text import percentage, signed_percent

if TYPE_CHECKING:
    from penstock.parts.monitoring.outbox.delivery import Delivery
    from penstock.parts.monitoring.outbox.sending import Sending
    from penstock.parts.monitoring.session import Monitored

#: as of timeout(1), which ends a command, too
_ABORTED = 124


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    argv: list[str] = typer.Argument(..., metavar="-- COMMAND", help="Command to run."),
    name: str = typer.Option(
        None, "--name", "-n", help="Name of the experiment (default: the command's name)."
    ),
    tag: list[str] = typer.Option([], "--tag", "-t", help="Tag of the experiment; repeatable."),
    param: list[str] = typer.Option(
        [], ("--param"), "-p", help="KEY=VALUE, a parameter of the experiment; repeatable."
    ),
    interval: float = typer.Option(
        1.0, "--interval", "-i", help="Seconds between samples, from 0.01."
    ),
    block_latency: bool = typer.Option(
        False,
        "--block-latency",
        help="Also record latency histograms of block devices, by BPF (same requirements as `trace`).",
    ),
    config: Path = typer.Option(
        None,
        "--config",
        metavar="FILE",
        help="Run the `collectors` of this file during the command, like `penstock serve --config FILE`. The "
        "command finds addresses for pushes in $PENSTOCK_COLLECT_NAME.",
    ),
    processes: bool = typer.Option(
        False,
        "--processes",
        help="Also sample each process of the command (at most 512): processor time, memory, threads, bytes.",
    ),
    processes_named: list[str] = typer.Option(
        [],
        "--processes-named",
        metavar="PATTERN",
        help="Also sample processes of the host with these names (* and ?).",
    ),
    file: list[str] = typer.Option(
        [],
        "--file",
        metavar="NAME=PATH",
        help="A file that begins with a number, read at each sample.",
    ),
    metric: list[str] = typer.Option(
        [],
        "--metric",
        metavar="NAME=COMMAND",
        help="A command for /bin/sh that prints a number; killed if it is late.",
    ),
    metric_interval: float = typer.Option(
        1.0, "--metric-interval", help="Seconds between runs of the --metric commands, from 1."
    ),
    batch_every: float = typer.Option(
        None,
        "--batch-every",
        metavar="SECONDS",
        min=0,
        help="Interval at which samples are written to the experiment; 0: all at the end. Default: "
        "1; 0 if samples are less than 0.1 s apart.",
    ),
    output: Path = typer.Option(
        None, ("-o"), "--output", help="Also write a bundle of one run to this directory."
    ),
    alert: list[str] = typer.Option(
        [],
        "--alert",
        metavar="RULE",
        help="Alert rule, such as `disk_busy > 90% for 5s then abort`: reports and ends the command "
        "(`then note`: only reports).",
    ),
    calibrate: int = typer.Option(
        None,
        "--calibrate",
        min=6,
        help="Run the command N times with and without sampling in turns, discard its output, and print the "
        "cost of sampling with its 95 % interval.",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object on stdout; the command's stdout goes to stderr."
    ),
    server: str = SERVER,
) -> None:
    """Run a command as an experiment: sample processors, memory, disks, network, pressure and its group.

    The command runs even if the catalogue is unusable; stderr then has the reason why nothing is recorded.
    Returns the command's own status, 124 if an alert ended it, 125 if penstock itself failed. Ctrl-C,
    SIGTERM and SIGHUP are passed on to the command, and the experiment is stopped as aborted.
    """
    rules = _rules(alert)
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    if config is not None and calibrate is not None:
        raise BadInput("found --config with --calibrate; expected one: it measures sampling only")
    collectors = _collectors(config, name or Path(argv[0]).name)
    besides = application(processes, processes_named, file, metric, metric_interval)
    from penstock.observe.sampler.monitor import CLOSE_NS, interval_ns_of

    every_ns = interval_ns_of(interval)
    if calibrate is not None:
        _calibrated(argv, every_ns, calibrate, as_json, block_latency, besides)
        return
    import time

    from penstock.host.processes.interrupts import Interrupts
    from penstock.parts.monitoring.collect import CollectObserver
    from penstock.parts.monitoring.experiments.provenance import facts_of_command
    from penstock.parts.monitoring.outbox.client import Patient, clocks
    from penstock.parts.monitoring.outbox.delivery import Delivery
    from penstock.parts.monitoring.outbox.sampled import SOURCES
    from penstock.parts.monitoring.outbox.sending import EVERY_S, Sending
    from penstock.parts.monitoring.session import monitor_command
    from penstock.parts.monitoring.unobserved import run_unobserved, state_error

    options: dict[str, Any] = {"tags": tag, "params": params(param)}
    status: int | None = None
    cut_short = True
    receipts: dict[str, Any] = {}
    with failure.wrapper_status(as_json), Interrupts() as signals:
        first = Patient.leniently(server)
        facts = facts_of_command(argv, config)
        experiment = first.start(name or Path(argv[0]).name, facts=facts, **options)
        delivery = Delivery(first.client, experiment, say, lambda: signals.name is not None)
        try:
            spool = delivery.spool() if collectors else None
            # points that cannot be stored now are sent at the end
            forward = None if spool else delivery.write
            collect = functools.partial(
                CollectObserver, home=None, settings=collectors, into=spool, forward=forward
            )
            measured = [(time.time_ns(), delivery.clock())]
            shift_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            usual_s = EVERY_S if every_ns >= CLOSE_NS else 0.0
            often_s = 0.0 if first.down else usual_s if batch_every is None else batch_every
            sending = Sending(delivery.write_now, every_ns, shift_ns, often_s, say)
            done = monitor_command(
                argv,
                every_ns,
                output,
                quiet=as_json,
                rules=rules,
                name=experiment or "",
                on_alert=lambda stretch: say(f"alert: {stretch.summary}"),
                signals=signals,
                block_latency=block_latency,
                collect=collect if collectors else None,
                application=besides,
                sending=sending,
                about=facts,
            )
            status = done.finished.exit_status
            receipts["monitor"] = done.result.receipt
            cut_short = done.aborted or done.interrupted is not None
            _deliver_rest(done, delivery, sending)
            measured.append((time.time_ns(), delivery.clock()))
            offsets = [(at, offset) for at, offset in measured if offset is not None]
            if offsets:
                delivery.write(clocks(offsets, SOURCES))
            if any(offset.warns(every_ns) for _, offset in offsets):
                say(
                    "this host's clock is more than half an interval from the server's; "
                    "get --correct-clocks takes that out"
                )
        except BadInput:
            raise
        except (PenstockError, OSError) as error:
            trouble = "" if signals.command_began or signals.name else state_error()
            if not trouble:
                raise
            say(f"{trouble}; the command runs without being sampled")
            unobserved = run_unobserved(argv, signals, quiet=as_json)
            status, cut_short = unobserved.exit_status, signals.name is not None
            if as_json:
                print(
                    json.dumps({**vars(unobserved), "experiment": None, "unrecorded": str(error)})
                )
            raise typer.Exit(status) from None
        finally:
            delivery.stop(exit_status=status, aborted=cut_short, receipts=receipts)
    _print_recorded(done, delivery, None if first.down else experiment, as_json)
    raise typer.Exit(_ABORTED if done.aborted else done.finished.exit_status)


@app.command()
def alerts(
    runs: list[str] = typer.Argument(
        ..., metavar="RUN...", help="OUT, OUT:t01, OUT:r001, bundles."
    ),
    alert: list[str] = typer.Option(
        ..., "--alert", metavar="RULE", help="Alert rule, as for `monitor run` and in studies."
    ),
    as_json: bool = JSON,
) -> None:
    """Evaluate alert rules on recorded runs; exit with status 3 if one fires."""
    from penstock.archive.selection import select
    from penstock.observe.sampler.alerts import of_bundle

    rules = _rules(alert)
    fired = []
    for named in runs:
        for path in select(named).runs:
            stretches = sorted(of_bundle(rules, path).stretches, key=lambda s: s.fired_ns)
            fired += [(str(path), stretch) for stretch in stretches]
    if as_json:
        print(json.dumps({"alerts": [{"run": path, **s.row()} for path, s in fired]}))
    for named, stretch in [] if as_json else fired:
        print(f"{named}: {stretch.summary}")
    if fired:
        raise typer.Exit(3)


def _deliver_rest(done: Monitored, delivery: Delivery, sending: Sending) -> None:
    """Send the alerts of a command, and the samples that were not sent while it ran."""
    for stretch in done.alerts:
        delivery.note(f"alert: {stretch.summary}")
    stats = done.result.receipt
    due = (int(stats["end_ns"]) - int(stats["start_ns"])) // int(stats["used_ns"])
    for batch in sending.rest(done.result.tables, due):
        delivery.write(batch)


def _print_recorded(
    done: Monitored, delivery: Delivery, experiment: str | None, as_json: bool
) -> None:
    """Print the result of a command; `experiment`: name of its record, None without one."""
    means = _means(done.result.tables["utilisation"])
    if not as_json:
        _show(done.finished.wall_s, done.result.receipt, means)
        _show_collected(done.collected or {})
        return
    document: dict[str, Any] = {
        "exit_status": done.finished.exit_status,
        "wall_s": done.finished.wall_s,
        "aborted": done.aborted,
        "alerts": [s.row() for s in done.alerts],
        "experiment": experiment,
        "bundle": str(done.bundle) if done.bundle else None,
    }
    document |= {"unsent": str(delivery.unsent)} if delivery.unsent else {}
    document |= {"receipt": done.result.receipt}
    document |= {} if done.collected is None else {"collected": done.collected}
    print(json.dumps({**document, "utilisation": means}))


def _collectors(config: Path | None, name: str) -> dict[str, Any]:
    """Settings of a file's collectors for an experiment of this name."""
    if config is None:
        return {}
    import fnmatch

    from penstock.parts.monitoring.collectors.settings import mistakes, own_settings, placed
    from penstock.parts.monitoring.experiments.targets import read_targets

    chosen = {
        collector: own_settings(settings)
        for collector, settings in read_targets(config).collectors.items()
        if fnmatch.fnmatchcase(name.partition("#")[0], settings.get("experiments", "*"))
    }
    if not chosen:
        raise BadInput(f"--config: found no collector for {name} in {config}; expected one")
    if wrong := list(mistakes(chosen)):
        raise placed(config, wrong)
    return chosen


def _show_collected(receipt: Mapping[str, Any]) -> None:
    from penstock.text import outside_text

    for name, one in receipt.get("collectors", {}).items():
        reported = one.get("told") or []
        why = [one["trouble"]] if one.get("trouble") else []
        messages = one.get("refused_messages", {})
        why += [f"{n} messages refused: {reason}" for reason, n in messages.items()]
        why += [f"{n} points refused: {reason}" for reason, n in one.get("refused", {}).items()]
        if one.get("outside_by_ns"):
            why.append(outside_text(one["outside"], one["outside_by_ns"]))
        if reported and one["verdict"] != "complete":
            why.append(reported[0])
        line = f"{name}: {one['points']} points of {one['series']} series, {one['verdict']}"
        print(line + (f" ({'; '.join(why)})" if why else ""))


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
    argv: list[str],
    every_ns: int,
    pairs: int,
    as_json: bool,
    block_latency: bool,
    besides: Any,
) -> None:
    from penstock.parts.monitoring.session import impact_of

    def progress(done: int, total: int) -> None:
        say(f"calibrating, run {done} of {total}")

    impact = impact_of(
        argv, every_ns, pairs, progress, block_latency=block_latency, application=besides
    )
    if as_json:
        print(json.dumps(impact.as_document()))
        return
    share, high = (signed_percent(one, 2) for one in (impact.share, impact.high))
    print(
        f"sampling every {every_ns / 1e9:g} s lengthens it by {share}, {high} at most (95 %, {pairs} pairs): "
        f"{impact.verdict} {percentage(impact.limit)}"
    )


def _means(table: Any) -> list[dict[str, Any]]:
    """Mean and maximum of every utilisation over the run."""
    frame = table.to_pandas().dropna(subset=["value"])
    grouped = frame.groupby(["kind", "entity", "metric", "unit"])["value"].agg(["mean", "max"])
    rows: list[dict[str, Any]] = json.loads(grouped.reset_index().to_json(orient="records"))
    return rows


def _show(wall_s: float, receipt: dict[str, Any], means: list[dict[str, Any]]) -> None:
    from penstock.text import duration

    samples, late_ms = receipt["samples"], receipt["late_p99_ns"] / 1e6
    took = duration(wall_s * 1e9)
    print(f"{took}, {samples} of {receipt['expected']} samples, p99 {late_ms:.2f} ms late")
    if receipt.get("died"):
        say("the sampler was killed; what came after is missing")
    for line in lacking(receipt):
        say(line)
    if not means:
        print("Too short for a utilisation: ask for a shorter --interval.")
        return
    from penstock.text import listed, quantity

    used = [row for row in means if row["max"]]
    names = [f"{row['kind']}_{row['metric']} {row['entity']}" for row in used]
    width = max(map(len, [*names, ""]))
    if used:
        print(f"{'':<{width}}{'mean':>14}{'most':>14}")
    for name, row in zip(names, used, strict=True):
        mean, most = (quantity(row[k], row["unit"]) for k in ("mean", "max"))
        print(f"{name:<{width}}{mean:>14}{most:>14}")
    idle = dict.fromkeys(f"{row['kind']} {row['entity']}" for row in means if not row["max"])
    busy = {f"{row['kind']} {row['entity']}" for row in used}
    if quiet := [name for name in idle if name not in busy]:
        print(f"Idle: {listed(quiet)}")
