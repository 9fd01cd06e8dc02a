"""Format of a settings file of the controller; `docs/dedup-controller.md` documents it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.errors import BadInput
from penstock.parts.dedup.controller.energy import PowerModel
from penstock.parts.dedup.controller.settings import Sampling, Settings
from penstock.parts.dedup.controller.utility import METRICS, Limit, Utility
from penstock.platform.fields import Watts
from penstock.spec.fields import quantity
from penstock.spec.mistakes import in_order, validated
from penstock.spec.quantities import Part
from penstock.spec.source import Source, read_input, read_source
from penstock.spec.units import parse_power, parse_share

PAGE = "docs/dedup-controller.md"


_PERCENT = re.compile(r"(\d+\.?\d*|\.\d+)\s*%")


def _parse_percent(text: str) -> float:
    """Share of `120%`, also above 1; ValueError for others."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 10_000:
        raise ValueError("a percentage of the metric without deduplication, such as 120%")
    return float(match[1]) / 100


Share = Annotated[str, BeforeValidator(quantity(parse_share, "a share such as 1%"))]
Percent = Annotated[str, BeforeValidator(quantity(_parse_percent, "a percentage such as 120%"))]


class WeightsFile(Part):
    """Weights of normalised metrics; negative, because each is to be small."""

    time: float = Field(0.0, ge=-1e6, le=0, description="Weight of the time of a write.")
    space: float = Field(0.0, ge=-1e6, le=0, description="Weight of the stored bytes.")
    energy: float = Field(0.0, ge=-1e6, le=0, description="Weight of the energy.")


class LimitFile(Part):
    """Limit of a metric, as a percentage of that without deduplication."""

    at_most: Percent | None = Field(None, description="Largest value.")
    below: Percent | None = Field(None, description="Value that is not reached.")


class LimitsFile(Part):
    """Limits that every configuration except off must respect."""

    time: LimitFile | None = Field(None, description="Limit of the time of a write.")
    space: LimitFile | None = Field(None, description="Limit of the stored bytes.")
    energy: LimitFile | None = Field(None, description="Limit of the energy.")


class UtilityFile(Part):
    """The goal of the controller."""

    weights: WeightsFile | None = Field(None, description="Weights of several metrics.")
    maximize: Literal["-time", "-space", "-energy"] | None = Field(
        None, description="One metric in place of weights."
    )
    subject_to: LimitsFile | None = Field(None, description="Limits.")


class SamplingFile(Part):
    """Shadow sampling while deduplication is off."""

    time_share: Share = Field("1%", description="Largest time of sampling, of the time of a write.")
    share: Share = Field("25%", description="Largest share of the chunks.")


class PowerPart(Part):
    """Power of a machine."""

    idle: Watts = Field(description="Idle.")
    hash: Watts = Field(description="Hashing: measured, or the peak.")
    io: Watts = Field(description="Sending and storing.")
    replicas: int = Field(1, ge=1, le=100, description="Storage nodes that store each chunk.")


class ControllerFile(Part):
    """The top level of the file."""

    window: int = Field(5, ge=2, le=100, description="Writes of a probe and of moving averages.")
    reprobe_after: int = Field(100, ge=1, le=10**6, description="Writes without before a probe.")
    reprobe_most: int = Field(3200, ge=1, le=10**8, description="Largest number of those.")
    doubling: bool = Field(True, description="Double the number while probes confirm `off`.")
    utility: UtilityFile = Field(UtilityFile.model_validate({}), description="The goal.")
    sampling: SamplingFile | Literal[False] = Field(
        SamplingFile.model_validate({}), description="Shadow sampling; false for none."
    )
    least_gain: Share = Field("2%", description="Least gain of utility for a switch.")
    confidence: float = Field(0.8, ge=0.5, le=0.999, description="Confidence in the gain.")
    drift: Share = Field("10%", description="Change after which probes are frequent again.")
    memory: int = Field(40, ge=5, le=10**4, description="Observations of the long mean.")
    adaptive: bool = Field(True, description="Adapt estimates and probes to noise and changes.")
    scope: Literal["family", "system"] = Field("family", description="Range of a switch.")
    power: PowerPart | None = Field(None, description="Powers, for energy.")
    log: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="File of the decisions, in JSON lines; relative to this file."
    )


def read_settings(path: Path) -> Settings:
    """Settings of a YAML file. Raises BadInput with every mistake, each with its line and column."""
    return parse_settings(read_input(path, "settings of the controller"), path)


def parse_settings(raw: bytes, path: Path) -> Settings:
    """Parse YAML. Raises BadInput with every mistake, each with its line and column."""
    source = read_source(raw, str(path), f"settings of the controller; see {PAGE}")
    if not isinstance(source.value, dict):
        source.mistake((), "no mapping", "keys such as window and utility")
        raise BadInput(mistakes=source.mistakes)
    file = validated(source, ControllerFile, PAGE)
    if file is not None:
        _check(source, file)
    if source.mistakes or file is None:
        raise BadInput(mistakes=in_order(source.mistakes))
    log = None if file.log is None else path.parent / file.log
    return replace(_settings(file), log=log)


def _check(source: Source, file: ControllerFile) -> None:
    """Note contradictions between keys."""
    utility = file.utility
    if utility.weights is not None and utility.maximize is not None:
        source.mistake(("utility", "maximize"), "weights and maximize", "one of them", key=True)
    if file.reprobe_most < file.reprobe_after:
        expected = f"at least reprobe_after, {file.reprobe_after}"
        source.mistake(("reprobe_most",), str(file.reprobe_most), expected)
    if file.power is None and _utility(utility).uses("energy"):
        source.mistake(("utility",), "energy", "the key power, from which it is computed", key=True)
    if file.power is not None:
        try:
            _power(file.power)
        except BadInput as error:
            source.mistakes.append(
                source.at(("power",)).mistake(*str(error)[13:].split("; expected ", 1))
            )


def _settings(file: ControllerFile) -> Settings:
    sampling = None
    if file.sampling is not False:
        sampling = Sampling(parse_share(file.sampling.time_share), parse_share(file.sampling.share))
    return Settings(
        window=file.window,
        reprobe_after=file.reprobe_after,
        reprobe_most=file.reprobe_most,
        doubling=file.doubling,
        utility=_utility(file.utility),
        sampling=sampling,
        least_gain=parse_share(file.least_gain),
        confidence=file.confidence,
        drift=parse_share(file.drift),
        memory=file.memory,
        adaptive=file.adaptive,
        scope=file.scope,
        power=None if file.power is None else _power(file.power),
    )


def _utility(file: UtilityFile) -> Utility:
    if file.maximize is not None:
        values = [-1.0 if file.maximize == f"-{metric}" else 0.0 for metric in METRICS]
    else:
        values = [getattr(file.weights, metric, 0.0) for metric in METRICS]
    if not any(values):
        values = [-1.0, 0.0, 0.0]
    return Utility((values[0], values[1], values[2]), _limits(file.subject_to))


def _limits(file: LimitsFile | None) -> tuple[Limit, ...]:
    limits = []
    for metric in METRICS:
        limit: LimitFile | None = getattr(file, metric, None)
        if limit is not None and limit.at_most is not None:
            limits.append(Limit(metric, _parse_percent(limit.at_most)))
        if limit is not None and limit.below is not None:
            limits.append(Limit(metric, _parse_percent(limit.below), strict=True))
    return tuple(limits)


def _power(file: PowerPart) -> PowerModel:
    return PowerModel(
        parse_power(file.idle), parse_power(file.hash), parse_power(file.io), 1 + file.replicas
    )
