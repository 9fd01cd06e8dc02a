"""From the file to a checked `Study`, or to all of its mistakes. Nothing on the host is touched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import BadInput, Mistake
from penstock.study.check import check, level_values
from penstock.study.file import (
    FactorFile,
    FractionFile,
    JsonFile,
    RegexFile,
    ResponseFile,
    StudyFile,
)
from penstock.study.model import (
    DesignSpec,
    DiskSpec,
    Factor,
    Level,
    MonitorSpec,
    NodeSpec,
    Observers,
    Platform,
    Response,
    ResponseSource,
    Settle,
    Study,
    TraceSpec,
    Workload,
)
from penstock.study.names import suggestion
from penstock.study.override import apply_override, apply_quick
from penstock.study.source import Source, dump, read_source
from penstock.study.units import parse_duration, parse_share


def load_study(
    path: Path | str,
    overrides: Sequence[str] = (),
    quick: bool = False,
    base_dir: Path | None = None,
) -> Study:
    """The study in the file `path`, after `overrides` (`a.b=c`) and `quick`.

    Profiles and `{study_dir}` are relative to `base_dir`, by default the file's own directory. BadInput
    holds every mistake with its line and column.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; expected a study file") from None
    return read_study(raw, path, overrides, quick, base_dir)


def read_study(
    raw: bytes,
    path: Path,
    overrides: Sequence[str] = (),
    quick: bool = False,
    base_dir: Path | None = None,
) -> Study:
    """As `load_study`, of a text already read."""
    source = read_source(raw, str(path))
    if not isinstance(source.value, dict):
        source.mistake((), "no mapping", "a study: keys such as name, factors, design, workload")
        raise BadInput(mistakes=source.mistakes)
    for text in overrides:
        apply_override(source, text)
    if quick:
        apply_quick(source.value, source)
    file: StudyFile | None = None
    try:
        file = StudyFile.model_validate(source.value)
    except ValidationError as error:
        for detail in error.errors():
            _note(source, detail)
    base = (base_dir or path.parent).resolve()
    profiles = check(source, base)
    if source.mistakes or file is None:
        raise BadInput(mistakes=_sorted(source.mistakes))
    changed = bool(overrides) or quick
    text = dump(source.value) if changed else raw.decode("utf-8-sig")
    return _study(file, source.value, profiles, path, base, text, quick)


def _sorted(mistakes: list[Mistake]) -> list[Mistake]:
    """In the order of the file, at most one per place and finding."""
    once: dict[tuple[str, int, int, str], Mistake] = {}
    for m in mistakes:
        once.setdefault((m.file, m.line, m.column, m.found), m)
    return sorted(once.values(), key=lambda m: (m.file, m.line, m.column))


# ---------------------------------------------------------------- what Pydantic says, in our words

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "a number of at least {}"),
    "greater_than": ("gt", "a number above {}"),
    "less_than_equal": ("le", "a number of at most {}"),
    "less_than": ("lt", "a number below {}"),
}


def _located(source: Source, detail: ErrorDetails) -> tuple[str | int, ...]:
    """The path in the file: Pydantic's own, without the names of union members."""
    node: Any = source.value
    path: list[str | int] = []
    steps = detail["loc"]
    for i, step in enumerate(steps):
        inside = (isinstance(node, dict) and step in node) or (
            isinstance(node, list) and isinstance(step, int) and step < len(node)
        )
        if inside:
            path.append(step)
            node = node[step]
        elif i == len(steps) - 1 and detail["type"] == "missing":
            path.append(step)
    return tuple(path)


def _note(source: Source, detail: ErrorDetails) -> None:
    path, kind = _located(source, detail), detail["type"]
    context = detail.get("ctx", {})
    if kind == "missing":
        here, name = path[:-1], str(path[-1])
        what = _described(here, name)
        above = f" in {_dotted(here)}" if here else ""
        source.mistake(here, f"no '{name}'{above}", f"the key {name}: {what}", key=True)
    elif kind == "extra_forbidden":
        known = _keys(path[:-1])
        name = str(path[-1])
        expected = f"one of {', '.join(known)}{suggestion(name, known)}"
        source.mistake(path, f"the unknown key '{name}'", expected, key=True)
    else:
        source.mistake(path, _found(detail["input"]), _expected(detail, context))


def _expected(detail: ErrorDetails, context: dict[str, Any]) -> str:
    kind = detail["type"]
    if kind == "expected":
        return str(context["expected"])
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if detail["loc"] == ("penstock",):
        return "1, the only version of this format"
    if kind in _BOUNDS:
        key, text = _BOUNDS[kind]
        return text.format(context[key])
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "")
        return choices + suggestion(str(detail["input"]), re.split(r", | or ", choices))
    if kind == "too_short":
        return "at least one entry"
    return detail["msg"][:1].lower() + detail["msg"][1:]


def _found(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping ({', '.join(map(str, value))[:60]})" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return f"'{value[:80]}'" if value.strip() else "an empty text"
    return str(value)


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def _model_at(path: Sequence[str | int]) -> dict[str, Any]:
    """The JSON Schema of what stands at `path`."""
    whole = StudyFile.model_json_schema(by_alias=True)
    node: dict[str, Any] = whole
    for step in path:
        node = _child(_deref(node, whole), step, whole)
    return _deref(node, whole)


def _deref(node: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = whole["$defs"][node["$ref"].rpartition("/")[2]]
    for choices in (node.get("anyOf"), node.get("oneOf")):
        if choices and "properties" not in node:
            objects = [_deref(c, whole) for c in choices]
            merged: dict[str, Any] = {}
            for o in objects:
                merged |= o.get("properties", {})
            extra = next((o for o in objects if "additionalProperties" in o), {})
            return {"properties": merged, **({} if merged else extra)}
    return node


def _child(node: dict[str, Any], step: str | int, whole: dict[str, Any]) -> dict[str, Any]:
    properties = node.get("properties", {})
    if step in properties:
        found: dict[str, Any] = properties[step]
        return found
    if isinstance(step, int) and isinstance(node.get("items"), dict):
        return dict(node["items"])
    extra = node.get("additionalProperties")
    return extra if isinstance(extra, dict) else {}


def _keys(path: Sequence[str | int]) -> list[str]:
    return list(_model_at(path).get("properties", {}))


def _described(path: Sequence[str | int], name: str) -> str:
    entry = _model_at(path).get("properties", {}).get(name, {})
    text = str(entry.get("description", "see docs/study-file.md"))
    return text[:1].lower() + text[1:].rstrip(".")


# ---------------------------------------------------------------- the study


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
    return Study(
        name=file.name,
        question=" ".join(file.question.split()),
        factors=tuple(_factor(name, body) for name, body in file.factors.items()),
        design=_design(file),
        platform=Platform(
            nodes=tuple(
                NodeSpec(
                    name=n.name,
                    memory=n.memory,
                    cpus=n.cpus,
                    disks=tuple(DiskSpec(**d.model_dump()) for d in n.disks),
                )
                for n in file.platform.nodes
            )
        ),
        workload=Workload(
            prepare=work.prepare,
            mutates=work.mutates,
            command=work.command,
            after=work.after,
            timeout_s=parse_duration(work.timeout),
            expected_s=parse_duration(work.expected) if work.expected else None,
            parser=work.parser,
            user=work.user,
            env={k: str(v) for k, v in work.env.items()},
            directory=work.directory,
        ),
        responses=tuple(_response(name, body) for name, body in file.responses.items()),
        observers=_observers(file),
        settle=_settle(file, document),
        quick=quick,
        source_path=path,
        base_dir=base_dir,
        source_text=text,
        document=document,
        profiles=profiles,
    )


def _factor(name: str, body: FactorFile) -> Factor:
    levels = tuple(Level(name=n, value=v) for _, n, v in level_values(body.levels))
    cost = parse_duration(body.change_cost)
    return Factor(name=name, levels=levels, unit=body.unit, change_cost_s=cost)


def _design(file: StudyFile) -> DesignSpec:
    design = file.design
    return DesignSpec(
        fraction=design.kind.fraction if isinstance(design.kind, FractionFile) else 0,
        generators=tuple(design.generators),
        replicates=design.replicates,
        seed=design.seed,
        order=design.order,
        noise=parse_share(design.noise),
    )


def _response(name: str, body: ResponseFile) -> Response:
    given = body.source
    if isinstance(given, RegexFile):
        source = ResponseSource(kind="regex", regex=given.regex, file=given.file)
    elif isinstance(given, JsonFile):
        source = ResponseSource(kind="json", json_path=given.json_path, file=given.file)
    else:
        source = ResponseSource(kind="key", key=given)
    return Response(name=name, source=source, unit=body.unit, better=body.better)


def _observers(file: StudyFile) -> Observers:
    monitor, trace = file.observers.monitor, file.observers.trace
    return Observers(
        monitor=MonitorSpec(interval_s=parse_duration(monitor.interval)) if monitor else None,
        trace=TraceSpec(mode=trace.mode) if trace else None,
    )


def _settle(file: StudyFile, document: dict[str, Any]) -> Settle:
    settle = file.settle
    said = document.get("settle") or {}
    most = settle.resident_at_most
    if settle.resident_at_least is not None and "resident_at_most" not in said:
        most = None
    if not settle.drop_caches and "resident_at_most" not in said:
        most = None
    return Settle(
        sync=settle.sync,
        drop_caches=settle.drop_caches and settle.resident_at_least is None,
        resident_at_most=parse_share(most) if most is not None else None,
        resident_at_least=parse_share(settle.resident_at_least)
        if settle.resident_at_least is not None
        else None,
        idle_s=parse_duration(settle.idle),
    )
