"""A validated study, with defaults and parsed units, for all other layers.

`study/file.py` mirrors the YAML; `study/load.py` converts it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from penstock.spec.alert import Rule
from penstock.spec.application import Application
from penstock.spec.guest import GuestSpec
from penstock.spec.machine import PlatformFile
from penstock.spec.power import Power

#: preparations that a change of a factor may require, weakest first; each includes the preceding ones
ACTIONS = ("remount", "restart", "reformat", "redeploy")

__all__ = [
    "ACTIONS",
    "DesignSpec",
    "Desire",
    "Factor",
    "Hosts",
    "Level",
    "Limits",
    "MonitorSpec",
    "Observers",
    "Outliers",
    "Ready",
    "Response",
    "ResponseSource",
    "Retry",
    "Sequential",
    "Service",
    "Settle",
    "Study",
    "TimeScales",
    "TraceSpec",
    "Worker",
    "Workload",
    "level_name",
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Level(_Frozen):
    """One level of a factor: its name in tables and its value in templates.

    A mapping or list is the value of a template without other text in the platform.
    """

    name: str
    value: str | int | float | dict[str, Any] | list[Any]


def level_name(level: Any) -> str:
    """The name of a level in tables."""
    return ("true" if level else "false") if isinstance(level, bool) else str(level)


class Factor(_Frozen):
    """A factor; the first level is coded −1, the second +1."""

    name: str
    levels: tuple[Level, ...]
    unit: str | None = None
    #: cost of a change; None: estimated from `change`
    change_cost_s: float | None = None
    #: preparation that a change requires
    change: Literal["none", "remount", "restart", "reformat", "redeploy"] = "none"

    def level(self, name: str) -> Level:
        """The level called `name`; KeyError for an unknown one."""
        for level in self.levels:
            if level.name == name:
                return level
        raise KeyError(f"factor {self.name} has no level {name}")


class Sequential(_Frozen):
    """A sequential study, whose later runs depend on earlier ones: `screen`, then `search`, then `confirm`.

    `runs` is the maximum in total; `search_runs` of them search for a better setting, by `search`; `confirm`
    pairs of the chosen and the `default` setting follow; `spending` divides `alpha` among the looks. With
    `stop: decided` screening also ends once every effect is outside ±`detect` or within it.
    """

    runs: int
    alpha: float = 0.05
    spending: Literal["pocock", "obrien-fleming"] = "pocock"
    stop: Literal["rivals", "decided"] = "rivals"
    search: Literal["gaussian-process", "trees", "optuna"] = "gaussian-process"
    search_runs: int = 0
    confirm: int = 5
    default: dict[str, str] = {}


class Limits(_Frozen):
    """Limits of a study; None: no limit. A study that reaches one ends with its completed runs."""

    runs: int | None = None
    time_s: float | None = None
    energy_j: float | None = None


class Retry(_Frozen):
    """Number of repetitions of a run for each cause of its invalidity, fixed before any run."""

    state: int = 1
    disk: int = 1
    losses: int = 1
    degraded: int = 0
    failed: int = 0
    timed_out: int = 0

    def times(self, causes: Iterable[str]) -> int:
        """Number of repetitions of a run that is invalid for these causes: the largest of them."""
        return max((int(getattr(self, cause)) for cause in causes), default=0)


class Outliers(_Frozen):
    """Thresholds of an outlier: MADs from the median of its treatment, and the family-wise probability that a
    study without anomalies has an outlier by its studentised residual."""

    mads: float = 14.826
    chance: float = 0.05


class DesignSpec(_Frozen):
    """The design: 2^(K−`fraction`) treatments (0: full), or those of `kind`, `replicates` times.

    `order` is randomised by `seed` (`auto` decides by the costs of changes); passes are divided into blocks
    of at most `block_size` runs; `options` are those of a `kind` that is not `full`. Treatments that have one
    of the level names of every factor of one of `forbidden` are not run. `detect` and `noise` are shares of
    the mean; `noise_from` is the source of the noise. `choice` is set if the study does not specify its kind:
    the choice, its purpose, its reason, and the alternatives.
    """

    kind: str = "full"
    options: dict[str, Any] = {}
    fraction: int = 0
    generators: tuple[str, ...] = ()
    replicates: int = 2
    seed: int = 1
    order: Literal[
        "auto", "interleaved", "random", "split-plot", "split-plot-random", "strip-plot", "standard"
    ] = "auto"
    block_size: int | None = None
    noise: float = 0.05
    noise_from: str = "assumed"
    forbidden: tuple[dict[str, tuple[str, ...]], ...] = ()
    purpose: Literal["screen", "estimate", "optimise", "compare"] | None = None
    budget_runs: int | None = None
    budget_s: float | None = None
    detect: float | None = None
    choice: dict[str, Any] | None = None
    sequential: Sequential | None = None


class Ready(_Frozen):
    """Readiness check of a service: a port, a text in its output, or a command that succeeds."""

    port: int | None = None
    log: str | None = None
    command: str | None = None


class Service(_Frozen):
    """A command that must be ready on nodes before the measured one; stopped by pid after it."""

    name: str
    command: str
    on: tuple[str, ...] = ()
    ready: Ready | None = None
    within_s: float = 60.0
    stop: str = "TERM"
    user: str | None = None


class Workload(_Frozen):
    """The workload. Its texts are templates, which `study/resolve.py` fills in."""

    prepare: str | None = None
    mutates: bool | Literal["contents"] = True
    command: str
    after: str | None = None
    timeout_s: float = 600.0
    expected_s: float | None = None
    parser: str = "none"
    user: str | None = None
    env: dict[str, str] = {}
    directory: str | None = None
    #: nodes of the command: names and patterns; empty: the first
    on: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    #: commands around a run, by name: an action of `ACTIONS`, `apply`, `verify`, `undo`
    hooks: dict[str, str] = {}


Direction = Literal["read", "write"]
Basis = Literal["calls", "faults", "device"]
Take = Literal["mean", "integral", "min", "max", "first", "last", "median", "p95", "p99", "sum"]


class ResponseSource(_Frozen):
    """Source of a response: a parser's `key`; the match of an `expression` of a kind in a `file`
    (`penstock.plugins.RESPONSE_KINDS`); for the kind `series`, the statistic `take` of an expression of the
    run's recorded series in a phase; for the kind `trace`, the measure `key` of the traced accesses of
    `basis` in `direction` (None: both) to files that match `file`; for the kind `energy`, the `power` of a
    host with `processors` (None: as many as this host). `decimal`: decimal mark of a number in a text, if
    given."""

    kind: str
    key: str | None = None
    expression: str | None = None
    file: str = "stdout"
    decimal: Literal["", ".", ","] = ""
    take: Take = "mean"
    phase: str = "workload"
    direction: Direction | None = None
    basis: Basis = "calls"
    power: Power | None = None
    processors: int | None = None


class Desire(_Frozen):
    """Desirability of values of a response: from 0 at `worst` to 1 at `best`, or 1 at `target` only."""

    worst: float | None = None
    best: float | None = None
    low: float | None = None
    target: float | None = None
    high: float | None = None
    weight: float = 1.0
    importance: float = 1.0


class Response(_Frozen):
    """A measurement of each run, in `unit`."""

    name: str
    source: ResponseSource
    unit: str
    better: Literal["higher", "lower"]
    #: scale of the effects; `auto`: logarithms if treatments differ threefold and the spread allows it
    scale: Literal["auto", "linear", "log", "box-cox", "rank"] = "auto"
    desire: Desire | None = None


class MonitorSpec(Application):
    """Period of the sampler, histograms of block latency, and additional sources."""

    interval_s: float = 1.0
    block_latency: bool = False


class TraceSpec(_Frozen):
    """The tracer's mode; filters of the recorded calls; whether the layers below the calls are recorded."""

    mode: Literal["trace", "pattern"] = "trace"
    files: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    endings: tuple[str, ...] = ()
    only: Direction | None = None
    #: calls of the most used files by it are recorded individually, others counted
    hot: Literal["requests", "bytes"] | None = None
    layers: bool = False

    @property
    def filtered(self) -> bool:
        """True if some calls of a run have no record of their own."""
        return bool(self.files or self.directories or self.endings or self.only or self.hot)


class Observers(_Frozen):
    """Observers of each run; None: not used."""

    monitor: MonitorSpec | None = MonitorSpec()
    trace: TraceSpec | None = None
    #: settings of collectors by name
    collect: dict[str, dict[str, Any]] = {}
    #: settings of other packages' observers by name
    others: dict[str, dict[str, Any]] = {}

    def by_name(self) -> dict[str, dict[str, Any]]:
        """Settings of each observer in use."""
        own = {"monitor": self.monitor, "trace": self.trace}
        collect = {"collect": self.collect} if self.collect else {}
        settings = {n: s.model_dump() for n, s in own.items() if s is not None}
        return {**collect, **settings, **self.others}


class Settle(_Frozen):
    """Required state at the start of each run."""

    sync: bool = True
    drop_caches: bool = True
    resident_at_most: float | None = 0.01
    resident_at_least: float | None = None
    #: dirty data of the host to be written back; None: not checked
    dirty_at_most_bytes: int | None = None
    #: requests in flight on a disk's device; None: recorded, without a repetition of the run
    in_flight_at_most: int | None = None
    #: discard free space of the file systems of plain disks
    discard: bool = False
    idle_s: float = 0.0


class Worker(_Frozen):
    """A host that executes runs: over ssh, in a network namespace of this host, or this host itself."""

    name: str
    ssh: str | None = None
    ssh_options: tuple[str, ...] = ()
    netns: str | None = None
    python: str | None = None
    #: state directory there, if not the usual one
    state: str | None = None


class Hosts(_Frozen):
    """Hosts of a study, and the conductor's address for them."""

    listen: str
    workers: tuple[Worker, ...]


class TimeScales(_Frozen):
    """Values of `auto`: one number for the disks that share one scale of all their profiles `together`, and
    numbers by profile for those that declare each its `own`."""

    together: float | None = None
    own: dict[str, float] = {}


class Study(_Frozen):
    """A validated study. `document` is the file as plain values, after `--set` and `--quick`; `time_scales`
    are the decided values of `auto` in it."""

    name: str
    question: str
    factors: tuple[Factor, ...]
    design: DesignSpec
    platform: PlatformFile
    workload: Workload
    responses: tuple[Response, ...]
    observers: Observers = Observers()
    settle: Settle = Settle()
    hosts: Hosts | None = None
    #: virtual machine for the runs; None: they run on this host
    guest: GuestSpec | None = None
    limits: Limits = Limits()
    alerts: tuple[Rule, ...] = ()
    retry: Retry = Retry()
    outliers: Outliers = Outliers()
    quick: bool = False
    source_path: Path
    base_dir: Path
    source_text: str
    document: dict[str, Any]
    profiles: dict[str, dict[str, Any]] = {}
    time_scales: TimeScales | None = None

    @property
    def hash(self) -> str:
        """SHA-256 of the study's values (without comments and layout) and of its storage profiles."""
        text = json.dumps([self.document, self.profiles], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def study_id(self) -> str:
        """Name and the first 8 hexadecimal digits of the hash."""
        return f"{self.name}-{self.hash[:8]}"

    def factor(self, name: str) -> Factor:
        """The factor called `name`; KeyError for an unknown one."""
        for factor in self.factors:
            if factor.name == name:
                return factor
        raise KeyError(f"no factor {name}")
