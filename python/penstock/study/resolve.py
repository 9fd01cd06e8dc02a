"""One treatment of a study with every factor filled in."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from penstock.errors import BadInput
from penstock.platform.checks.emulation import networks_of
from penstock.platform.emulation import cluster_of
from penstock.platform.profiles import read_profile, scaled
from penstock.spec.cluster import ClusterSpec
from penstock.spec.guest import GuestSpec
from penstock.spec.machine import DiskFile, NodeFile, PlatformFile, node_names, time_scale_of
from penstock.spec.mistakes import expected_of
from penstock.spec.names import BUILT_IN, OF_STORE
from penstock.spec.quantities import without_templates
from penstock.spec.store import Deployment
from penstock.spec.study import Service, Study
from penstock.spec.template import Filling, doubled, fill, fill_line, filled_in, names_in
from penstock.spec.units import parse_size
from penstock.study.store import deployment_of
from penstock.study.time_scales import picked

if TYPE_CHECKING:
    from penstock.design.planned import PlannedRun


@dataclass(frozen=True)
class ResolvedDisk:
    """One disk of a run. `profile` is the StorageProfile JSON, already scaled by `time_scale`.

    A plain host directory has a `directory`, and neither profile nor mount.
    """

    name: str
    node: str
    profile_name: str
    time_scale: float
    profile: dict[str, Any]
    size_bytes: int | None
    mount: str | None
    directory: Path | None = None

    @property
    def emulated(self) -> bool:
        """True if a profile emulates its storage."""
        return self.directory is None and bool(self.profile)

    @property
    def disk_id(self) -> str:
        """`node.disk`, unique in the study."""
        return f"{self.node}.{self.name}"


@dataclass(frozen=True)
class ResolvedNode:
    """One node of a run. None: no limit."""

    name: str
    memory_bytes: int | None
    cpus: float | None
    disks: tuple[ResolvedDisk, ...]


@dataclass(frozen=True)
class ResolvedRun:
    """A treatment ready for execution; its texts still contain `{disk}`, `{run_dir}`, `{python}`:
    `filling`."""

    treatment: dict[str, str]
    nodes: tuple[ResolvedNode, ...]
    prepare: str | None
    prepare_factors: tuple[str, ...]
    mutates: bool | Literal["contents"]
    command: str
    after: str | None
    env: dict[str, str]
    directory: str | None
    user: str | None
    timeout_s: float
    parser: str
    study_dir: Path
    #: cluster to start; None: one plain node, which runs on the host itself
    cluster: ClusterSpec | None = None
    #: nodes of the command (patterns; empty: the first), and services that must be ready before it
    on: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    #: shared store over its nodes, started anew for each run
    store: Deployment | None = None
    #: virtual machine for the run
    guest: GuestSpec | None = None
    #: commands around the run, by name (`penstock.spec.study.Workload`)
    hooks: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int | None:
        """Memory limit of the first node."""
        return self.nodes[0].memory_bytes

    @property
    def disks(self) -> tuple[ResolvedDisk, ...]:
        """Disks of all nodes."""
        return tuple(d for n in self.nodes for d in n.disks)

    def filling(
        self,
        directories: Mapping[str, Path | str],
        run_dir: Path | str,
        node: str | None = None,
    ) -> Filling:
        """Remaining values of the texts, for `node` (default: the first).

        `directories`: disk name or `node.disk` → directory (mount points for the command, backing directories
        for prepare). KeyError for a disk without one.
        """
        values = {name: str(path) for name, path in directories.items()}
        for disk in self.disks:
            for alias, other in ((disk.name, disk.disk_id), (disk.disk_id, disk.name)):
                if alias in values:
                    values.setdefault(other, values[alias])
        values |= {"run_dir": str(run_dir), "python": sys.executable}
        names = [n.name for n in self.nodes]
        of_store = {OF_STORE: self.store.spec.mount} if self.store is not None else {}
        values = {"node": node or names[0], "nodes": " ".join(names), **of_store, **values}
        return Filling(values, frozenset({"nodes"}))


def resolved_treatments(study: Study, rows: Iterable[PlannedRun]) -> dict[str, ResolvedRun]:
    """All treatments of planned runs by name, each resolved once. BadInput for one that cannot be run yet."""
    levels = {row.treatment_id: row.levels for row in rows}
    return {treatment_id: resolve(study, own_levels) for treatment_id, own_levels in levels.items()}


def resolvable(study: Study, treatments: Iterable[Mapping[str, str]]) -> list[ResolvedRun]:
    """Treatments that can be resolved; errors of others are reported at their execution."""
    resolved = []
    for levels in treatments:
        with contextlib.suppress(BadInput, KeyError):
            resolved.append(resolve(study, levels))
    return resolved


def resolve(study: Study, treatment: Mapping[str, str]) -> ResolvedRun:
    """Run of `treatment` (factor → level name), factors filled in. KeyError for an unknown level."""
    levels = {f.name: f.level(treatment[f.name]).value for f in study.factors}
    parts = {name: value for name, value in levels.items() if isinstance(value, dict | list)}
    early = {name: str(value) for name, value in levels.items() if name not in parts}
    early["study_dir"] = str(study.base_dir)
    work = study.workload
    platform = _platform(study, treatment, {**early, **parts})
    return ResolvedRun(
        treatment={f.name: treatment[f.name] for f in study.factors},
        nodes=tuple(
            _node(study, node, name)
            for node in platform.nodes
            for name in node_names(node.name, node.count)
        ),
        on=tuple(_partly(p, early) or "" for p in work.on),
        services=tuple(_service(s, early) for s in work.services),
        cluster=_cluster(study, platform) if needs_cluster(platform) else None,
        store=deployment_of(platform),
        guest=study.guest,
        hooks={name: _partly_line(text, early) or "" for name, text in work.hooks.items()},
        prepare=_partly_line(work.prepare, early),
        prepare_factors=prepare_factors(study),
        mutates=work.mutates,
        command=_partly_line(work.command, early) or "",
        after=_partly_line(work.after, early),
        env={k: _partly(v, early) or "" for k, v in work.env.items()},
        directory=_partly(work.directory, early),
        user=work.user,
        timeout_s=work.timeout_s,
        parser=work.parser,
        study_dir=study.base_dir,
    )


def _service(service: Service, values: Mapping[str, str]) -> Service:
    ready = service.ready
    if ready is not None and ready.command is not None:
        ready = ready.model_copy(update={"command": _partly_line(ready.command, values)})
    filled = {"command": _partly_line(service.command, values), "ready": ready}
    on = tuple(_partly(p, values) or "" for p in service.on)
    return service.model_copy(update={**filled, "on": on})


def prepare_factors(study: Study) -> tuple[str, ...]:
    """Factors that determine the prepared data: those in `prepare` and, as visible to it, in `env`."""
    if study.workload.prepare is None:
        return ()
    texts = [study.workload.prepare, *study.workload.env.values()]
    used = {name for text in texts for name in names_in(text)}
    return tuple(f.name for f in study.factors if f.name in used)


def _partly(text: str | None, values: Mapping[str, str]) -> str | None:
    """Fill in factors; names known only at run time remain templates, braces remain doubled."""
    return None if text is None else fill(*_protected(text, values))


def _partly_line(text: str | None, values: Mapping[str, str]) -> str | None:
    """Like `_partly`, for a shell command line: each value is quoted for its position."""
    if text is None:
        return None
    protected, doubled_values = _protected(text, values)
    return fill_line(protected, doubled_values, frozenset(doubled_values) - frozenset(values))


def _protected(text: str, values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A template whose result is a template: names without a value are preserved, braces remain doubled."""
    doubled_values = {k: doubled(v) for k, v in values.items()}
    later = {n: f"{{{n}}}" for n in names_in(text) if n not in doubled_values}
    return text.replace("{{", "{{{{").replace("}}", "}}}}"), doubled_values | later


def _platform(
    study: Study, treatment: Mapping[str, str], values: Mapping[str, Any]
) -> PlatformFile:
    """The study's platform with every factor filled in. BadInput for an invalid result."""
    filled = filled_in(picked(study.document["platform"], treatment, values), values)
    try:
        with without_templates():
            return PlatformFile.model_validate(filled)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, ("platform", *detail["loc"])))
        raise BadInput(
            f"{study.source_path}: {where}: found {detail['input']!r}; expected {expected_of(detail)}"
        ) from None


def needs_cluster(platform: PlatformFile) -> bool:
    """True if nodes must be started; one with only memory and profiled disks runs on the host itself."""
    own = {"name", "memory", "disks"}
    plain = {"name", "profile", "directory", "time_scale", "size", "mount"}
    return (
        len(platform.nodes) > 1
        or bool(platform.model_fields_set - {"nodes"})
        or any(
            n.model_fields_set - own or any(d.model_fields_set - plain for d in n.disks)
            for n in platform.nodes
        )
    )


def _cluster(study: Study, platform: PlatformFile) -> ClusterSpec:
    machines = [(n, node) for node in platform.nodes for n in node_names(node.name, node.count)]
    networks = [p.file for p in networks_of(platform.network, platform.networks, ("platform",))]
    return cluster_of(
        study.name,
        machines,
        networks,
        platform.schedule,
        lambda name: profile_of(study, name),
        base_dir=study.base_dir,
        runtime=platform.runtime,
    )


def profile_of(study: Study, name: str) -> dict[str, Any]:
    """A profile of the study, unscaled. BadInput for an unknown one."""
    profile = study.profiles.get(name)
    return profile if profile is not None else read_profile(name, study.base_dir)


def _node(study: Study, node: NodeFile, name: str) -> ResolvedNode:
    return ResolvedNode(
        name=name,
        memory_bytes=parse_size(node.memory) if node.memory is not None else None,
        cpus=float(node.cpus) if node.cpus is not None else None,
        disks=tuple(_disk(study, name, disk) for disk in node.disks),
    )


def _disk(study: Study, node: str, disk: DiskFile) -> ResolvedDisk:
    size_bytes = parse_size(disk.size) if disk.size is not None else None
    if disk.profile is None:
        directory = study.base_dir / disk.directory if disk.directory is not None else None
        return ResolvedDisk(disk.name, node, "", 1.0, {}, size_bytes, disk.mount, directory)
    time_scale = time_scale_of(disk)
    return ResolvedDisk(
        name=disk.name,
        node=node,
        profile_name=disk.profile,
        time_scale=time_scale,
        profile=scaled(profile_of(study, disk.profile), time_scale),
        size_bytes=size_bytes,
        mount=disk.mount,
    )


def example_command(run: ResolvedRun) -> str:
    """The command with placeholder directories, for an analysis of its I/O; not to be executed."""
    try:
        stand_ins = {d.disk_id: f"/{d.name}" for d in run.disks}
        return run.filling(stand_ins, "/run_dir").line(run.command)
    except KeyError as error:
        raise BadInput(f"no directory for {shlex.quote(str(error))}") from None


__all__ = [
    "BUILT_IN",
    "ResolvedDisk",
    "ResolvedNode",
    "ResolvedRun",
    "example_command",
    "prepare_factors",
    "resolve",
]
