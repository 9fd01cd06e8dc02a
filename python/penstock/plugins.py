"""Tables of everything that parts and other packages can add.

A row is `name → module` or `name → module:attribute`, imported when it is first used. Rows of penstock are
those below and those of `penstock.parts`. Other packages add rows by entry points of the group
`penstock.TABLE`, which cannot replace a row of penstock. docs/extending.md has the protocol of each table,
`penstock.testing` its check.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pkgutil import iter_modules
from typing import Any

from penstock.errors import BadInput, PenstockError

#: choices of a table without rows, for messages
NOT_INSTALLED = "none: the part that adds it is not installed"


@cache
def _parts() -> list[Any]:
    """The module `rows` of each part that is there."""
    folder = os.path.join(os.path.dirname(__file__), "parts")
    names = sorted(module.name for module in iter_modules([folder]) if module.ispkg)
    return [importlib.import_module(f"penstock.parts.{name}.rows") for name in names]


def verbs_of_parts(group: str) -> dict[str, str]:
    """The verbs that parts add to a group of the help page, with their lines."""
    verbs: dict[str, str] = {}
    for part in _parts():
        verbs |= getattr(part, "VERBS", {}).get(group, {})
    return verbs


class Table(Mapping[str, str]):
    """Mapping of names to import paths, in order of preference."""

    def __init__(self, name: str, what: str, rows: Mapping[str, str]) -> None:
        self.name = name
        self.what = what
        self._core = dict(rows)

    @cached_property
    def _own(self) -> dict[str, str]:
        rows = dict(self._core)
        for part in _parts():
            rows |= part.ROWS.get(self.name, {})
        return rows

    @cached_property
    def _rows(self) -> dict[str, str]:
        from importlib.metadata import entry_points

        rows = dict(self._own)
        for point in entry_points(group=f"penstock.{self.name}"):
            rows.setdefault(point.name, point.value)
        return rows

    def __getitem__(self, name: str) -> str:
        return self._own.get(name) or self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def own(self) -> tuple[str, ...]:
        """The names of our own rows."""
        return tuple(self._own)

    def choices(self, separator: str = ", ") -> str:
        """The names for a message."""
        return separator.join(self) or NOT_INSTALLED

    def load(self, name: str) -> Any:
        """Import a row. BadInput for an unknown name, PenstockError if another package cannot be imported."""
        try:
            module, _, attribute = self[name].partition(":")
        except KeyError:
            raise BadInput(f"found {self.what} {name!r}; expected {self.choices()}") from None
        try:
            imported = importlib.import_module(module)
            return getattr(imported, attribute) if attribute else imported
        except (ImportError, AttributeError) as error:
            if name in self._own:
                raise
            raise PenstockError(f"the {self.what} {name} ({self[name]}): {error}") from error


class PartTable(Table):
    """Table without entry points: only parts add rows."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what, {})

    @cached_property
    def _rows(self) -> dict[str, str]:
        return self._own

    def attribute(self, module: str, name: str) -> Any:
        """The row as an attribute of a module; AttributeError if there is none (PEP 562)."""
        if name not in self:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return self.load(name)


#: verbs of parts and of other packages; `penstock.cli` has those of the core
COMMANDS = Table("commands", "verb", {})

#: back ends of disks; the first that supports a disk serves it
DISK_BACKENDS = Table(
    "disk-backends",
    "back end",
    {
        "fuse": "penstock.emulate.backends.fuse:FuseBackend",
        "cgroup2": "penstock.emulate.backends.cgroup2:Cgroup2Backend",
        "cgroup1": "penstock.emulate.backends.cgroup1:Cgroup1Backend",
    },
)

#: places of runs; the first that accepts a run executes it, those of other packages before ours
RUN_PLACES = Table(
    "run-places",
    "place of runs",
    {
        "nodes": "penstock.campaign.places.nodes_stage:NodesStage",
        "host": "penstock.campaign.places.host_stage:HostStage",
    },
)

#: services on the nodes of a run, by the key of the study that declares them
CLUSTER_SERVICES = PartTable("cluster-services", "service of clusters")

#: functions of parts that verbs of the core and other parts call
FUNCTIONS = PartTable("functions", "function")

#: names of runs that are not paths: `select(name)` gives a `Selection`, or None for another name
RUN_NAMES = PartTable("run-names", "kind of names")

#: functions of `penstock` and `penstock.api` that parts add
API = PartTable("api", "function")

#: checks of `penstock.testing` that parts add
CHECKS = PartTable("checks", "check")

#: conductors of runs on other hosts, by the key of the study that declares them
CONDUCTORS = PartTable("conductors", "conductor of runs")

#: runtimes of nodes; the first whose requirements are met is used
NODE_RUNTIMES = Table(
    "node-runtimes",
    "runtime",
    {
        "runc": "penstock.host.nodes.oci:RuncRuntime",
        "namespaces": "penstock.host.nodes.spawner:NamespacesRuntime",
    },
)

#: observers of a run; they stop in reverse order of their start
OBSERVERS = Table(
    "observers",
    "observer",
    {
        "monitor": "penstock.observe.sampler.monitor:MonitorObserver",
        "trace": "penstock.observe.trace.capture.observer:TraceObserver",
    },
)

#: collectors of points for an experiment
COLLECTORS = Table("collectors", "collector", {})

#: clients that read the points of a metrics server
METRIC_SERVERS = Table("metric-servers", "server of metrics", {})

#: parsers of a program's report
WORKLOAD_PARSERS = Table(
    "workload-parsers",
    "parser",
    {
        "fio": "penstock.workload.parsers.fio",
        "pgbench": "penstock.workload.parsers.pgbench",
        "sysbench": "penstock.workload.parsers.sysbench",
        "ycsb": "penstock.workload.parsers.ycsb",
        "db_bench": "penstock.workload.parsers.db_bench",
        "hammerdb": "penstock.workload.parsers.hammerdb",
        "none": "penstock.workload.parsers.wall",
        "wall": "penstock.workload.parsers.wall",
    },
)

#: importers of traces; the first that recognises the start of a file reads it
TRACE_IMPORTERS = Table("trace-importers", "format", {})

#: readers of logs and statistics of programs; the first that recognises a file reads it
METRIC_READERS = Table(
    "metric-readers",
    "reader of metrics",
    {
        "spark": "penstock.workload.metrics.spark",
        "hadoop": "penstock.workload.metrics.hadoop",
        "redis": "penstock.workload.metrics.redis",
        "postgresql": "penstock.workload.metrics.postgresql",
        "cassandra": "penstock.workload.metrics.cassandra",
        "sar": "penstock.workload.metrics.sar",
        "kube-burner": "penstock.workload.metrics.kube_burner",
        "described": "penstock.workload.metrics.described",
        "csv": "penstock.workload.metrics.table",
    },
)

#: extractors of a number from a program's output: a study's `from: {KIND: …}`
RESPONSE_KINDS = Table(
    "response-kinds",
    "kind of response",
    {name: f"penstock.workload.parsers.{name}" for name in ("regex", "json")},
)

#: formats of workload descriptions
WORKLOAD_FORMATS = Table("workload-formats", "format", {})

#: exporters of traces
TRACE_EXPORTERS = Table(
    "trace-exporters",
    "format",
    {
        "json": "penstock.archive.traces.trace_export:json_file",
        "jsonl": "penstock.archive.traces.trace_export:jsonl",
        "fio": "penstock.archive.traces.trace_export:fio",
    },
)

#: formats of runs as one file, by file name extension
ARCHIVE_FORMATS = Table("archive-formats", "archive format", {})

#: readers of platform descriptions of other programs
PLATFORM_FORMATS = Table("platform-formats", "format of platforms", {})

#: rules for findings of a trace, in the order of findings with equal weight
TRACE_FINDINGS = Table(
    "trace-findings",
    "finding of a trace",
    {
        "lost": "penstock.analyse.traces.trace_losses:lost",
        **{
            name: f"penstock.analyse.traces.trace_findings:{name}"
            for name in (
                "bound",
                "random_reads",
                "many_files",
                "disorder",
                "fragmented",
                "rereads",
                "flushes",
                "alone",
                "small",
                "unaligned",
                "overhead",
            )
        },
    },
)

#: computations of the tables of a study, in order
ANALYSIS_STEPS = Table(
    "analysis-steps",
    "step of an analysis",
    {
        name: f"penstock.campaign.analysis_steps:{name}"
        for name in ("effects", "predictions", "surface", "means", "ledger")
    },
)

#: rules for findings of a study, in order
STUDY_FINDINGS = Table(
    "study-findings",
    "finding of a study",
    {
        "best": "penstock.analyse.treatments.recommend:best",
        "alerts": "penstock.analyse.findings.alerts:alerts",
        "costs": "penstock.analyse.findings.effect_findings:costs",
        "effects": "penstock.analyse.findings.effect_findings:effects",
        "scales": "penstock.analyse.findings.assumptions:scales",
        "kept_settings": "penstock.analyse.findings.assumptions:shared_settings",
        "assumptions": "penstock.analyse.findings.assumptions:assumptions",
        "outliers": "penstock.analyse.findings.assumptions:outliers",
        "unequal_runs": "penstock.analyse.findings.unequal_runs:differences",
        "left_out": "penstock.analyse.findings.assumptions:excluded_runs",
        "hosts": "penstock.analyse.findings.hosts:hosts",
        "surfaces": "penstock.analyse.surface.fitted_optimum:optima",
        "few-runs": "penstock.analyse.statistics.few_runs:in_few_runs",
        "drift": "penstock.analyse.findings.order_effects:or_drift",
        "aliased": "penstock.analyse.sequential.aliased:aliased",
        "screening": "penstock.analyse.findings.screening:screening",
        "stages": "penstock.analyse.sequential.aliased:stages",
        "confirmed": "penstock.analyse.sequential.ledger:confirmed",
        "slowed": "penstock.analyse.fidelity.time_scale:slowed",
        "devices": "penstock.analyse.fidelity.device_start:devices",
        "degraded": "penstock.analyse.fidelity.degraded:degraded",
        "crowded": "penstock.analyse.fidelity.degraded:crowded",
        "tails": "penstock.analyse.fidelity.tails:tails",
        "collected": "penstock.analyse.findings.collected:collected",
        "lost": "penstock.analyse.findings.lost_runs:lost",
        "reasons": "penstock.analyse.findings.why:reasons",
        **{
            name: f"penstock.analyse.findings.study_findings:{name}"
            for name in (
                "stragglers",
                "limits",
                "nothing_valid",
                "runs",
                "fidelity",
                "observers",
                "predictions",
                "fraction",
                "cautions",
            )
        },
    },
)

#: engines of shared stores
STORE_ENGINES = Table("store-engines", "engine", {})

#: hints of a file in a store: the attributes `user.penstock.KEY`
STORE_HINTS = Table("store-hints", "hint", {})

#: kinds of designs
DESIGNS = Table(
    "designs",
    "kind of design",
    {
        "full": "penstock.design.kinds.full",
        "plackett-burman": "penstock.design.kinds.plackett_burman",
        "orthogonal-array": "penstock.design.kinds.orthogonal_array",
        "central-composite": "penstock.design.kinds.central_composite",
        "definitive-screening": "penstock.design.kinds.definitive_screening",
        "d-optimal": "penstock.design.kinds.optimal:D",
        "i-optimal": "penstock.design.kinds.optimal:I",
        "latin-hypercube": "penstock.design.kinds.latin_hypercube",
        "sobol": "penstock.design.kinds.sobol",
        "table": "penstock.design.kinds.table",
    },
)

#: routes of the HTTP interface, in the order in which they are added
HTTP_ROUTES = Table("http-routes", "route", {})

#: kinds of figures of series that `penstock plot` draws
FIGURE_KINDS = Table(
    "figure-kinds",
    "figure",
    {
        "lines": "penstock.report.figures.kinds.lines",
        "multi-y": "penstock.report.figures.kinds.multi_y",
        "stacked": "penstock.report.figures.kinds.stacked",
        "scatter": "penstock.report.figures.kinds.scatter",
        "cdf": "penstock.report.figures.kinds.cdf",
        "sequence": "penstock.report.figures.kinds.sequence",
        "heatmap": "penstock.report.figures.kinds.heatmap",
        "bands": "penstock.report.figures.kinds.bands",
    },
)

TABLES = (
    COMMANDS,
    DISK_BACKENDS,
    RUN_PLACES,
    NODE_RUNTIMES,
    OBSERVERS,
    COLLECTORS,
    METRIC_SERVERS,
    WORKLOAD_PARSERS,
    RESPONSE_KINDS,
    WORKLOAD_FORMATS,
    TRACE_IMPORTERS,
    TRACE_EXPORTERS,
    ARCHIVE_FORMATS,
    PLATFORM_FORMATS,
    TRACE_FINDINGS,
    ANALYSIS_STEPS,
    STUDY_FINDINGS,
    STORE_ENGINES,
    STORE_HINTS,
    DESIGNS,
    FIGURE_KINDS,
    HTTP_ROUTES,
    METRIC_READERS,
)
