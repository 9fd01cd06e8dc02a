"""penstock disk: emulated disks without a study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from penstock.cli.shared.options import JSON, parsed
from penstock.errors import BadInput
from penstock.terminal import mib, plain_table, say, show
from penstock.text import counted

app = typer.Typer(help="An emulated disk without a study.", no_args_is_help=True)

_SCALE = typer.Option(1.0, "--time-scale", min=0.001, help="Slow the device down by this factor.")


@app.command()
def up(
    profile: str = typer.Argument(help="A ready profile's name, a profile file, or none."),
    backing: Path = typer.Option(..., "--backing", help="Directory of the files."),
    mount: Path = typer.Option(..., "--mount", help="Empty directory where the disk appears."),
    time_scale: float = _SCALE,
    durable: bool = typer.Option(False, "--durable", help="fsync also syncs the host's files."),
    assignments: list[str] = typer.Option(
        [], "--set", help="key=value as in `disk set`; repeatable."
    ),
    size: str | None = typer.Option(None, "--size", help="Size of the disk, such as 10GiB."),
    owner: str | None = typer.Option(
        None,
        "--owner",
        help="UID:GID that owns the files of the backing directory's owner.",
    ),
    shared: bool = typer.Option(
        False, "--shared", help="Propagate the mount to namespaces that share the mount point."
    ),
    volatile: bool = typer.Option(
        False,
        "--volatile",
        help="Store unflushed data separately, so that `disk cut` can discard them.",
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the service times."),
    transport: str | None = typer.Option(
        None,
        "--transport",
        help="device or io_uring; by default the faster one, as doctor measured.",
    ),
    slow_by: float = typer.Option(0.0, "--plant-slow-by", hidden=True),
    as_json: bool = JSON,
) -> None:
    """Serve a directory at the speed of a profile until `disk down`."""
    from penstock.emulate.disks import persistent
    from penstock.platform.disk_keys import patch_of
    from penstock.spec.quantities import parse_owner
    from penstock.spec.units import parse_size

    disk = persistent.up(
        profile,
        backing,
        mount,
        time_scale=time_scale,
        durable=durable,
        plant={"slow_by": slow_by},
        patch=patch_of(assignments) or None,
        size_bytes=None if size is None else parsed("--size", size, parse_size),
        owner=None if owner is None else parsed("--owner", owner, parse_owner),
        shared=shared,
        volatile=volatile,
        seed=seed,
        transport=transport,
    )
    for warning in disk["warnings"]:
        say(f"warning: {warning}")
    if as_json:
        print(json.dumps(disk))
    else:
        print(f"{disk['mount']}: {disk['profile']}, files in {disk['backing']}")


@app.command("set")
def set_(
    mount: Path = typer.Argument(help="Mount point of the disk."),
    settings: list[str] = typer.Argument(help="key=value…, or a new profile, or both."),
    time_scale: float = _SCALE,
    as_json: bool = JSON,
) -> None:
    """Change a mounted disk; `max` restores the original value.

    Keys: limits.{read,write,read_iops,write_iops}, slow.{factor,ramp,stall.period,stall.length,
    random.probability,random.factor}, servers, readahead, cache, read_only, full, fail_stop,
    bad_space.{share,mode,seed,op}, faults, credits, volatile, profile.
    Example: set /mnt/d limits.read=10MiB/s limits.write=max slow.factor=10
    """
    from penstock.emulate.disks import persistent
    from penstock.platform.disk_keys import patch_of

    profile_settings = [
        setting
        for setting in settings
        if "=" not in setting or (setting.startswith("profile=") and setting != "profile=max")
    ]
    profiles = [setting.removeprefix("profile=") for setting in profile_settings]
    if len(profiles) > 1:
        raise BadInput(f"found two profiles, {' and '.join(profiles)}; expected one")
    patch = patch_of([setting for setting in settings if setting not in profile_settings])
    applied = persistent.change(
        mount, patch, profiles[0] if profiles else None, time_scale=time_scale
    )
    if as_json:
        print(json.dumps(applied))
    else:
        late_ms = (applied["applied_ns"] - applied["planned_ns"]) / 1e6
        print(f"{mount}: {', '.join(settings)} (after {late_ms:.1f} ms)")


@app.command()
def schedule(
    mount: Path = typer.Argument(help="Mount point of the disk."),
    file: Path = typer.Argument(help="A schedule (YAML or JSON) or a trace of values (CSV)."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the changes without making them."),
    svg: Path | None = typer.Option(None, "--svg", help="With --dry-run: a plot in this file."),
    replace: bool = typer.Option(False, "--replace", help="Replace earlier planned changes."),
    as_json: bool = JSON,
) -> None:
    """Schedule changes of a disk; its server applies them."""
    from penstock.emulate.disks import persistent
    from penstock.emulate.schedule import show
    from penstock.platform.schedule import read_schedule
    from penstock.profile.load import load_profile

    events = read_schedule(file, lambda name: json.loads(load_profile(name).json))
    if dry_run:
        if svg is not None:
            svg.write_text(show.svg(events))
        rows = show.rows(events)
        print(
            json.dumps({"events": rows}) if as_json else show.text(events),
            end="\n" * as_json,
        )
        return
    planned = persistent.schedule(mount, events, replace=replace)
    print(
        json.dumps({"planned": planned})
        if as_json
        else f"{mount}: {counted(planned, 'change')} planned"
    )


@app.command()
def mark(
    mount: Path = typer.Argument(help="Mount point of the disk."),
    phase: str = typer.Argument(help="Name of the phase that begins."),
    as_json: bool = JSON,
) -> None:
    """Mark the start of a phase, to which scheduled changes of the disk may refer."""
    from penstock.emulate.disks import persistent

    changes = persistent.mark(mount, phase)
    if as_json:
        print(json.dumps({"mount": str(mount), "phase": phase, "changes": changes}))
    else:
        print(f"{mount}: {counted(changes, 'change')} waited for {phase}")


@app.command()
def events(
    mount: Path = typer.Argument(help="Mount point of the disk."),
    as_json: bool = JSON,
) -> None:
    """List applied changes of a disk, their delay, and planned changes."""
    from penstock.emulate.disks import persistent

    schedule = persistent.events(mount)
    if as_json:
        print(json.dumps(schedule))
    else:
        _show_events(schedule)


@app.command()
def cut(
    mount: Path = typer.Argument(help="Mount point of the disk."),
    torn: bool = typer.Option(
        False, "--torn", help="Keep parts of the unflushed data (torn writes)."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed for the parts that remain."),
    as_json: bool = JSON,
) -> None:
    """Simulate a power failure: unflushed data are lost, open files fail, the disk returns."""
    from penstock.emulate.disks import persistent

    result = persistent.power_cut(mount, mode="torn" if torn else "lost", seed=seed)
    if as_json:
        print(json.dumps(result))
        return
    lost = result["lost"]
    print(
        f"{mount}: {lost['files']} files reverted ({lost['restored_bytes']} B restored, "
        f"{lost['shortened_bytes']} B cut off), {lost['names']} names"
    )
    for reason in lost["failed"]:
        print(f"not reverted: {reason}")


@app.command()
def status(
    mount: Path | None = typer.Argument(None, help="Only this disk."),
    as_json: bool = JSON,
) -> None:
    """List disks with their counters, and remains of disks whose server has died.

    Exits with status 1 if the server of a disk has died or does not respond, or a disk is not mounted.
    """
    from penstock.emulate.disks import persistent

    persistent.check_server()
    disks = persistent.status(mount)
    dead = persistent.dead() if mount is None else []
    if as_json:
        print(json.dumps({"disks": disks, "dead": dead}))
    else:
        _show_status(disks, dead)
    if dead or not all(disk["mounted"] for disk in disks):
        raise typer.Exit(1)


def _show_status(disks: list[dict[str, Any]], dead: Sequence[Mapping[str, Any]]) -> None:
    if disks:
        _show(disks)
    elif not dead:
        print("No disk is up.")
    for mount in [disk["mount"] for disk in disks if not disk["mounted"]]:
        print(f"{mount}: another program has unmounted it; `penstock disk down {mount}` stops it")
    for disk in dead:
        print(
            f"{disk['mount']}: its server is gone (process {disk['pid']} has died); "
            "`penstock undo` removes the mount"
        )


@app.command()
def down(
    mount: Path = typer.Argument(help="Mount point of the disk."),
    force: bool = typer.Option(False, "--force", help="Unmount it even if programs use it."),
    as_json: bool = JSON,
) -> None:
    """Unmount a disk; its files stay in the backing directory."""
    from penstock.emulate.disks import persistent

    last = persistent.down(mount, force=force)
    if as_json:
        print(json.dumps(last))
    else:
        print(f"{mount}: down")


def _show(disks: list[dict[str, Any]]) -> None:
    from penstock.emulate.schedule.show import changed_texts
    from penstock.text import at_speed

    numbers = ("reads", "writes", "read MiB", "written MiB", "busy %", "late %")
    table = plain_table(("mount", "profile"), numbers)
    table.columns[1].no_wrap = True  # long paths are folded instead
    for disk in disks:
        s = disk["stats"]
        up_ns = max(1, s["t_ns"] - s["since_ns"])
        requests = max(1, s["reads"] + s["writes"] + s["flushes"])
        table.add_row(
            disk["mount"],
            at_speed(disk["profile"], disk["time_scale"]),
            str(s["reads"]),
            str(s["writes"]),
            mib(s["read_bytes"]),
            mib(s["written_bytes"]),
            f"{100 * s['busy_ns'] / up_ns:.1f}",
            f"{100 * s['late_count'] / requests:.1f}",
        )
    show(table)
    for disk in disks:
        changed = changed_texts(disk["settings"], disk["stats"])
        if changed:
            print(f"{disk['mount']}: {', '.join(changed)}")


def _show_events(schedule: Mapping[str, Any]) -> None:
    from penstock.emulate.schedule.show import patch_texts

    now_ns = schedule["t_ns"]
    table = plain_table((), ("when [s]", "late [ms]"))
    table.add_column("change")
    table.add_column("error")
    for event in schedule["events"]:
        late_ms = (event["applied_ns"] - event["planned_ns"]) / 1e6
        when_s = (event["applied_ns"] - now_ns) / 1e9
        table.add_row(
            f"{when_s:.3f}",
            f"{late_ms:.1f}",
            ", ".join(patch_texts(event["asked"])),
            event["error"] or "",
        )
    for event in schedule["pending"]:
        trigger = event.get("phase") or event.get("metric")
        when = trigger or f"+{(event['at_ns'] - now_ns) / 1e9:.3f}"
        table.add_row(when, "", ", ".join(patch_texts(event["patch"])), "planned")
    show(table)
    print(f"in force: {', '.join(schedule['active']) or 'nothing with a profile'}")
