"""Values of a study's keys: quantities as text with their unit, most of them also as templates.

A template (`"{limit}"`) is accepted unchanged here; its values are validated after substitution, in the
context `without_templates`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema

from penstock.spec.fields import expect, quantity, schema
from penstock.spec.names import listed, suggestion
from penstock.spec.privileges import parse_privilege
from penstock.spec.units import (
    MOST_BYTES,
    UNIT_EXAMPLES,
    parse_bandwidth,
    parse_bounded_size,
    parse_duration,
    parse_quantity,
    parse_share,
    parse_size,
    parse_unit,
)

#: a time scale chosen by penstock
AUTO = "auto"
#: removes a limit
MAX = "max"
#: limits outside of this range are assumed to be mistakes [B/s, 1/s]
LEAST_BPS, MOST_BPS = 1000.0, 1e12
LEAST_IOPS, MOST_IOPS = 0.1, 1e9


class Part(BaseModel):
    """Base of all parts of a file: unknown keys are errors, values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


def is_template(value: Any) -> bool:
    """True if a text still contains the name of a factor (or a brace)."""
    return isinstance(value, str) and "{" in value


#: True while validators accept a template in place of a value
_TEMPLATES = ContextVar("templates", default=True)


@contextlib.contextmanager
def without_templates() -> Iterator[None]:
    """Reject templates in values that are validated in this context, as all of them are filled in."""
    token = _TEMPLATES.set(False)
    try:
        yield
    finally:
        _TEMPLATES.reset(token)


def _accepted(value: Any) -> bool:
    """True for a template where validators accept one."""
    return _TEMPLATES.get() and is_template(value)


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


def _scale(value: Any) -> Any:
    """A number above 0, or a template; as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise expect("a number above 0, such as 4, or a template")
    if not _accepted(value):
        try:
            number = float(value)
        except ValueError:
            raise expect("a number above 0, such as 4, or a template") from None
        if not (math.isfinite(number) and number > 0):
            raise expect("a number above 0, such as 4")
    return str(value)


def _time_scale(value: Any) -> Any:
    """Like `_scale`, or `auto`."""
    if isinstance(value, str) and value.strip() == AUTO:
        return AUTO
    try:
        return _scale(value)
    except PydanticCustomError:
        raise expect("a number above 0, such as 4, auto, or a template") from None


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str):
        raise expect("a size with its unit, such as 512MiB, or a template")
    if not _accepted(value):
        try:
            if parse_bounded_size(value) <= 0:
                raise ValueError("a size above 0, such as 512MiB")
        except ValueError as error:
            raise expect(str(error)) from None
    return value


def _mutates(value: Any) -> Any:
    if not (isinstance(value, bool) or value == "contents"):
        raise expect("true, false or contents")
    return value


def templated(
    parse: Callable[[str], Any], expected: str, *, numbers: bool = False
) -> BeforeValidator:
    """A validator of text parsed by `parse`, or of a template; `expected` is the expected form of other
    values.

    With `numbers`, numbers are accepted as text.
    """

    def check(value: Any) -> Any:
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise expect(expected)
        if not _accepted(value):
            try:
                parse(value)
            except ValueError as error:
                raise expect(str(error)) from None
        return value

    return BeforeValidator(check)


def parse_limit(text: str) -> float | None:
    """Bytes per second of a limit, None for `max`; ValueError for an implausible rate."""
    if text.strip() == MAX:
        return None
    rate = parse_bandwidth(text)
    if not LEAST_BPS <= rate <= MOST_BPS:
        raise ValueError("a rate from 1 kB/s to 1 TB/s, such as 20 MB/s, or max")
    return rate


def parse_iops(text: str) -> float | None:
    """Operations per second of a limit: `500 IOPS`, `500/s`; None for `max`; ValueError for others."""
    expected = "operations per time, such as 500 IOPS, or max"
    if text.strip() == MAX:
        return None
    number_text, slash, time_unit = text.partition("/")
    try:
        float(number_text)
        text = f"{number_text} 1{slash}{time_unit}" if slash else text
    except ValueError:
        pass  # a unit before the slash
    try:
        number, unit = parse_quantity(text)
    except ValueError:
        raise ValueError(expected) from None
    if unit.dimension != "1/time":
        raise ValueError(expected)
    rate = number * unit.factor
    if not (math.isfinite(rate) and LEAST_IOPS <= rate <= MOST_IOPS):
        raise ValueError("operations per time from 0.1 to 1e9 IOPS, such as 500 IOPS, or max")
    return rate


def parse_size_or_max(text: str) -> int | None:
    """Bytes of a size above 0, None for `max`; ValueError for others."""
    if text.strip() == MAX:
        return None
    size = parse_size(text)
    if not 0 < size <= MOST_BYTES:
        raise ValueError("a size above 0, such as 512MiB, or max")
    return size


def parse_cpuset(text: str) -> tuple[int, ...]:
    """Processors of `0-1,3`, in order; ValueError for an invalid list."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError("numbers of processors, such as 0 or 0-1,3")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def _ratio(text: str) -> float:
    expected = "a number above 0 and at most 1, such as 0.5"
    try:
        number = float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not 0 < number <= 1:
        raise ValueError(expected)
    return number


def parse_owner(text: str) -> tuple[int, int]:
    """(user, group) of `1000:1000`, or of `1000` with the same group number; ValueError for others."""
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text.strip())
    if match is None:
        raise ValueError("numbers of a user and a group, such as 1000:1000")
    return int(match[1]), int(match[2] or match[1])


def _or_max(check: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.strip() == MAX else check(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number above 0, such as 4") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError("a number above 0, such as 4")
    return number


#: words for true and false
_FLAGS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def parse_flag(text: str) -> bool:
    """true or false, on or off, yes or no; ValueError for others."""
    if text.strip() not in _FLAGS:
        raise ValueError("true or false")
    return _FLAGS[text.strip()]


def flag_of(value: bool | str) -> bool:
    """Value of a Flag without a template."""
    return value if isinstance(value, bool) else parse_flag(value)


def _flag(value: Any) -> Any:
    if isinstance(value, bool) or _accepted(value):
        return value
    if isinstance(value, str) and value.strip() in _FLAGS:
        return parse_flag(value)
    raise expect("true or false")


def parse_portion(text: str) -> float:
    """A share as a percentage, or as a number above 0 and at most 1; ValueError for others."""
    if text.strip().endswith("%"):
        return parse_share(text)
    try:
        return _ratio(text)
    except ValueError:
        raise ValueError("a share, such as 50% or 0.5") from None


def _count(least: int, most: int) -> Callable[[Any], Any]:
    expected = f"an integer from {least} to {most:,}"

    def check(value: Any) -> Any:
        if _accepted(value):
            return value
        if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise expect(expected)
        return value

    return check


@dataclass(frozen=True)
class OrMax:
    """Also accept `max`, which restores the default: `Annotated[SlowFile, OrMax()]`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(schema["schema"]), {"enum": [MAX]}]}

    @staticmethod
    def _check(value: Any, inner: Any) -> Any:
        return value if isinstance(value, str) and value.strip() == MAX else inner(value)


@dataclass(frozen=True)
class OrTemplate:
    """Accept a template in place of a mapping: `Annotated[FeaturesFile, OrTemplate()]`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(schema["schema"]), {"type": "string", "pattern": r"\{"}]}

    @staticmethod
    def _check(value: Any, inner: Any) -> Any:
        return value if _accepted(value) else inner(value)


@dataclass(frozen=True)
class Choice:
    """Restrict a text to these words, or a template: `Annotated[str, Words("a", "b")]`."""

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.choices)}, {"type": "string", "pattern": r"\{"}]}

    def _check(self, value: Any) -> str:
        if not isinstance(value, str) or not (_accepted(value) or value in self.choices):
            near = suggestion(value, list(self.choices)) if isinstance(value, str) else ""
            raise expect(listed(list(self.choices)) + near)
        return value


#: JSON Schema of a text or a number
TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
_TEXT_OR_COUNT = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]})
_TEXT_OR_FLAG = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "boolean"}]})
_TEXT = WithJsonSchema({"type": "string"})

Text = Annotated[str, AfterValidator(_not_empty)]
UnitText = Annotated[str, BeforeValidator(_unit_text), AfterValidator(_unit)]
Size = Annotated[str, BeforeValidator(_size)]
Scale = Annotated[str, BeforeValidator(_scale), TEXT_OR_NUMBER]
#: factor by which a profile is slowed down: a number, or `auto`
TimeScale = Annotated[str, BeforeValidator(_time_scale), TEXT_OR_NUMBER]
#: one value, or one per profile (or level) of a disk
OneOrEach = Annotated[
    Annotated[TimeScale, Tag("one")] | Annotated[dict[str, TimeScale], Tag("each")],
    Discriminator(lambda value: "each" if isinstance(value, dict) else "one"),
]
Mutates = Annotated[
    bool | Literal["contents"],
    BeforeValidator(_mutates),
    WithJsonSchema({"enum": [True, False, "contents"]}),
]
#: bytes per time or `max`
Rate = Annotated[
    str, templated(parse_limit, "a rate with its unit, such as 20 MB/s, or max"), _TEXT
]
#: operations per time or `max`
Iops = Annotated[
    str,
    templated(parse_iops, "operations per time with their unit, such as 500 IOPS, or max"),
    _TEXT,
]
Time = Annotated[
    str, templated(parse_duration, "a duration with its unit, such as 5ms, or a template"), _TEXT
]
PositiveTime = Annotated[
    str,
    templated(_positive_duration, "a duration with its unit, such as 5ms, or a template"),
    _TEXT,
]
Chance = Annotated[
    str, templated(parse_share, "a share in percent, such as 0.1%, or a template"), _TEXT
]
TimeOrMax = Annotated[
    str, templated(_or_max(parse_duration), "a duration with its unit, such as 5ms, or max"), _TEXT
]
#: a share, as a percentage or a number
Portion = Annotated[
    str, templated(parse_portion, "a share, such as 0.1% or 0.001", numbers=True), TEXT_OR_NUMBER
]
SizeOrMax = Annotated[
    str, templated(parse_size_or_max, "a size with its unit, such as 512MiB, or max"), _TEXT
]
SizeFromZero = Annotated[
    str, templated(parse_bounded_size, "a size with its unit, such as 128KiB"), _TEXT
]
Cpuset = Annotated[
    str,
    templated(parse_cpuset, "numbers of processors, such as 0 or 0-1,3", numbers=True),
    TEXT_OR_NUMBER,
]
CpusetOrMax = Annotated[
    str,
    templated(_or_max(parse_cpuset), "numbers of processors, such as 0-1,3, or max", numbers=True),
    TEXT_OR_NUMBER,
]
Ratio = Annotated[
    str,
    templated(_ratio, "a number above 0 and at most 1, such as 0.5", numbers=True),
    TEXT_OR_NUMBER,
]
RatioOrMax = Annotated[
    str,
    templated(_or_max(_ratio), "a number above 0 and at most 1, such as 0.5, or max", numbers=True),
    TEXT_OR_NUMBER,
]
ScaleOrMax = Annotated[
    str,
    templated(_or_max(_positive), "a number above 0, such as 4, or max", numbers=True),
    TEXT_OR_NUMBER,
]
Owner = Annotated[
    str,
    templated(parse_owner, "numbers of a user and a group, such as 1000:1000", numbers=True),
    TEXT_OR_NUMBER,
]
Privilege = Annotated[
    str,
    templated(parse_privilege, "a capability, such as SYS_TIME, or a device, such as /dev/fuse"),
]
Flag = Annotated[bool | str, BeforeValidator(_flag), _TEXT_OR_FLAG]
Count = Annotated[int | str, BeforeValidator(_count(1, 100_000)), _TEXT_OR_COUNT]
Seed = Annotated[int | str, BeforeValidator(_count(0, 2**63 - 1)), _TEXT_OR_COUNT]
