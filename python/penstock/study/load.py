"""From the file to a validated `Study`, or to all of its mistakes. The host is not modified."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.design.power import cautious_sigma
from penstock.design.purpose import chosen
from penstock.errors import BadInput
from penstock.platform.power import power_of
from penstock.spec.alert import parse_rule
from penstock.spec.guest import GuestDisk, GuestSpec
from penstock.spec.mistakes import in_order, validated
from penstock.spec.source import dump, read_input, read_source
from penstock.spec.study import (
    DesignSpec,
    Desire,
    Factor,
    Hosts,
    Level,
    Limits,
    MonitorSpec,
    Observers,
    Outliers,
    Ready,
    Response,
    ResponseSource,
    Retry,
    Sequential,
    Service,
    Settle,
    Study,
    TraceSpec,
    Worker,
    Workload,
    level_name,
)
from penstock.spec.template import doubled
from penstock.spec.units import parse_bandwidth, parse_duration, parse_share, parse_size
from penstock.study.check import check
from penstock.study.file import (
    DesignFile,
    EnergyFile,
    FactorFile,
    FractionFile,
    PilotFile,
    ResponseFile,
    SeriesFile,
    ServiceFile,
    StudyFile,
    TextFile,
    TracedFile,
    TraceFile,
)
from penstock.study.override import apply_override, apply_quick
from penstock.study.platform_file import include_platform
from penstock.study.references import level_names, level_values
from penstock.study.treatments_file import include_treatments
from penstock.text import tenths


def load_study(
    path: Path | str,
    overrides: Sequence[str] = (),
    quick: bool = False,
    base_dir: Path | None = None,
) -> Study:
    """The study in the file `path`, after `overrides` (`a.b=c`) and `quick`.

    Profiles and `{study_dir}` are relative to `base_dir`, by default the file's own directory. Raises
    BadInput with every mistake and its line and column.
    """
    path = Path(path)
    return read_study(read_input(path, "a study file"), path, overrides, quick, base_dir)


def read_study(
    raw: bytes,
    path: Path,
    overrides: Sequence[str] = (),
    quick: bool = False,
    base_dir: Path | None = None,
) -> Study:
    """Like `load_study`, of a text already read."""
    source = read_source(raw, str(path))
    if not isinstance(source.value, dict):
        source.mistake((), "no mapping", "a study: keys such as name, factors, design, workload")
        raise BadInput(mistakes=source.mistakes)
    from penstock.platform.schedule import expand_in

    base = (base_dir or path.parent).resolve()
    for text in overrides:
        apply_override(source, text)
    included = include_platform(source, base)
    included |= include_treatments(source, base)
    included |= expand_in(source, base, ("platform", "schedule"))
    if quick:
        apply_quick(source.value, source)
    file = validated(source, StudyFile, "docs/study-file.md")
    profiles = check(source, base)
    if source.mistakes or file is None:
        raise BadInput(mistakes=in_order(source.mistakes))
    changed = bool(overrides) or quick or included
    text = dump(source.value) if changed else raw.decode("utf-8-sig")
    return _study(file, source.value, profiles, path, base, text, quick)


def _study(
    file: StudyFile,
    document: dict[str, Any],
    profiles: dict[str, dict[str, Any]],
    path: Path,
    base_dir: Path,
    text: str,
    quick: bool,
) -> Study:
    work = file.workload
    study = Study(
        name=file.name,
        question=" ".join(file.question.split()),
        factors=tuple(_factor(name, body) for name, body in file.factors.items()),
        design=_design(file),
        platform=file.platform,
        workload=Workload(
            prepare=work.prepare,
            mutates=work.mutates,
            command=work.command,
            after=work.after,
            timeout_s=parse_duration(work.timeout),
            expected_s=parse_duration(work.expected) if work.expected else None,
            parser=work.parser,
            user=work.user,
            env=_passed(work.pass_env) | {k: str(v) for k, v in work.env.items()},
            directory=work.directory,
            on=tuple(work.on),
            services=tuple(_service(s) for s in work.services),
            hooks={k: v for k, v in work.hooks.model_dump().items() if v is not None},
        ),
        responses=tuple(_response(name, body) for name, body in file.responses.items()),
        observers=_observers(file, base_dir),
        settle=_settle(file, document),
        hosts=_hosts(file),
        guest=_guest(file, base_dir),
        limits=Limits(
            runs=file.limits.runs,
            time_s=parse_duration(file.limits.time) if file.limits.time else None,
            energy_j=file.limits.energy,
        ),
        alerts=tuple(parse_rule(text) for text in file.alerts),
        retry=Retry(**file.retry.model_dump()),
        outliers=Outliers(mads=float(file.outliers.mads), chance=parse_share(file.outliers.chance)),
        quick=quick,
        source_path=path,
        base_dir=base_dir,
        source_text=text,
        document=document,
        profiles=profiles,
    )
    design = file.design
    return chosen(study, kind=design.kind is not None, replicates=design.replicates)


def _passed(names: list[str]) -> dict[str, str]:
    """Variables set in the caller's environment, as templates."""
    return {name: doubled(os.environ[name]) for name in names if name in os.environ}


def _hosts(file: StudyFile) -> Hosts | None:
    if file.hosts is None:
        return None
    workers = tuple(
        Worker(**{**w.model_dump(), "ssh_options": tuple(w.ssh_options)})
        for w in file.hosts.workers
    )
    return Hosts(listen=file.hosts.listen, workers=workers)


def _guest(file: StudyFile, base_dir: Path) -> GuestSpec | None:
    guest = file.guest
    if guest is None:
        return None
    disks = tuple(
        GuestDisk(
            size_bytes=parse_size(d.size),
            rate_bps=round(parse_bandwidth(d.bandwidth)) if d.bandwidth is not None else None,
            iops=d.iops,
        )
        for d in guest.disks
    )
    return GuestSpec(
        suite=guest.kernel,
        modules=tuple(guest.modules),
        programs=tuple(guest.programs),
        memory_bytes=parse_size(guest.memory),
        cpus=guest.cpus,
        disks=disks,
        files=tuple((name, base_dir / name) for name in guest.files),
    )


def _service(body: ServiceFile) -> Service:
    ready = Ready(**body.ready.model_dump()) if body.ready is not None else None
    return Service(
        name=body.name,
        command=body.command,
        on=tuple(body.on),
        ready=ready,
        within_s=parse_duration(body.within),
        stop=body.stop,
        user=body.user,
    )


def _factor(name: str, body: FactorFile) -> Factor:
    levels = tuple(Level(name=n, value=v) for _, n, v in level_values(body.levels))
    cost = None if body.change_cost is None else parse_duration(body.change_cost)
    return Factor(name=name, levels=levels, unit=body.unit, change_cost_s=cost, change=body.change)


def _design(file: StudyFile) -> DesignSpec:
    design = file.design
    noise, noise_from = _noise(design)
    other = next(iter(design.kind.items())) if isinstance(design.kind, dict) else ("full", {})
    return DesignSpec(
        kind=other[0],
        options=other[1],
        fraction=design.kind.fraction if isinstance(design.kind, FractionFile) else 0,
        generators=tuple(design.generators),
        replicates=design.replicates or 2,
        seed=design.seed,
        order=design.order,
        block_size=design.block_size,
        noise=noise,
        noise_from=noise_from,
        forbidden=tuple(
            {name: level_names(levels) for name, levels in combination.items()}
            for combination in design.forbidden
        ),
        purpose=design.purpose,
        budget_runs=design.budget.runs if design.budget else None,
        budget_s=3600 * design.budget.hours if design.budget and design.budget.hours else None,
        detect=parse_share(design.detect) if design.detect else None,
        sequential=_sequential(file),
    )


def _noise(design: DesignFile) -> tuple[float, str]:
    """Variation between runs as a share of the mean, and its source; for a pilot the conservative one."""
    if not isinstance(design.pilot, PilotFile):
        return parse_share(design.noise), "assumed"
    variation, runs = parse_share(design.pilot.variation), design.pilot.runs
    return (
        cautious_sigma(variation, runs),
        f"the cautious value of a pilot's {tenths(variation)} with {runs - 1} degrees of freedom",
    )


def _sequential(file: StudyFile) -> Sequential | None:
    sequential = file.design.sequential
    if sequential is None:
        return None
    return Sequential(
        **{
            **sequential.model_dump(),
            "alpha": parse_share(sequential.alpha),
            "default": {k: level_name(v) for k, v in sequential.default.items()},
        }
    )


def _response(name: str, body: ResponseFile) -> Response:
    declared = body.source
    if isinstance(declared, TextFile):
        source = ResponseSource(
            kind=declared.kind,
            expression=declared.expression,
            file=declared.file,
            decimal=getattr(declared, "decimal", None) or "",
        )
    elif isinstance(declared, SeriesFile):
        source = ResponseSource(
            kind="series", expression=declared.series, take=declared.take, phase=declared.phase
        )
    elif isinstance(declared, EnergyFile):
        power, processors = power_of(declared.energy), declared.processors
        source = ResponseSource(kind="energy", power=power, processors=processors)
    elif isinstance(declared, TracedFile):
        source = ResponseSource(
            kind="trace",
            key=declared.trace,
            file=declared.file,
            direction=declared.direction,
            basis=declared.basis,
        )
    else:
        source = ResponseSource(kind="key", key=declared)
    desire = Desire(**body.desire.model_dump()) if body.desire is not None else None
    return Response(
        name=name,
        source=source,
        unit=body.unit,
        better=body.better,
        scale=body.scale,
        desire=desire,
    )


def _tracer(trace: TraceFile, base_dir: Path) -> TraceSpec:
    return TraceSpec(
        mode=trace.mode,
        files=tuple(base_dir / name for name in trace.files),
        directories=tuple(base_dir / name for name in trace.directories),
        endings=tuple(trace.endings),
        only=trace.only,
        hot=trace.hot,
        layers=trace.layers,
    )


def _observers(file: StudyFile, base_dir: Path) -> Observers:
    monitor, trace = file.observers.monitor, file.observers.trace
    return Observers(
        monitor=MonitorSpec(
            interval_s=parse_duration(monitor.interval),
            block_latency=monitor.block_latency,
            processes=monitor.processes,
            processes_named=tuple(monitor.processes_named),
            files=monitor.files,
            metrics=monitor.metrics,
            metric_interval_s=parse_duration(monitor.metric_interval),
        )
        if monitor
        else None,
        trace=_tracer(trace, base_dir) if trace else None,
        collect=file.observers.collect or {},
        others=file.observers.others(),
    )


def _settle(file: StudyFile, document: Mapping[str, Any]) -> Settle:
    settle = file.settle
    raw = document.get("settle") or {}
    most = settle.resident_at_most
    if settle.resident_at_least is not None and "resident_at_most" not in raw:
        most = None
    if not settle.drop_caches and "resident_at_most" not in raw:
        most = None
    return Settle(
        sync=settle.sync,
        drop_caches=settle.drop_caches and settle.resident_at_least is None,
        resident_at_most=parse_share(most) if most is not None else None,
        resident_at_least=parse_share(settle.resident_at_least)
        if settle.resident_at_least is not None
        else None,
        dirty_at_most_bytes=parse_size(settle.dirty_at_most)
        if settle.dirty_at_most is not None
        else None,
        in_flight_at_most=settle.in_flight_at_most,
        discard=settle.discard,
        idle_s=parse_duration(settle.idle),
    )
