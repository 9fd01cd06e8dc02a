"""The study file: models that mirror the YAML, key by key, and the source of the JSON Schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    create_model,
    field_validator,
)

from penstock.platform.file import PowerFile
from penstock.plugins import DESIGNS, OBSERVERS, RESPONSE_KINDS
from penstock.spec.alert import MOST_RULES, parse_rule
from penstock.spec.application import (
    checked_command_interval,
    checked_commands,
    checked_files,
    checked_patterns,
)
from penstock.spec.fields import expect, quantity
from penstock.spec.machine import Patterns, PlatformFile
from penstock.spec.names import listed
from penstock.spec.quantities import (
    TEXT_OR_NUMBER,
    Duration,
    Interval,
    Mutates,
    Part,
    PositiveDuration,
    Share,
    Size,
    Text,
    UnitText,
)
from penstock.spec.study import Basis, Direction, Take
from penstock.spec.units import parse_bandwidth, parse_duration
from penstock.workload.traced import MEASURES


def _study_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise expect("a name of letters, digits, '.', '_' and '-' (at most 64), such as my-study")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise expect(f"a regular expression ({error})") from None
    return text


def _rule(text: str) -> str:
    try:
        parse_rule(text)
    except ValueError as error:
        raise expect(str(error)) from None
    return text


_T = TypeVar("_T")


def _checked_by(check: Callable[[_T], object]) -> Callable[[_T], _T]:
    """A validator from a check function."""

    def checked(value: _T) -> _T:
        try:
            check(value)
        except ValueError as error:
            raise expect(str(error)) from None
        return value

    return checked


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise expect("a finite number")
    return value


Finite = Annotated[float | int, AfterValidator(_finite)]


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", text):
        raise expect("a name of letters, digits, '.', '_', '+' and '-', such as mkfs.ext4")
    return text


def _suite(text: str) -> str:
    if text and not re.fullmatch(r"[a-z][a-z0-9-]{0,31}", text):
        raise expect("the name of a Debian release, such as trixie")
    return text


class FactorFile(Part):
    """One factor."""

    levels: list[Any] | dict[str, Any] = Field(
        description="Names of the levels, each also its value in templates; or name: value."
    )
    unit: UnitText | None = Field(None, description="Unit of the values, for tables and figures.")
    change: Literal["none", "remount", "restart", "reformat", "redeploy"] = Field(
        "none", description="Action that a change of this factor requires."
    )
    change_cost: Duration | None = Field(
        None,
        description="Time of a change of this factor; by default remount 1 s, restart 5 s, reformat "
        "15 s, redeploy 60 s.",
    )


class FractionFile(Part):
    """A regular fraction 2^(K−P)."""

    fraction: Annotated[int, Field(ge=1, description="P: 1 is the half fraction, 2 a quarter, …")]


_KINDS = f"full, {{fraction: 1}}, {listed([name for name in DESIGNS if name != 'full'])}"


def _kind_tag(value: Any) -> str:
    added = set(DESIGNS) - {"full"}
    if isinstance(value, str):
        return "other" if value in added else "full"
    if not isinstance(value, dict):
        return "full"
    if len(value) == 1 and set(value) <= added:
        return "other"
    return "fraction" if "fraction" in value or not value else "full"


def _full(value: Any) -> Any:
    if value != "full":
        raise expect(_KINDS)
    return value


def _with_options(value: Any) -> Any:
    return {value: {}} if isinstance(value, str) else value


def _mapping_or(expected: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise expect(expected)
        return value

    return check


Kind = Annotated[
    Annotated[Literal["full"], BeforeValidator(_full), Tag("full")]
    | Annotated[FractionFile, BeforeValidator(_mapping_or(_KINDS)), Tag("fraction")]
    | Annotated[dict[str, dict[str, Any]], BeforeValidator(_with_options), Tag("other")],
    Discriminator(_kind_tag),
]


class BudgetFile(Part):
    """Limits of the cost of a study."""

    runs: int | None = Field(
        None, ge=2, description="Largest number of runs, including replicates."
    )
    hours: float | int | None = Field(
        None, gt=0, le=100_000, description="Largest number of hours, by the plan's estimate."
    )


class PilotFile(Part):
    """Variation between runs of one treatment."""

    variation: Share = Field(
        description="Standard deviation of the runs, in percent of their mean."
    )
    runs: int = Field(ge=2, le=100_000, description="Degrees of freedom of the variation, plus 1.")


class SequentialFile(Part):
    """Later runs that earlier ones determine: screening, search, and interleaved confirmation."""

    runs: int = Field(
        ge=4, le=20_000, description="Largest number of runs, including those of the confirmation."
    )
    alpha: Share = Field(
        "5%", description="Probability of any false effect in screening, over all looks."
    )
    spending: Literal["pocock", "obrien-fleming"] = Field(
        "pocock",
        description="Distribution of alpha over the looks: pocock spends much early, obrien-fleming "
        "nearly all at the end.",
    )
    stop: Literal["rivals", "decided"] = Field(
        "rivals",
        description="End of screening. rivals: no active effect has a plausible rival; decided: also "
        "when each effect is clear of the difference `detect` or within it.",
    )
    search: Literal["gaussian-process", "trees", "optuna"] = Field(
        "gaussian-process", description="Method that chooses settings after screening."
    )
    search_runs: int = Field(
        0,
        ge=0,
        le=2000,
        description="Number of runs that search for a better setting after screening.",
    )
    confirm: int = Field(
        5,
        ge=2,
        le=100,
        description="Number of pairs of the chosen and the default setting at the end.",
    )
    default: dict[str, Any] = Field(
        {}, description="The default setting: level by factor; by default the first level."
    )


class LimitsFile(Part):
    """Limits of a study; one that reaches a limit ends with the results so far."""

    runs: int | None = Field(
        None, ge=1, le=1_000_000, description="Number of runs, including repeated ones."
    )
    time: PositiveDuration | None = Field(
        None, description="Time in progress, over all resumptions."
    )
    energy: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="Energy of the host by its meter [J], over all resumptions.",
    )


class RetryFile(Part):
    """Repetitions of an invalid run, by the reason; decided before its responses are read."""

    state: int = Field(
        1,
        ge=0,
        le=10,
        description="The run did not start in the declared state: page cache, write-back, levels.",
    )
    disk: int = Field(
        1, ge=0, le=10, description="An emulated disk did not deliver what its profile specifies."
    )
    losses: int = Field(1, ge=0, le=10, description="Observers lost events or samples.")
    degraded: int = Field(
        0,
        ge=0,
        le=1,
        description="The host or the request path delayed the run by a measured bound; it is used in "
        "any case.",
    )
    failed: int = Field(
        0, ge=0, le=10, description="The command ended with a status other than 0 or was killed."
    )
    timed_out: int = Field(0, ge=0, le=10, description="The command exceeded its time-out.")


class OutliersFile(Part):
    """Thresholds of flagged outliers, which stay in the data; both analyses are reported."""

    mads: Finite = Field(
        14.826,
        ge=3,
        le=1000,
        description="Median absolute deviations from the median of a treatment of five or more runs; "
        "14.826 are ten standard deviations.",
    )
    chance: Share = Field(
        "5%",
        description="Probability that a study without outliers has a run that is flagged by its "
        "studentised residual.",
    )


class DesignFile(Part):
    """Treatments to run, replicates, and order."""

    kind: Kind | None = Field(
        None,
        description="full, {fraction: P} for 2^(K−P) treatments, or a kind and its options; by "
        "default chosen for the purpose.",
    )
    purpose: Literal["screen", "estimate", "optimise", "compare"] | None = Field(
        None,
        description="Purpose of the runs. screen: few runs, main effects; estimate: clear "
        "interactions; optimise: the best setting; compare: all treatments with each "
        "other.",
    )
    budget: BudgetFile | None = Field(None, description="Limits of the runs.")
    detect: Share | None = Field(
        None,
        description="Difference of level means to be detected with 80 % power in a single test, in "
        "percent of the mean.",
    )
    pilot: PilotFile | Text | None = Field(
        None,
        description="Variation of runs: the results of an earlier study, or {variation: 3%, runs: 5}.",
    )
    forbidden: list[dict[str, Any]] = Field(
        [], description="Combinations that are not run, such as {disk: hdd, jobs: [8, 16]}."
    )
    generators: list[Text] = Field(
        [], description="Own generators of the fraction, such as `jobs = disk*pattern*block`."
    )
    replicates: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Number of complete passes over all treatments; 2, or as many as `detect` needs.",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of the order.")
    order: Literal[
        "auto", "interleaved", "random", "split-plot", "split-plot-random", "strip-plot", "standard"
    ] = Field(
        "auto",
        description="interleaved: each replicate is a complete shuffled pass; random: all runs in one"
        " random order; split-plot, strip-plot: settings that are expensive to change are"
        " retained; standard: not shuffled; auto: interleaved, or an order whose savings "
        "justify it.",
    )
    block_size: int | None = Field(
        None,
        ge=2,
        description="Number of runs of a block, a power of two: passes of two-level designs are "
        "divided into such blocks, which absorb drift within a pass.",
    )
    noise: Share = Field("5%", description="Assumed variation between runs, for the power.")
    sequential: SequentialFile | None = Field(
        None, description="Earlier runs determine later ones (docs/augment.md)."
    )


class QuickFile(Part):
    """Values that `--quick` uses instead of the workload's own."""

    prepare: Text | None = Field(None, description="Shorter preparation.")
    command: Text | None = Field(None, description="Shorter command.")
    timeout: PositiveDuration | None = Field(None, description="Shorter time-out.")
    expected: PositiveDuration | None = Field(None, description="Expected time of a run.")


def _port(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise expect("a TCP port, from 1 to 65535")
    return value


class ReadyFile(Part):
    """Condition of a service being up; one of these."""

    port: Annotated[int, BeforeValidator(_port)] | None = Field(
        None, description="TCP port of the node on which a program listens."
    )
    log: Annotated[Text, AfterValidator(_pattern)] | None = Field(
        None, description="Regular expression that matches its output."
    )
    command: Text | None = Field(None, description="Command in the node that succeeds.")


class ServiceFile(Part):
    """A command that must be up before the measured one starts; stopped by pid after it."""

    name: Annotated[Text, AfterValidator(_study_name)] = Field(description="Name of the service.")
    command: Text = Field(description="Shell command (template) that stays in the foreground.")
    on: Patterns = Field([], description="Nodes: names or patterns, or all; by default the first.")
    ready: ReadyFile | None = Field(None, description="Condition of being up; by default at once.")
    within: PositiveDuration = Field("60s", description="Time limit for being up.")
    stop: Literal["TERM", "INT", "QUIT", "HUP", "KILL"] = Field(
        "TERM", description="Signal that ends it."
    )
    user: Text | None = Field(None, description="User that runs it.")


class HooksFile(Part):
    """Commands around a run that set its levels; not measured. Each runs on the nodes of the command."""

    redeploy: Text | None = Field(
        None,
        description="Shell command (template) after a change of a factor with change: redeploy.",
    )
    reformat: Text | None = Field(
        None, description="The same for change: reformat, and after each redeploy."
    )
    restart: Text | None = Field(
        None, description="The same for change: restart, and after each of the above."
    )
    remount: Text | None = Field(
        None, description="The same for change: remount, and after each of the above."
    )
    apply: Text | None = Field(
        None, description="Shell command (template) before each run, after the actions."
    )
    verify: Text | None = Field(
        None,
        description="Shell command (template) before each run; if it fails, the run is invalid.",
    )
    undo: Text | None = Field(
        None,
        description="Shell command (template) after the last run, with the levels of that run.",
    )


class WorkloadFile(Part):
    """The workload of a run."""

    command: Text = Field(description="Shell command (template) that is measured.")
    prepare: Text | None = Field(
        None, description="Shell command (template) that creates the data, on plain, fast disks."
    )
    mutates: Mutates = Field(
        True,
        description="The command changes the prepared data. contents: it changes the contents of "
        "files only, which other runs do not depend on.",
    )
    after: Text | None = Field(None, description="Shell command (template) after each run.")
    timeout: PositiveDuration = Field("10min", description="A run that takes longer has failed.")
    expected: PositiveDuration | None = Field(
        None, description="Expected time of a run, for the plan's estimate."
    )
    parser: Text = Field(
        "none",
        description="fio, pgbench, sysbench, ycsb, db_bench, hammerdb, or none (wall time, regex, json).",
    )
    user: Text | None = Field(None, description="User that runs the command.")
    env: dict[str, Annotated[Any, TEXT_OR_NUMBER]] = Field(
        {}, description="Environment variables (values are templates)."
    )
    pass_env: list[Text] = Field(
        [], description="Variables of the caller's environment that virtual nodes get as well."
    )
    directory: Text | None = Field(None, description="Working directory (template).")
    on: Patterns = Field(
        [],
        description="Nodes that run the command at the same time: names, patterns, or all; by default"
        " the first.",
    )
    services: list[ServiceFile] = Field(
        [], description="Services that must be up on nodes before the command."
    )
    hooks: HooksFile = Field(
        HooksFile.model_validate({}), description="Commands that set the levels of a run."
    )
    quick: QuickFile | None = Field(None, description="Changes by `--quick`.")


class TextFile(Part):
    """A number in a text that the program wrote."""

    expression: str
    file: Text = Field("stdout", description="stdout, stderr, or a file in {run_dir}.")

    @property
    def kind(self) -> str:
        """Kind of the response: a row of `penstock.plugins.RESPONSE_KINDS`."""
        return str(type(self).model_fields["expression"].alias)


def _in_a_text(kind: str) -> Any:
    """The model of `{KIND: expression, file: …}`."""

    def check(text: str) -> str:
        if expected := RESPONSE_KINDS.load(kind).expected(text):
            raise expect(expected)
        return text

    is_own = kind in RESPONSE_KINDS.own
    what = RESPONSE_KINDS.load(kind).WHAT if is_own else "Added by another package."
    field: Any = Annotated[Text, AfterValidator(check)], Field(alias=kind, description=what)
    more: dict[str, Any] = {}
    if is_own and getattr(RESPONSE_KINDS.load(kind), "HAS_DECIMAL_MARK", False):
        mark = "Decimal mark of the number, where the number does not show it (1,234)."
        more["decimal"] = (Literal[".", ","] | None, Field(None, description=mark))
    model = create_model(f"{kind.title()}File", __base__=TextFile, expression=field, **more)
    model.__doc__ = TextFile.__doc__
    return Annotated[model, Tag(kind)]


def _expression(text: str) -> str:
    from penstock.archive.series.expression import fault_of

    if fault := fault_of(text):
        raise expect(f"an expression of series; {fault}")
    return text


class SeriesFile(Part):
    """A number from a series that the monitor or a collector recorded during the run."""

    series: Annotated[Text, AfterValidator(_expression)] = Field(
        description="One series: its name, or an expression of series such as sum(power_watts)."
    )
    take: Take = Field(
        "mean",
        description="Value of the series: mean over time, integral over time (W: J), min, max, first,"
        " last, median, p95, p99 or sum of its values.",
    )
    phase: Text = Field("workload", description="Phase of the run to which the value refers.")


def _measure(name: str) -> str:
    if name not in MEASURES:
        raise expect(f"one of {', '.join(MEASURES)}")
    return name


class TracedFile(Part):
    """A number from the accesses to files that the tracer recorded during the run."""

    trace: Annotated[Text, AfterValidator(_measure)] = Field(
        description=f"Measure: {', '.join(MEASURES)}."
    )
    file: Text = Field(
        "*", description="Files by path or name, with * and ?; all files by default."
    )
    direction: Direction | None = Field(
        None, description="Direction: only read or only write; both by default."
    )
    basis: Basis = Field(
        "calls",
        description="calls; faults: page faults of mapped files; device: requests at the device, with"
        " observers.trace.layers.",
    )


class EnergyFile(Part):
    """The energy of the run by the power model."""

    energy: PowerFile = Field(
        description="Powers of a host, as in a platform file; they apply to every node of the run."
    )
    processors: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Number of processors to which the power app refers; by default those of this "
        "host.",
    )


def _from_tag(value: Any) -> str:
    for kind in ("series", "trace", "energy"):
        if isinstance(value, dict) and kind in value:
            return kind
    if isinstance(value, dict):
        return next((kind for kind in RESPONSE_KINDS if kind in value), next(iter(RESPONSE_KINDS)))
    return "key"


_FROM = ", ".join(
    [
        "a response of the parser",
        *(f"{{{kind}: …}}" for kind in (*RESPONSE_KINDS, "series", "trace", "energy")),
    ]
)
_FROM = " or ".join(_FROM.rsplit(", ", 1))


def _key(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise expect(_FROM)
    return value


if TYPE_CHECKING:
    From = str | TextFile | SeriesFile | TracedFile | EnergyFile
else:
    From = Annotated[
        Union[
            Annotated[str, BeforeValidator(_key), Tag("key")],
            Annotated[SeriesFile, Tag("series")],
            Annotated[TracedFile, Tag("trace")],
            Annotated[EnergyFile, Tag("energy")],
            *map(_in_a_text, RESPONSE_KINDS),
        ],
        Discriminator(_from_tag),
    ]


class DesireFile(Part):
    """Desirability of values of a response relative to other responses: `worst` and `best`, or a target."""

    worst: Finite | None = Field(None, description="Value with desirability 0.")
    best: Finite | None = Field(None, description="Value with desirability 1.")
    low: Finite | None = Field(None, description="With a target: lower limit, with desirability 0.")
    target: Finite | None = Field(None, description="Desired value.")
    high: Finite | None = Field(
        None, description="With a target: upper limit, with desirability 0."
    )
    weight: Finite = Field(
        1,
        gt=0,
        le=10,
        description="Exponent of the desirability in between; above 1 requires values near the best.",
    )
    importance: Finite = Field(
        1, gt=0, le=10, description="Weight of the response in the geometric mean of all."
    )


class ResponseFile(Part):
    """One response."""

    source: From = Field(
        alias="from", description=_FROM.replace("a response", "A response") + "; or wall_s."
    )
    unit: UnitText = Field(description="Unit of the response; values of the parser are converted.")
    better: Literal["higher", "lower"] = Field(description="Better direction.")
    scale: Literal["auto", "linear", "log", "box-cox", "rank"] = Field(
        "auto",
        description="Scale of the effects; auto: log (ratios) if the means of treatments differ "
        "threefold and the spread of the runs does not contradict it, else linear.",
    )
    desire: DesireFile | None = Field(
        None, description="Desirability of values, if several responses are combined."
    )


class MonitorFile(Part):
    """The sampler."""

    interval: Interval = Field(
        "1s",
        description="Sampling interval, 10ms to 1h; at most 100ms in a run that ends within ten "
        "seconds.",
    )
    block_latency: bool = Field(
        False,
        description="Latency histograms of block devices, by BPF; requirements as for tracing.",
    )
    processes: bool = Field(
        False,
        description="Each process of the run: processor time, memory, threads, bytes.",
    )
    processes_named: Annotated[list[Text], AfterValidator(_checked_by(checked_patterns))] = Field(
        [], description="Patterns (* and ?) of names of further processes of the host."
    )
    files: Annotated[dict[str, Text], AfterValidator(_checked_by(checked_files))] = Field(
        {}, description="Files that begin with a number, read with each sample: NAME: /PATH."
    )
    metrics: Annotated[dict[str, Text], AfterValidator(_checked_by(checked_commands))] = Field(
        {}, description="Commands for /bin/sh that print a number: NAME: COMMAND."
    )
    metric_interval: Annotated[
        Duration, AfterValidator(_checked_by(lambda t: checked_command_interval(parse_duration(t))))
    ] = Field("1s", description="Interval of these commands, at least 1s.")


class TraceFile(Part):
    """The tracer."""

    mode: Literal["trace", "pattern"] = Field(
        "trace", description="Record every event, or patterns only."
    )
    files: list[Text] = Field([], description="Only these files of the host.")
    directories: list[Text] = Field(
        [], description="Only files below these directories of the host."
    )
    endings: list[Annotated[Text, StringConstraints(max_length=24, pattern="^[^/]+$")]] = Field(
        [], description="Only files whose names have these endings (.wt), on any disk."
    )
    only: Direction | None = Field(None, description="Only reads or only writes.")
    hot: Literal["requests", "bytes"] | None = Field(
        None,
        description="With mode trace: record the calls of the fewest files that cover 90 % of "
        "requests (or bytes); count the others.",
    )
    layers: bool = Field(
        False,
        description="Record the page cache and block devices too; for disks that are directories.",
    )


class _Observers(Part):
    """Observers of each run."""

    monitor: MonitorFile | None = Field(
        MonitorFile.model_validate({}), description="Samples of the host and the run; null: none."
    )
    trace: TraceFile | None = Field(None, description="I/O calls of the run; null: none.")
    collect: dict[str, dict[str, Any]] | None = Field(
        None,
        description="Collectors by name, with the keys of the configuration of a server "
        "(docs/collectors.md): `{power: {type: snmp, host: pdu, outlets: [...]}}`.",
    )

    def others(self) -> dict[str, dict[str, Any]]:
        """Settings of observers that other packages add."""
        added = set(type(self).model_fields) - set(_Observers.model_fields)
        values = {name: getattr(self, name) for name in sorted(added)}
        return {name: settings for name, settings in values.items() if settings is not None}


if TYPE_CHECKING:
    ObserversFile = _Observers
else:
    ObserversFile = create_model(
        "ObserversFile",
        __base__=_Observers,
        __doc__=_Observers.__doc__,
        **{
            name: (dict[str, Any] | None, Field(None, description="Added by another package."))
            for name in OBSERVERS
            if name not in _Observers.model_fields
        },
    )


class SettleFile(Part):
    """State at the start of each run."""

    sync: bool = Field(True, description="Write back dirty pages first.")
    drop_caches: bool = Field(True, description="Drop the data from the page cache first.")
    resident_at_most: Share | None = Field(
        "1%", description="Largest share of the data in the page cache at the start (cold)."
    )
    resident_at_least: Share | None = Field(
        None, description="Smallest share of the data in the page cache at the start (warm)."
    )
    dirty_at_most: Size | None = Field(
        None, description="Largest number of dirty bytes of this host at the start."
    )
    in_flight_at_most: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Largest number of requests in flight on the device of each disk at the start. "
        "The number is recorded in any case.",
    )
    discard: bool = Field(
        False, description="Discard the free space of file systems of plain disks first (fstrim)."
    )
    idle: Duration = Field("0s", description="Idle time before each run.")


class WorkerFile(Part):
    """A host that makes runs."""

    name: Annotated[Text, AfterValidator(_study_name)] = Field(description="Name of the host.")
    ssh: Text | None = Field(None, description="ssh destination, such as root@host.")
    ssh_options: list[Text] = Field([], description="Further arguments of ssh.")
    netns: Text | None = Field(
        None, description="Instead of ssh: a network namespace of this host, by name or path."
    )
    python: Text | None = Field(
        None, description="Python with penstock on that host; by default the path of this one."
    )


class HostsFile(Part):
    """Hosts in addition to this one: each block of the design is made on one of them."""

    listen: Text = Field(description="Address of this host for the others.")
    workers: list[WorkerFile] = Field(min_length=1, description="Hosts that make runs.")


class GuestDiskFile(Part):
    """A disk of a guest, empty when it boots: /dev/vdb, /dev/vdc, …"""

    size: Size = Field(description="Size of the disk.")
    bandwidth: Text | None = Field(None, description="Largest rate, such as 80 MB/s.")
    iops: int | None = Field(
        None, ge=1, le=10_000_000, description="Largest number of requests per second."
    )

    @field_validator("bandwidth")
    @classmethod
    def _bandwidth(cls, value: str | None) -> str | None:
        return value if value is None else quantity(parse_bandwidth, "80 MB/s")(value)


class GuestFile(Part):
    """A virtual machine in which the runs take place, for features that this host's kernel lacks."""

    kernel: Annotated[str, AfterValidator(_suite)] = Field(
        "", description="Debian release of the kernel; by default that of this host."
    )
    modules: list[Annotated[str, AfterValidator(_word)]] = Field(
        [], description="Kernel modules to load."
    )
    programs: list[Annotated[str, AfterValidator(_word)]] = Field(
        [], description="Programs of this host to copy, besides bash and busybox."
    )
    memory: Size = Field("1GiB", description="Memory of the machine.")
    cpus: int = Field(2, ge=1, le=64, description="Number of processors.")
    disks: list[GuestDiskFile] = Field([], max_length=16, description="Disks of the machine.")
    files: list[Text] = Field(
        [], description="Files and directories next to the study file that are copied to /job."
    )


class StudyFile(Part):
    """A penstock study."""

    penstock: int = Field(ge=1, le=1, description="Version of this format: 1.")
    name: Annotated[Text, AfterValidator(_study_name)] = Field(description="Name of the study.")
    question: Text = Field(description="Question of the study, in a sentence.")
    factors: dict[str, FactorFile] = Field(min_length=1, description="Factors that vary.")
    design: DesignFile = Field(
        DesignFile.model_validate({}),
        description="Treatments to run, replicates, and order.",
    )
    platform: PlatformFile = Field(description="Platform of the workload.")
    workload: WorkloadFile = Field(description="Workload of a run.")
    responses: dict[str, ResponseFile] = Field(min_length=1, description="Measured responses.")
    observers: ObserversFile = Field(
        ObserversFile.model_validate({}), description="Observers of each run."
    )
    settle: SettleFile = Field(
        SettleFile.model_validate({}), description="State at the start of each run."
    )
    hosts: HostsFile | None = Field(None, description="Other hosts that make the runs.")
    guest: GuestFile | None = Field(
        None, description="Virtual machine in which the runs take place (docs/guest.md)."
    )
    limits: LimitsFile = Field(LimitsFile.model_validate({}), description="Limits of the study.")
    alerts: list[Annotated[Text, AfterValidator(_rule)]] = Field(
        [],
        max_length=MOST_RULES,
        description="Alert rules on the monitor's samples, such as `disk_busy > 90% for 5s then "
        "abort`; a rule that aborts ends the run, which is then invalid.",
    )
    retry: RetryFile = Field(
        RetryFile.model_validate({}),
        description="Number of repetitions of invalid runs, by cause.",
    )
    outliers: OutliersFile = Field(
        OutliersFile.model_validate({}),
        description="Rules for flagging outlying runs, which stay in the data.",
    )
