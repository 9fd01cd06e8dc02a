"""Checks of a study beyond its schema. They read plain values and tolerate invalid ones, so that all mistakes
are reported at once."""

from __future__ import annotations

import fnmatch
import math
import re
from pathlib import Path as FilePath
from typing import Any

from penstock.design.generators import NoFraction, largest_fraction, parse_generator
from penstock.design.kinds.base import Asked
from penstock.platform.checks.power import check_power
from penstock.plugins import DESIGNS, OBSERVERS, WORKLOAD_PARSERS
from penstock.spec.names import BUILT_IN, OF_STORE, RESERVED, listed, name_fault, suggestion
from penstock.spec.source import Path, Source
from penstock.spec.study import Factor, Level, level_name
from penstock.spec.template import names_in
from penstock.spec.units import parse_unit
from penstock.study.check_platform import check_names, check_platform
from penstock.study.references import Names, level_names, level_values, templates
from penstock.workload.parsers import parser
from penstock.workload.traced import MEASURES

#: beginning of the names of responses that a model computes
MODELLED = "modelled_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKLOAD_TEXTS = ("prepare", "command", "after", "directory")
#: scales without a constant difference for a share of the mean
_UNBOUND = ("box-cox", "rank")
_MOST_FACTORS = 20
_MOST_TREATMENTS = 1 << 16


def check(source: Source, base_dir: FilePath) -> dict[str, dict[str, Any]]:
    """Add every mistake to `source`; returns the storage profiles of the study, by name."""
    document = source.value if isinstance(source.value, dict) else {}
    names = Names()
    _factors(source, document, names)
    check_names(source, document, names)
    profiles = check_platform(source, document, names, base_dir)
    _workload(source, document, names)
    _responses(source, document, names)
    _unused(source, document, names)
    _design(source, document, names)
    _sequential(source, document, names)
    _settle(source, document)
    _hosts(source, document)
    _alerts(source, document)
    _observers(source, document, emulated=bool(profiles))
    _guest(source, document, base_dir)
    return profiles


def _alerts(source: Source, document: dict[str, Any]) -> None:
    observers = document.get("observers")
    silent = isinstance(observers, dict) and observers.get("monitor", {}) is None
    if document.get("alerts") and silent:
        source.mistake(("alerts",), "alerts without a monitor", "observers.monitor, which samples")


def _observers(source: Source, document: dict[str, Any], *, emulated: bool) -> None:
    """Errors from an observer's check of its settings; `emulated`: the study has emulated disks."""
    trace = _mapping(document, "observers", "trace")
    if trace.get("hot") and trace.get("mode", "trace") != "trace":
        source.mistake(("observers", "trace", "hot"), "hot without mode trace", "mode: trace")
    if trace.get("layers") and emulated:
        expected = "disks that are directories: the log of an emulated disk has its requests"
        source.mistake(("observers", "trace", "layers"), "layers with emulated disks", expected)
    for name, settings in _mapping(document, "observers").items():
        if name not in OBSERVERS or settings is None or name in ("monitor", "trace"):
            continue
        mistakes = getattr(OBSERVERS.load(name), "mistakes", None)
        for path, actual, expected in mistakes(settings) if mistakes is not None else ():
            source.mistake(("observers", name, *path), actual, expected)


def _mapping(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _name(source: Source, path: Path, name: str, taken: dict[str, str], what: str) -> None:
    """Check one name of a column; records it in `taken` (lower case → kind of name)."""
    fault = name_fault(name)
    if fault is not None:
        source.mistake(path, f"the name '{name}'", fault, key=True)
    elif name.lower() in RESERVED or name in BUILT_IN:
        source.mistake(
            path,
            f"the reserved name '{name}'",
            f"another name for the {what}; penstock's own columns and template names are reserved",
            key=True,
        )
    elif name.lower() in taken:
        source.mistake(
            path,
            f"the name '{name}', which {taken[name.lower()]} has already",
            f"another name for the {what} (case is ignored)",
            key=True,
        )
    else:
        taken[name.lower()] = f"the {what} '{name}'"


def _factors(source: Source, document: dict[str, Any], names: Names) -> None:
    taken: dict[str, str] = {}
    for factor, body in _mapping(document, "factors").items():
        path: Path = ("factors", factor)
        _name(source, path, factor, taken, "factor")
        levels = body.get("levels") if isinstance(body, dict) else None
        names.factors[factor] = {}
        if not isinstance(levels, list | dict):
            continue
        levels_read = list(level_values(levels))
        if len(levels_read) < 2:
            source.mistake(
                (*path, "levels"),
                f"{len(levels_read)} level{'s' * (len(levels_read) != 1)}",
                "at least 2 levels",
            )
        _levels(source, (*path, "levels"), levels_read, names.factors[factor])


def _levels(
    source: Source,
    path: Path,
    levels_read: list[tuple[str | int, str, Any]],
    levels: dict[str, Any],
) -> None:
    values: dict[str, str] = {}
    for key, name, value in levels_read:
        here = (*path, key)
        fault = name_fault(name)
        if value is None or (isinstance(value, list | dict) and isinstance(key, int)):
            source.mistake(here, _shown(value), "a level: text or a number; a mapping has a name")
        elif isinstance(value, float) and not math.isfinite(value):
            source.mistake(here, _shown(value), "a finite number")
        elif fault is not None:
            source.mistake(here, f"the level name '{name}'", fault, key=True)
        elif name in levels:
            source.mistake(here, f"the level '{name}' a second time", "each level once", key=True)
        elif str(value) in values:
            other = values[str(value)]
            source.mistake(
                here,
                f"the value {value!r}, which level '{other}' has already",
                "levels that differ; nothing would tell these two apart",
            )
        else:
            values[str(value)] = name
            levels[name] = value


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(value)


def _undo(source: Source, text: str, names: Names) -> None:
    """It runs on this host, possibly without any nodes and disks."""
    for name in names_in(text):
        if name in names.disks or name == OF_STORE or "." in name:
            path: Path = ("workload", "hooks", "undo")
            expected = "a command that needs no disk or store: they may be gone when it runs"
            source.mistake_in(path, f"{{{name}}}", f"the directory '{{{name}}}'", expected)


def _workload(source: Source, document: dict[str, Any], names: Names) -> None:
    workload = _mapping(document, "workload")
    on = _on(source, ("workload", "on"), workload.get("on"), names)
    for key in _WORKLOAD_TEXTS:
        where = () if key == "prepare" else on
        templates(source, ("workload", key), workload.get(key), names, disks=True, on=where)
    for key in ("prepare", "command"):
        quick = _mapping(workload, "quick").get(key)
        if quick is not None and quick != workload.get(key):
            where = () if key == "prepare" else on
            templates(source, ("workload", "quick", key), quick, names, disks=True, on=where)
    for key, text in _mapping(workload, "hooks").items():
        factors = templates(source, ("workload", "hooks", key), text, names, disks=True, on=on)
        if key == "undo" and factors is not None:
            _undo(source, text, names)
    passed = workload.get("pass_env")
    for i, key in enumerate(passed if isinstance(passed, list) else []):
        if isinstance(key, str) and key.strip() and not _VARIABLE.fullmatch(key):
            source.mistake(
                ("workload", "pass_env", i), f"'{key}'", "the name of an environment variable"
            )
    for key, value in _mapping(workload, "env").items():
        path: Path = ("workload", "env", key)
        if not _VARIABLE.fullmatch(key):
            source.mistake(path, f"'{key}'", "the name of an environment variable", key=True)
        if value is None or isinstance(value, list | dict):
            source.mistake(path, _shown(value), "text or a number")
        templates(source, path, value, names, disks=True, on=on)
    raw_services = workload.get("services")
    services = raw_services if isinstance(raw_services, list) else []
    for i, service in enumerate(services):
        if isinstance(service, dict):
            _service(source, ("workload", "services", i), service, names, services[:i])
    name = workload.get("parser", "none")
    if isinstance(name, str) and name.strip() and name not in WORKLOAD_PARSERS:
        source.mistake(
            ("workload", "parser"),
            f"the unknown parser '{name}'",
            f"{listed(list(WORKLOAD_PARSERS))}{suggestion(name, list(WORKLOAD_PARSERS))}",
        )


def _on(source: Source, path: Path, raw_names: Any, names: Names) -> list[str]:
    """Nodes of a command; records patterns without a match."""
    patterns = (
        raw_names
        if isinstance(raw_names, list)
        else [raw_names]
        if isinstance(raw_names, str)
        else []
    )
    if not patterns:
        return names.order[:1]
    matches: list[str] = []
    for pattern in patterns:
        fit = names.order if pattern == "all" else fnmatch.filter(names.order, str(pattern))
        if "{" in str(pattern):
            templates(source, path, str(pattern), names, disks=False)
            return names.order
        if not fit:
            expected = f"a node, a pattern or all: {listed(names.order[:8])}"
            near = suggestion(str(pattern), names.order)
            source.mistake(path, f"'{pattern}', which is no node", expected + near)
        matches += fit
    return matches


def _service(
    source: Source, path: Path, service: dict[str, Any], names: Names, before: list[Any]
) -> None:
    on = _on(source, (*path, "on"), service.get("on"), names)
    templates(source, (*path, "command"), service.get("command"), names, disks=True, on=on)
    if isinstance(service.get("ready"), dict):
        text = service["ready"].get("command")
        templates(source, (*path, "ready", "command"), text, names, disks=True, on=on)
    name = service.get("name")
    if any(isinstance(b, dict) and b.get("name") == name for b in before):
        source.mistake((*path, "name"), f"a second service called '{name}'", "each name once")
    ready = service.get("ready")
    if isinstance(ready, dict) and len({"port", "log", "command"} & set(ready)) != 1:
        expected = "one of port, log, command"
        source.mistake((*path, "ready"), f"{len(ready)} ways to be ready", expected, key=True)


def _responses(source: Source, document: dict[str, Any], names: Names) -> None:
    parser_name = _mapping(document, "workload").get("parser", "none")
    responses_of_parser: dict[str, str] | None = None
    if isinstance(parser_name, str) and parser_name in WORKLOAD_PARSERS:
        responses_of_parser = {**parser(parser_name).RESPONSES, "wall_s": "s"}
    taken = {f.lower(): f"the factor '{f}'" for f in names.factors}
    for name, body in _mapping(document, "responses").items():
        path: Path = ("responses", name)
        _name(source, path, name, taken, "response")
        _desire(source, path, body)
        source_value = body.get("from") if isinstance(body, dict) else None
        if isinstance(source_value, dict) and "trace" in source_value:
            _traced(source, path, body, _mapping(document, "observers").get("trace"))
        if isinstance(source_value, dict) and "energy" in source_value:
            _energy(source, name, body, document)
        if (
            not isinstance(source_value, str)
            or responses_of_parser is None
            or not source_value.strip()
        ):
            continue
        if source_value not in responses_of_parser:
            source.mistake(
                (*path, "from"),
                f"the unknown response '{source_value}' of parser {parser_name}",
                f"one of {_some(list(responses_of_parser), source_value)}, "
                "{regex: …}, {json: …}, {series: …}, {trace: …} or {energy: …}",
            )
        elif isinstance(body, dict):
            _convertible(
                source, (*path, "unit"), body.get("unit"), responses_of_parser[source_value]
            )


def _traced(source: Source, path: Path, body: dict[str, Any], tracer: Any) -> None:
    """Check that the tracer records what a response needs, and the unit of the response."""
    measure = MEASURES.get(str(body["from"]["trace"]))
    if measure is None:
        return  # reported with the keys
    _convertible(source, (*path, "unit"), body.get("unit"), measure.unit)
    where = (*path, "from", "trace")
    if tracer is None:
        source.mistake(where, "a response of the trace without a tracer", "observers.trace")
        return
    settings = tracer if isinstance(tracer, dict) else {}
    if measure.events and settings.get("mode", "trace") != "trace":
        source.mistake(where, "a percentile without mode trace", "observers.trace.mode: trace")
    if measure.events and settings.get("hot"):
        source.mistake(where, "a percentile with hot", "observers.trace without hot")
    basis = body["from"].get("basis", "calls")
    if basis == "device" and not settings.get("layers"):
        source.mistake(where, "requests of devices without layers", "observers.trace.layers: true")
    if measure.of_flushes and body["from"].get("direction"):
        source.mistake(where, "a direction of flushes", "no direction")
    if basis not in measure.bases:
        expected = f"basis {' or '.join(measure.bases)}"
        source.mistake(where, f"the basis '{basis}' for this measure", expected)


def _energy(source: Source, name: str, body: dict[str, Any], document: dict[str, Any]) -> None:
    """Check powers, and that the name shows a modelled value wherever it is printed."""
    path: Path = ("responses", name)
    if not str(name).startswith(MODELLED):
        expected = f"'{MODELLED}{name}': no power is measured"
        source.mistake(path, f"the name '{name}' of a modelled energy", expected, key=True)
    _convertible(source, (*path, "unit"), body.get("unit"), "J")
    where = (*path, "from", "energy")
    if _mapping(document, "observers").get("monitor", {}) is None:
        source.mistake(where, "an energy without a monitor", "observers.monitor, which samples")
    if document.get("guest"):
        source.mistake(where, "an energy with a guest", "nothing: no guest is sampled")
    power = body["from"]["energy"]
    if isinstance(power, dict):
        check_power(source, where, power, written=True)
        if "manager" in power:
            source.mistake((*where, "manager"), "manager", "nothing: all nodes count", key=True)


def _desire(source: Source, path: Path, body: Any) -> None:
    desire = body.get("desire") if isinstance(body, dict) else None
    if not isinstance(desire, dict):
        return
    keys = ("worst", "best", "low", "target", "high")
    bounds = {k: desire[k] for k in keys if desire.get(k) is not None}
    if not all(_is_number(v) for v in bounds.values()):
        return  # reported with the keys
    expected = _desire_fault(bounds, body.get("better"))
    if expected:
        source.mistake((*path, "desire"), _shown(bounds), expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _desire_fault(bounds: dict[str, float], better: Any) -> str:
    if set(bounds) == {"worst", "best"}:
        if bounds["worst"] == bounds["best"]:
            return "best and worst that differ"
        if better in ("lower", "higher") and (bounds["best"] > bounds["worst"]) != (
            better == "higher"
        ):
            where = "above" if better == "higher" else "below"
            return f"best {where} worst, because {better} is better"
        return ""
    if set(bounds) == {"low", "target", "high"}:
        fits = bounds["low"] < bounds["target"] < bounds["high"]
        return "" if fits else "low below target below high"
    return "worst and best, or low, target and high"


def _some(names: list[str], name: str) -> str:
    shown = names if len(names) <= 12 else [*names[:10], "…"]
    return ", ".join(shown) + suggestion(name, names)


def _convertible(source: Source, path: Path, unit: Any, declared: str) -> None:
    try:
        target = parse_unit(str(unit))
    except ValueError:
        return  # reported with the keys
    if unit is not None and target.dimension != parse_unit(declared).dimension:
        source.mistake(path, f"the unit '{unit}'", f"a unit that {declared} can be converted to")


def _unused(source: Source, document: dict[str, Any], names: Names) -> None:
    for factor in names.factors:
        if factor not in names.used:
            source.mistake(
                ("factors", factor),
                f"the factor '{factor}', which nothing refers to",
                f"{{{factor}}} in the platform or the workload",
                key=True,
            )


def _design(source: Source, document: dict[str, Any], names: Names) -> None:
    design = _mapping(document, "design")
    kind, generators = design.get("kind"), design.get("generators", [])
    _forbidden(source, design, names)
    count = len(names.factors)
    if count > _MOST_FACTORS:
        source.mistake(
            ("factors",),
            f"{count} factors",
            f"at most {_MOST_FACTORS} factors in one study",
            key=True,
        )
        return
    if kind is None and generators:
        source.mistake(
            ("design", "generators"), "generators without a fraction", "kind: {fraction: …}"
        )
    treatments = math.prod(max(1, len(v)) for v in names.factors.values())
    if kind == "full":
        if treatments > _MOST_TREATMENTS:
            main = 1 + sum(max(0, len(v) - 1) for v in names.factors.values())
            source.mistake(
                ("design", "kind"),
                f"a full design of {treatments} treatments",
                f"at most {_MOST_TREATMENTS}: fewer factors or levels, or a fraction; for main effects "
                f"kind: d-optimal needs {main + 5}; `purpose: screen` in its place chooses",
            )
        if generators:
            source.mistake(
                ("design", "generators"), "generators for a full design", "kind: {fraction: …}"
            )
        return
    if _other_kind(source, design, kind, names):
        return
    added = kind.get("fraction") if isinstance(kind, dict) else None
    if not isinstance(added, int) or isinstance(added, bool) or added < 1 or count == 0:
        return
    many = [f for f, levels in names.factors.items() if len(levels) > 2]
    if many:
        source.mistake(
            ("design", "kind"),
            f"a fraction, while {listed(many)} {'has' if len(many) == 1 else 'have'} over 2 levels",
            "kind: full, or two levels for every factor",
        )
    most = largest_fraction(count)
    if added > most:
        allowed = f"at most {most}" if most else "kind: full"
        source.mistake(
            ("design", "kind", "fraction"),
            f"the fraction {added} of {count} factor{'s' * (count != 1)}",
            f"{allowed}: 2^(K-P) treatments must tell the K main effects apart",
        )
    elif isinstance(generators, list) and generators:
        _generators(source, generators, list(names.factors), added)


def _other_kind(source: Source, design: dict[str, Any], kind: Any, names: Names) -> bool:
    """True for a kind of `penstock.plugins.DESIGNS`; records errors of its options."""
    options_by_kind = {kind: {}} if isinstance(kind, str) else kind
    if (
        not isinstance(options_by_kind, dict)
        or len(options_by_kind) != 1
        or next(iter(options_by_kind)) not in DESIGNS
    ):
        return kind is None
    name, options = next(iter(options_by_kind.items()))
    if source.mistakes or not isinstance(options, dict):
        return True  # report other errors first
    row = DESIGNS.load(name)
    for key in options:
        if key not in row.OPTIONS:
            option_names = listed(list(row.OPTIONS)) or "no options"
            source.mistake(
                ("design", "kind", name, key),
                f"the unknown option '{key}'",
                f"{option_names}{suggestion(str(key), list(row.OPTIONS))}",
                key=True,
            )
    if not source.mistakes and (fault := row.fault(_request_of(design, names, options))):
        what = f"{name} for {len(names.factors)} factors of {_counts(names)} levels"
        source.mistake(("design", "kind"), what, fault)
    return True


def _request_of(design: dict[str, Any], names: Names, options: dict[str, Any]) -> Asked:
    """Request to a kind of design, from a document without errors so far."""
    factors = tuple(
        Factor(name=n, levels=tuple(Level(name=k, value=v) for k, v in levels.items()))
        for n, levels in names.factors.items()
    )
    forbidden = tuple(
        {n: level_names(v) for n, v in combination.items()}
        for combination in design.get("forbidden") or []
    )
    seed = design.get("seed", 1)
    return Asked(factors, options, seed if isinstance(seed, int) else 1, forbidden)


def _counts(names: Names) -> str:
    counts = sorted({len(v) for v in names.factors.values()})
    return listed([str(n) for n in counts])


def _forbidden(source: Source, design: dict[str, Any], names: Names) -> None:
    combinations = design.get("forbidden")
    for i, combination in enumerate(combinations if isinstance(combinations, list) else []):
        path: Path = ("design", "forbidden", i)
        if not isinstance(combination, dict):
            continue
        if len(combination) < 2:
            few = f"{len(combination)} factor{'s' * (len(combination) != 1)}"
            source.mistake(
                path, few, "levels of two factors or more that are not to be run together"
            )
        for factor, levels in combination.items():
            if factor not in names.factors:
                valid_names = list(names.factors)
                expected = f"a factor: {listed(valid_names)}{suggestion(str(factor), valid_names)}"
                source.mistake((*path, factor), f"'{factor}'", expected, key=True)
                continue
            valid_names = list(names.factors[factor])
            for level in level_names(levels):
                if level not in valid_names:
                    expected = f"a level of {factor}: {listed(valid_names)}{suggestion(level, valid_names)}"
                    source.mistake((*path, factor), f"'{level}'", expected)
    kind = design.get("kind")
    if combinations and isinstance(kind, dict) and "fraction" in kind:
        source.mistake(
            ("design", "forbidden"),
            "forbidden combinations in a regular fraction",
            "kind: d-optimal, which excludes them, or none",
        )


def _sequential(source: Source, document: dict[str, Any], names: Names) -> None:
    section = _mapping(_mapping(document, "design"), "sequential")
    default = section.get("default")
    path: Path = ("design", "sequential", "default")
    for factor, level in default.items() if isinstance(default, dict) else ():
        if factor not in names.factors:
            expected = f"a factor: {listed(list(names.factors))}"
            source.mistake((*path, factor), f"{factor}", expected, key=True)
        elif level_name(level) not in names.factors[factor]:
            expected = f"a level of {factor}: {listed(list(names.factors[factor]))}"
            source.mistake((*path, factor), level_name(level), expected)
    if section and not source.mistakes:
        setting = {f: next(iter(levels)) for f, levels in names.factors.items()}
        setting |= {f: level_name(level) for f, level in (default or {}).items()}
        row = [list(names.factors[f]).index(level) for f, level in setting.items()]
        if not _request_of(_mapping(document, "design"), names, {}).allowed(row):
            levels = ", ".join(f"{f} {level}" for f, level in setting.items())
            source.mistake(
                path if default else ("design", "sequential"),
                f"the default setting {levels}, which design.forbidden excludes",
                "an allowed default: confirmation runs compare the choice with it",
            )
    if section.get("stop") == "decided" and _mapping(document, "design").get("detect") is None:
        source.mistake(
            ("design", "sequential", "stop"),
            "decided, without design.detect",
            "detect: the difference of level means that matters, in percent of the mean",
        )
    most = _mapping(_mapping(document, "design"), "budget").get("runs")
    runs = section.get("runs")
    if isinstance(most, int) and isinstance(runs, int) and runs > most:
        source.mistake(
            ("design", "sequential", "runs"),
            f"{runs} runs, over {most}, which design.budget has",
            f"at most {most}, or a larger budget",
        )
    first = next(iter(_mapping(document, "responses").values()), None)
    scale = first.get("scale") if isinstance(first, dict) else None
    if section.get("stop") == "decided" and scale in _UNBOUND:
        source.mistake(
            ("design", "sequential", "stop"),
            f"decided, with the scale {scale} of the first response",
            "scale: auto, linear or log: on another the share of the mean that matters is no one bound",
        )
    if section and design_repeats(document) < 2:
        source.mistake(
            ("design", "sequential"),
            "one replicate",
            "at least 2: looks are tested against the spread between repeated runs",
        )


def design_repeats(document: dict[str, Any]) -> int:
    """Number of runs of each treatment."""
    replicates = _mapping(document, "design").get("replicates", 2)
    return replicates if isinstance(replicates, int) else 2


def _generators(source: Source, generators: list[Any], factors: list[str], added: int) -> None:
    path: Path = ("design", "generators")
    if len(generators) != added:
        source.mistake(path, f"{len(generators)} generators", f"{added}, one per added factor")
    defined: dict[int, str] = {}
    products: set[int] = set()
    parsed = []
    for i, text in enumerate(generators):
        if not isinstance(text, str):
            continue
        try:
            generator = parse_generator(text, factors)
        except NoFraction as error:
            source.mistake((*path, i), f"the generator '{text}'", str(error))
            continue
        if generator.factor in defined or generator.word in products:
            source.mistake((*path, i), f"'{text}'", "each added factor and each word once")
        defined[generator.factor] = text
        products.add(generator.word)
        parsed.append((i, generator))
    for i, generator in parsed:
        inner = [factors[f] for f in defined if generator.word >> f & 1]
        if inner:
            source.mistake(
                (*path, i),
                f"the generator '{generators[i]}'",
                f"basic factors on its right side; {listed(inner)} is added itself",
            )


def _hosts(source: Source, document: dict[str, Any]) -> None:
    workers = _mapping(document, "hosts").get("workers")
    names: set[str] = set()
    for i, worker in enumerate(workers if isinstance(workers, list) else []):
        if not isinstance(worker, dict):
            continue
        path: Path = ("hosts", "workers", i)
        if "ssh" in worker and "netns" in worker:
            source.mistake((*path, "netns"), "both ssh and netns", "one of them", key=True)
        name = str(worker.get("name"))
        if name in names:
            source.mistake((*path, "name"), f"a second host called '{name}'", "each name once")
        names.add(name)


#: keys that a study in a guest does not support, and their alternatives
_NOT_IN_A_GUEST = {
    ("workload", "prepare"): "hooks.redeploy or hooks.reformat: data is created inside the guest",
    ("workload", "services"): "hooks.restart: services are started inside the guest",
    ("workload", "user"): "nothing: a guest has root alone",
    ("workload", "directory"): "nothing: a guest's commands run in /job",
    ("observers", "trace"): "nothing: this host's tracer does not see into a guest",
    ("observers", "collect"): "nothing: a guest has no network by which it could be reached",
}


def _guest(source: Source, document: dict[str, Any], base_dir: FilePath) -> None:
    guest = document.get("guest")
    if not isinstance(guest, dict):
        return
    for path, instead in _NOT_IN_A_GUEST.items():
        if _mapping(document, path[0]).get(path[1]):
            source.mistake(path, f"{path[1]} with a guest", instead, key=True)
    if "undo" in _mapping(document, "workload", "hooks"):
        source.mistake(
            ("workload", "hooks", "undo"),
            "undo with a guest",
            "no undo: the guest is discarded after the run",
            key=True,
        )
    platform = document.get("platform")
    nodes = platform.get("nodes") if isinstance(platform, dict) else None
    if isinstance(nodes, list) and (
        len(nodes) != 1 or not isinstance(nodes[0], dict) or set(nodes[0]) != {"name"}
    ):
        source.mistake(("platform", "nodes"), "nodes with a guest", "one node with a name alone")
    files = guest.get("files")
    root = base_dir.resolve()
    for i, name in enumerate(files if isinstance(files, list) else []):
        if not isinstance(name, str) or not name.strip():
            continue
        place = (root / name).resolve()
        if FilePath(name).is_absolute() or not place.is_relative_to(root) or place == root:
            source.mistake(
                ("guest", "files", i), f"'{name}'", "a path below the study file's directory"
            )


def _settle(source: Source, document: dict[str, Any]) -> None:
    settle = _mapping(document, "settle")
    nodes = _mapping(document, "platform").get("nodes")
    disks = [
        disk
        for node in (nodes if isinstance(nodes, list) else [])
        if isinstance(node, dict) and isinstance(node.get("disks"), list)
        for disk in node["disks"]
    ]
    if settle.get("discard") is True and not any(
        isinstance(d, dict) and "directory" in d for d in disks
    ):
        source.mistake(
            ("settle", "discard"),
            "no disk with a directory to discard the free space of",
            "a disk with `directory`: what is emulated has no such space",
        )
    if settle.get("resident_at_least") is not None and settle.get("resident_at_most") is not None:
        source.mistake(
            ("settle", "resident_at_least"),
            "both resident_at_least and resident_at_most",
            "one of them: a warm start or a cold one",
            key=True,
        )
