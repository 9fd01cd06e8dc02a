"""The study file, key by key: these models mirror the YAML, and the JSON Schema is made from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from penstock.study.fields import expect, quantity, schema
from penstock.study.units import (
    UNIT_EXAMPLES,
    parse_duration,
    parse_share,
    parse_size,
    parse_unit,
)


def _positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("a duration above 0, such as 60s")
    return seconds


def _interval(text: str) -> float:
    seconds = parse_duration(text)
    if not 0.01 <= seconds <= 3600:
        raise ValueError("a duration from 10ms to 1h")
    return seconds


_DURATION_SCHEMA = schema(r"^\s*[0-9.eE+]+\s*(ns|us|µs|ms|s|min|h|d)\s*$", "60s")
_SHARE_SCHEMA = schema(r"^\s*[0-9.eE+]+\s*%\s*$", "1%")

Duration = Annotated[
    str,
    BeforeValidator(quantity(parse_duration, "a duration with its unit, such as 60s or 10ms")),
    _DURATION_SCHEMA,
]
PositiveDuration = Annotated[
    str,
    BeforeValidator(quantity(_positive_duration, "a duration with its unit, such as 60s")),
    _DURATION_SCHEMA,
]
Interval = Annotated[
    str,
    BeforeValidator(quantity(_interval, "a duration with its unit, from 10ms to 1h, such as 1s")),
    _DURATION_SCHEMA,
]
Share = Annotated[
    str, BeforeValidator(quantity(parse_share, "a share in percent, such as 1%")), _SHARE_SCHEMA
]


def _not_empty(text: str) -> str:
    if not text.strip():
        raise expect("text that is not empty")
    return text


def _unit(text: str) -> str:
    try:
        parse_unit(text)
    except ValueError:
        raise expect(f"a unit, such as {UNIT_EXAMPLES}") from None
    return text


def _unit_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _study_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise expect("a name of letters, digits, '.', '_' and '-' (at most 64), such as my-study")
    return text


def _regex(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise expect(f"a regular expression ({error})") from None
    if groups != 1:
        raise expect("a regular expression with exactly one group ( ), which holds the number")
    return text


def _scale(value: Any) -> Any:
    """A number above 0, or a template; as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise expect("a number above 0, such as 4, or a template")
    if not (isinstance(value, str) and "{" in value):
        try:
            number = float(value)
        except ValueError:
            raise expect("a number above 0, such as 4, or a template") from None
        if not (math.isfinite(number) and number > 0):
            raise expect("a number above 0, such as 4")
    return str(value)


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str):
        raise expect("a size with its unit, such as 512MiB, or a template")
    if "{" not in value:
        try:
            if parse_size(value) <= 0:
                raise ValueError("a size above 0, such as 512MiB")
        except ValueError as error:
            raise expect(str(error)) from None
    return value


def _mutates(value: Any) -> Any:
    if not (isinstance(value, bool) or value == "contents"):
        raise expect("true, false or contents")
    return value


_TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
Text = Annotated[str, AfterValidator(_not_empty)]
UnitText = Annotated[str, BeforeValidator(_unit_text), AfterValidator(_unit)]
Size = Annotated[str, BeforeValidator(_size)]
Mutates = Annotated[
    bool | Literal["contents"],
    BeforeValidator(_mutates),
    WithJsonSchema({"enum": [True, False, "contents"]}),
]
Scale = Annotated[str, BeforeValidator(_scale), _TEXT_OR_NUMBER]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


class FactorFile(_Part):
    """One factor."""

    levels: list[Any] | dict[str, Any] = Field(
        description="Names of the levels (each also the value that templates get), or name: value."
    )
    unit: UnitText | None = Field(None, description="Unit of the values, for tables and figures.")
    change_cost: Duration = Field("0s", description="Time that changing this factor costs.")


class FractionFile(_Part):
    """A regular fraction 2^(K−P)."""

    fraction: Annotated[int, Field(ge=1, description="P: 1 is the half fraction, 2 a quarter, …")]


def _kind_tag(value: Any) -> str:
    return "full" if isinstance(value, str) else "fraction"


def _full(value: Any) -> Any:
    if value != "full":
        raise expect("full, or {fraction: 1}")
    return value


def _mapping_or(expected: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise expect(expected)
        return value

    return check


Kind = Annotated[
    Annotated[Literal["full"], BeforeValidator(_full), Tag("full")]
    | Annotated[
        FractionFile, BeforeValidator(_mapping_or("full, or {fraction: 1}")), Tag("fraction")
    ],
    Discriminator(_kind_tag),
]


class DesignFile(_Part):
    """Which treatments are run, how often, in which order."""

    kind: Kind = Field(description="full, or {fraction: P} for 2^(K−P) treatments.")
    generators: list[Text] = Field(
        [], description="Own generators of the fraction, such as `jobs = disk*pattern*block`."
    )
    replicates: int = Field(2, ge=1, le=1000, description="Complete passes over all treatments.")
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of the order.")
    order: Literal["interleaved", "standard"] = Field(
        "interleaved",
        description="interleaved: each replicate is a complete shuffled pass; standard: not shuffled.",
    )
    noise: Share = Field("5%", description="Assumed variation between runs, for the power figures.")


class DiskFile(_Part):
    """One disk of a node."""

    name: Text = Field(description="What templates call the disk's directory: `{name}`.")
    profile: Text | None = Field(
        None, description="Ready profile, JSON file beside the study, or template."
    )
    directory: Text | None = Field(
        None, description="Instead of a profile: a host directory to measure as it is."
    )
    time_scale: Scale = Field("1", description="How many times slower than the profile; > 0.")
    size: Size | None = Field(None, description="Space the disk's data needs at most.")
    mount: Text | None = Field(None, description="Where to mount it; default: chosen by penstock.")


class MachineFile(_Part):
    """What a virtual node and a host of a platform file have in common."""

    memory: Size | None = Field(None, description="Memory limit, page cache included.")
    cpus: Scale | None = Field(None, description="Processors that the node may use.")
    disks: list[DiskFile] = Field([], description="Its disks, emulated or plain directories.")


class NodeFile(MachineFile):
    """One node."""

    name: Text = Field(description="The node's name.")


class PlatformFile(_Part):
    """What the workload runs on."""

    nodes: list[NodeFile] = Field(min_length=1, description="Nodes; at least one.")


class QuickFile(_Part):
    """What `--quick` puts in place of the workload's own."""

    prepare: Text | None = Field(None, description="Shorter preparation.")
    command: Text | None = Field(None, description="Shorter command.")
    timeout: PositiveDuration | None = Field(None, description="Shorter time-out.")
    expected: PositiveDuration | None = Field(None, description="Expected time of a run.")


class WorkloadFile(_Part):
    """What is run."""

    command: Text = Field(description="Shell command (template) that is measured.")
    prepare: Text | None = Field(
        None, description="Shell command (template) that makes the data; disks are plain and fast."
    )
    mutates: Mutates = Field(
        True,
        description="The command changes the prepared data; contents: only what is inside its files, "
        "and no run minds.",
    )
    after: Text | None = Field(None, description="Shell command (template) after each run.")
    timeout: PositiveDuration = Field("10min", description="A run that takes longer has failed.")
    expected: PositiveDuration | None = Field(
        None, description="Time that a run is expected to take, for the plan's estimate."
    )
    parser: Text = Field("none", description="fio, pgbench, or none (wall time, regex, json).")
    user: Text | None = Field(None, description="User to run the command as.")
    env: dict[str, Annotated[Any, _TEXT_OR_NUMBER]] = Field(
        {}, description="Environment variables (values are templates)."
    )
    directory: Text | None = Field(None, description="Working directory (template).")
    quick: QuickFile | None = Field(None, description="What `--quick` changes.")


class RegexFile(_Part):
    """A number found by a regular expression."""

    regex: Annotated[Text, AfterValidator(_regex)] = Field(
        description="Regular expression with one group; the last match counts."
    )
    file: Text = Field("stdout", description="stdout, stderr, or a file in {run_dir}.")


class JsonFile(_Part):
    """A number in a JSON text."""

    json_path: Text = Field(alias="json", description="Path such as jobs.0.read.bw_bytes.")
    file: Text = Field("stdout", description="stdout, stderr, or a file in {run_dir}.")


def _from_tag(value: Any) -> str:
    if isinstance(value, dict):
        return "json" if "json" in value and "regex" not in value else "regex"
    return "key"


def _key(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise expect("a response of the parser, {regex: …} or {json: …}")
    return value


From = Annotated[
    Annotated[str, BeforeValidator(_key), Tag("key")]
    | Annotated[RegexFile, Tag("regex")]
    | Annotated[JsonFile, Tag("json")],
    Discriminator(_from_tag),
]


class ResponseFile(_Part):
    """One response."""

    source: From = Field(
        alias="from", description="A response of the parser, wall_s, {regex: …} or {json: …}."
    )
    unit: UnitText = Field(description="Unit of the response; what the parser gives is converted.")
    better: Literal["higher", "lower"] = Field(description="Which direction is better.")


class MonitorFile(_Part):
    """The sampler."""

    interval: Interval = Field("1s", description="Period, 10ms to 1h.")


class TraceFile(_Part):
    """The tracer."""

    mode: Literal["trace", "pattern"] = Field("trace", description="Every event, or patterns only.")


class ObserversFile(_Part):
    """What watches each run."""

    monitor: MonitorFile | None = Field(
        MonitorFile.model_validate({}), description="Samples of the host and the run; null: none."
    )
    trace: TraceFile | None = Field(None, description="I/O calls of the run; null: none.")


class SettleFile(_Part):
    """The state that each run starts from."""

    sync: bool = Field(True, description="Write back dirty pages first.")
    drop_caches: bool = Field(True, description="Drop the page cache of the data first.")
    resident_at_most: Share | None = Field(
        "1%", description="Share of the data in the page cache at the start: at most (cold)."
    )
    resident_at_least: Share | None = Field(
        None, description="Share of the data in the page cache at the start: at least (warm)."
    )
    idle: Duration = Field("0s", description="Quiet time before each run.")


class StudyFile(_Part):
    """A penstock study."""

    penstock: int = Field(ge=1, le=1, description="Version of this format: 1.")
    name: Annotated[Text, AfterValidator(_study_name)] = Field(description="The study's name.")
    question: Text = Field(description="What the study asks, in a sentence.")
    factors: dict[str, FactorFile] = Field(min_length=1, description="What is varied.")
    design: DesignFile = Field(description="Which treatments are run, how often, in which order.")
    platform: PlatformFile = Field(description="What the workload runs on.")
    workload: WorkloadFile = Field(description="What is run.")
    responses: dict[str, ResponseFile] = Field(min_length=1, description="What is measured.")
    observers: ObserversFile = Field(
        ObserversFile.model_validate({}), description="What watches each run."
    )
    settle: SettleFile = Field(
        SettleFile.model_validate({}), description="The state that each run starts from."
    )
