"""The hosts file, and the facts of each host as `penstock hosts facts` writes them.

The keys of a worker are those of a study's `hosts` section, and those of this file's model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from penstock.errors import BadInput
from penstock.parts.remote.cluster.physical import Inventory, PathRule, PhysicalHost, RealPath
from penstock.platform.fields import Bandwidth
from penstock.spec.fields import expect
from penstock.spec.mistakes import in_order, validated
from penstock.spec.quantities import Duration, Part, Share, Text
from penstock.spec.source import read_input, read_source
from penstock.spec.study import Worker
from penstock.spec.units import parse_bandwidth, parse_duration, parse_share
from penstock.study.file import WorkerFile

PAGE = "docs/several-hosts.md"
#: largest file of facts [bytes]; those of a host have some 20 kB
_MOST_FACTS = 4 << 20
_MOST_CPUS = 1 << 20
#: a century
_MOST_CLOCK_NS = 100 * 366 * 86_400 * 10**9
_MOST_DELAY_S = 60.0
#: file of the measured paths, beside the facts of the hosts
MEASURED_PATHS = "paths.measured.json"
_MEASURED = "the measured paths that `penstock hosts measure` writes"
_PATTERN = re.compile(r"[A-Za-z0-9*?\[\]!._:-]{1,255}")


def _pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise expect("a host, or a pattern such as rack1-*")
    return text


Hosts = Annotated[Text, AfterValidator(_pattern)]


class PhysicalFile(WorkerFile):
    """A host that carries nodes."""

    address: Text | None = Field(
        None, description="End point of its tunnels; the host that ssh names."
    )
    link: Bandwidth | None = Field(None, description="Measured rate of its link, each direction.")
    mtu: int | None = Field(
        None, ge=68, le=65536, description="Largest packet on its paths; the facts' own."
    )
    facts: Text | None = Field(
        None, description="File of its facts, relative to this one; FACTS/NAME.json."
    )
    state: Text | None = Field(
        None, pattern=r"^/", description="State directory there; the usual one."
    )


class PathFile(Part):
    """The path from some hosts to others, as measured."""

    from_: Hosts = Field(alias="from", description="Hosts that send.")
    to: Hosts = Field(description="Hosts that receive.")
    latency: Duration = Field(description="One way.")
    loss: Share = Field("0%", description="Share of the packets.")


class InventoryFile(Part):
    """Physical hosts of a virtual cluster."""

    penstock_hosts: Literal[1] = Field(description="Version of this format: 1.")
    listen: Text | None = Field(None, description="Address of this host for the others.")
    facts: Text = Field("facts", description="Directory of the facts, relative to this file.")
    workers: list[PhysicalFile] = Field(min_length=1, description="The hosts.")
    paths: list[PathFile] = Field([], description="Paths between them; later entries come first.")


class _Facts(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Storage(_Facts):
    free_bytes: float | None = Field(None, ge=0)


class _Host(_Facts):
    penstock: str
    cpus: int = Field(ge=1, le=_MOST_CPUS)
    memory_bytes: float = Field(gt=0)
    storage: _Storage = _Storage(free_bytes=None)


class _Feature(_Facts):
    name: str
    verdict: str


class _Floors(_Facts):
    read_bps: float = Field(gt=0)
    write_bps: float = Field(gt=0)
    iops: float = Field(gt=0)
    service_floor_ns: float = Field(ge=0)


class _Link(_Facts):
    rate_bps: float | None = Field(None, gt=0)
    mtu: int | None = Field(None, ge=68, le=65536)


class _Clock(_Facts):
    offset_ns: int = Field(ge=-_MOST_CLOCK_NS, le=_MOST_CLOCK_NS)
    bound_ns: int = Field(0, ge=0, le=_MOST_CLOCK_NS)


class FactsFile(_Facts):
    """The parts of a host's facts that a plan needs; `link.rate_bps` is in bytes per second."""

    host: _Host
    features: list[_Feature]
    floors: _Floors | None = None
    link: _Link = _Link(rate_bps=None, mtu=None)
    clock: _Clock | None = None


class MeasuredPath(_Facts):
    """The path between two hosts: one-way delay [s], and loss (a probability per packet)."""

    hosts: tuple[str, str]
    delay_s: float = Field(ge=0, le=_MOST_DELAY_S)
    loss: float = Field(ge=0, lt=1)


class PathsFile(_Facts):
    """Measured paths of the hosts of a file."""

    paths: list[MeasuredPath]

    def rules(self) -> list[PathRule]:
        """These paths, for both directions."""
        return [PathRule(*p.hosts, RealPath(p.delay_s, p.loss)) for p in self.paths]


_File = TypeVar("_File", bound=_Facts)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class UnmeasuredHosts:
    """Hosts of a file, their addresses, and the files for the facts of each host and for the paths."""

    workers: tuple[Worker, ...]
    listen: str
    addresses: Mapping[str, str]
    facts: Mapping[str, Path]
    paths: Path


@dataclass(frozen=True)
class HostsFile:
    """A hosts file: hosts and paths for a plan, their workers, and the address of this host for them."""

    inventory: Inventory
    workers: tuple[Worker, ...]
    listen: str | None


def read_inventory(path: Path) -> Inventory:
    """Physical hosts of a hosts file. Raises BadInput with every mistake of it and of the facts."""
    return read_hosts(path).inventory


def read_hosts(path: Path) -> HostsFile:
    """Read a hosts file. Raises BadInput with every mistake of it and of the facts."""
    file = _read(path)
    hosts = _of_hosts(file, lambda w: _host(w, read_facts(_facts(path, file, w))))
    measured = _measured_paths(path, file)
    rules = [
        *(_read_json(measured, PathsFile, _MEASURED).rules() if measured.exists() else ()),
        *(
            PathRule(p.from_, p.to, RealPath(parse_duration(p.latency), parse_share(p.loss)))
            for p in file.paths
        ),
    ]
    return HostsFile(Inventory(tuple(hosts), tuple(rules)), _workers(file), file.listen)


def read_unmeasured(path: Path) -> UnmeasuredHosts:
    """Read a hosts file without facts. Raises BadInput with every mistake of it."""
    file = _read(path)
    listen = listen_address(file)
    addresses = dict(_of_hosts(file, lambda w: (w.name, _address(w))))
    facts = {worker.name: _facts(path, file, worker) for worker in file.workers}
    return UnmeasuredHosts(_workers(file), listen, addresses, facts, _measured_paths(path, file))


def listen_address(file: InventoryFile | HostsFile) -> str:
    """Address of this host for the workers. Raises BadInput if the hosts file has none."""
    if file.listen is None:
        raise BadInput("listen: found none; expected the address of this host for the others")
    return file.listen


def _of_hosts(file: InventoryFile, read: Callable[[PhysicalFile], _Result]) -> list[_Result]:
    """Results of `read` for each host. Raises BadInput with the mistakes of all hosts."""
    results, wrong = [], []
    for worker in file.workers:
        try:
            results.append(read(worker))
        except BadInput as error:
            wrong.append(f"host {worker.name}: {error}")
    if wrong:
        raise BadInput("\n".join(wrong))
    return results


def _read(path: Path) -> InventoryFile:
    source = read_source(read_input(path, "a hosts file"), str(path), f"a hosts file; see {PAGE}")
    file = validated(source, InventoryFile, PAGE)
    if file is None:
        raise BadInput(mistakes=in_order(source.mistakes))
    return file


def _workers(file: InventoryFile) -> tuple[Worker, ...]:
    return tuple(
        Worker(
            name=w.name,
            ssh=w.ssh,
            ssh_options=tuple(w.ssh_options),
            netns=w.netns,
            python=w.python,
            state=w.state,
        )
        for w in file.workers
    )


def _facts(path: Path, file: InventoryFile, worker: PhysicalFile) -> Path:
    return path.parent / (worker.facts or Path(file.facts) / f"{worker.name}.json")


def _measured_paths(path: Path, file: InventoryFile) -> Path:
    return path.parent / file.facts / MEASURED_PATHS


def read_facts(path: Path) -> FactsFile:
    """The facts of a host. Raises BadInput for an unreadable file and for values that are not facts."""
    return _read_json(path, FactsFile, "the output of `penstock hosts facts --json` on that host")


def _read_json(path: Path, kind: type[_File], expected: str) -> _File:
    try:
        size_bytes = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: {reason}; expected {expected}") from None
    if size_bytes > _MOST_FACTS:
        raise BadInput(f"{path}: found {size_bytes} bytes; expected {expected}")
    try:
        return kind.model_validate(json.loads(read_input(path, expected)))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "facts"
        message = first["msg"][0].lower() + first["msg"][1:]
        raise BadInput(
            f"{path}: {key}: found an invalid value ({message}); expected {expected}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: found no JSON ({error}); expected {expected}") from None


def _address(worker: PhysicalFile) -> str:
    address = worker.address or (worker.ssh or "").rpartition("@")[2]
    if not address:
        raise BadInput("address: found none; expected the address of its end of the tunnels")
    return address


def _host(worker: PhysicalFile, facts: FactsFile) -> PhysicalHost:
    address = _address(worker)
    rate_bps = parse_bandwidth(worker.link) if worker.link is not None else facts.link.rate_bps
    if rate_bps is None:
        raise BadInput("link: found no rate; expected the measured one, such as 10 Gbit/s")
    mtu = worker.mtu or facts.link.mtu
    if mtu is None:
        raise BadInput("mtu: found none; expected the largest packet on its paths, such as 1500")
    floors, clock = facts.floors, facts.clock
    return PhysicalHost(
        name=worker.name,
        address=address,
        processors=facts.host.cpus,
        memory_bytes=facts.host.memory_bytes,
        link_bps=rate_bps,
        mtu=mtu,
        version=facts.host.penstock,
        read_bps=floors.read_bps if floors else None,
        write_bps=floors.write_bps if floors else None,
        iops=floors.iops if floors else None,
        service_floor_s=floors.service_floor_ns * 1e-9 if floors else None,
        disk_bytes=facts.host.storage.free_bytes,
        clock_offset_s=clock.offset_ns * 1e-9 if clock else None,
        clock_bound_s=clock.bound_ns * 1e-9 if clock else 0.0,
        features={f.name: f.verdict for f in facts.features},
    )
