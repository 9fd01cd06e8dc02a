"""What is wrong with a study beyond the form of its keys. Reads plain values and tolerates broken ones,
so that all mistakes are found at once."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from penstock.design.generators import NoFraction, largest_fraction, parse_generator
from penstock.errors import BadInput
from penstock.platform.profiles import read_profile, ready_names
from penstock.study.names import BUILT_IN, RESERVED, listed, name_fault, suggestion
from penstock.study.source import Path, Source
from penstock.study.template import LoneBrace, fill, names_in
from penstock.study.units import parse_size, parse_unit
from penstock.workload.parsers import NAMES, parser

_WORKLOAD_TEXTS = ("prepare", "command", "after", "directory")
_MOST_FACTORS = 20
_MOST_TREATMENTS = 1 << 16


@dataclass
class _Names:
    """What templates may refer to."""

    factors: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → level name → value
    disks: dict[str, list[str]] = field(default_factory=dict)  # disk → nodes that have it
    nodes: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


def check(source: Source, base_dir: FilePath) -> dict[str, dict[str, Any]]:
    """Adds every mistake to `source`; gives the storage profiles that the study refers to, by name."""
    document = source.value if isinstance(source.value, dict) else {}
    names = _Names()
    _factors(source, document, names)
    _platform_names(source, document, names)
    profiles = _platform(source, document, names, base_dir)
    _workload(source, document, names)
    _responses(source, document, names)
    _unused(source, document, names)
    _design(source, document, names)
    _settle(source, document)
    return profiles


def _mapping(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _name(source: Source, path: Path, name: str, taken: dict[str, str], what: str) -> None:
    """Checks one name that becomes a column; notes it in `taken` (lower case → what it names)."""
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
            f"another name for the {what} (upper and lower case are not told apart)",
            key=True,
        )
    else:
        taken[name.lower()] = f"the {what} '{name}'"


def level_values(levels: Any) -> Iterator[tuple[str | int, str, Any]]:
    """Of a factor's `levels` as written: key or index, name, value of each level."""
    if isinstance(levels, dict):
        for name, value in levels.items():
            yield name, name, _level_value(value)
    elif isinstance(levels, list):
        for i, value in enumerate(levels):
            plain = _level_value(value)
            yield i, plain if isinstance(plain, str) else str(plain), plain


def _level_value(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _factors(source: Source, document: dict[str, Any], names: _Names) -> None:
    taken: dict[str, str] = {}
    for factor, body in _mapping(document, "factors").items():
        path: Path = ("factors", factor)
        _name(source, path, factor, taken, "factor")
        levels = body.get("levels") if isinstance(body, dict) else None
        names.factors[factor] = {}
        if not isinstance(levels, list | dict):
            continue
        found = list(level_values(levels))
        if len(found) < 2:
            source.mistake(
                (*path, "levels"),
                f"{len(found)} level{'s' * (len(found) != 1)}",
                "at least 2 levels",
            )
        _levels(source, (*path, "levels"), found, names.factors[factor])


def _levels(
    source: Source, path: Path, found: list[tuple[str | int, str, Any]], levels: dict[str, Any]
) -> None:
    values: dict[str, str] = {}
    for key, name, value in found:
        here = (*path, key)
        fault = name_fault(name)
        if value is None or isinstance(value, list | dict):
            source.mistake(here, _shown(value), "a level: text or a number")
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


def _platform_names(source: Source, document: dict[str, Any], names: _Names) -> None:
    nodes = _mapping(document, "platform").get("nodes")
    factors = {f.lower() for f in names.factors}
    for i, node in enumerate(nodes if isinstance(nodes, list) else []):
        path: Path = ("platform", "nodes", i)
        node_name = node.get("name") if isinstance(node, dict) else None
        if isinstance(node_name, str):
            _part_name(source, (*path, "name"), node_name, names.nodes, "node")
            names.nodes.add(node_name)
        disks = node.get("disks") if isinstance(node, dict) else None
        here: set[str] = set()
        for j, disk in enumerate(disks if isinstance(disks, list) else []):
            name = disk.get("name") if isinstance(disk, dict) else None
            if not isinstance(name, str):
                continue
            at = (*path, "disks", j, "name")
            if name in BUILT_IN or name.lower() in factors:
                what = "a factor" if name.lower() in factors else "reserved"
                source.mistake(
                    at, f"the disk name '{name}', which is {what} too", "a name of its own"
                )
            else:
                _part_name(source, at, name, here, "disk of this node")
            here.add(name)
            nodes_of = names.disks.setdefault(name, [])
            if str(node_name) not in nodes_of:
                nodes_of.append(str(node_name))


def _part_name(source: Source, path: Path, name: str, taken: set[str], what: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
        source.mistake(
            path, f"the name '{name}'", "letters, digits, '_' and '-' (at most 32), such as data"
        )
    elif name in taken:
        source.mistake(path, f"a second {what} called '{name}'", "each name once")


def _templates(
    source: Source, path: Path, text: Any, names: _Names, *, disks: bool
) -> list[str] | None:
    """Factors that a template refers to; None if the template is broken. Notes its mistakes."""
    if not isinstance(text, str):
        return None
    try:
        found = names_in(text)
    except LoneBrace as brace:
        names.used |= {f for f in names.factors if f"{{{f}}}" in text}
        source.mistake_in(
            path,
            str(brace),
            f"a lone '{brace}'",
            "{name} of a factor or disk; a literal brace is doubled",
        )
        return None
    good = True
    for name in found:
        if name in names.factors:
            names.used.add(name)
        elif not _known(source, path, name, names, disks=disks):
            good = False
    return [n for n in found if n in names.factors] if good else None


def _known(source: Source, path: Path, name: str, names: _Names, *, disks: bool) -> bool:
    node, dot, disk = name.partition(".")
    if name == "study_dir" or (disks and name in BUILT_IN):
        return True
    if disks and len(names.disks.get(name, [])) == 1:
        return True
    if disks and dot and node in names.nodes and node in names.disks.get(disk, []):
        return True
    known = [*names.factors, "study_dir"]
    names.used |= {f for f in names.factors if f"'{f}'" in suggestion(name, known)}
    if disks:
        known += [*names.disks, *BUILT_IN]
    if name in names.disks and not disks:
        expected = "a factor; directories of disks are known to the workload only"
    elif name in names.disks:
        choices = [f"{{{n}.{name}}}" for n in names.disks[name]]
        expected = f"which node's disk it is: {listed(choices)}"
    elif disks and dot and node in names.nodes:
        has = [d for d, nodes in names.disks.items() if node in nodes]
        expected = f"a disk of node '{node}': {listed(has) or 'it has none'}{suggestion(disk, has)}"
    elif disks and dot and disk in names.disks:
        nodes = sorted(names.nodes)
        expected = f"a node of the platform: {listed(nodes)}{suggestion(node, nodes)}"
    else:
        shown = listed(list(dict.fromkeys(known)))
        expected = f"{shown}{suggestion(name, known)}; a literal brace is doubled: {{{{ }}}}"
    what = "unknown node or disk" if disks and dot else "unknown name"
    source.mistake_in(path, f"{{{name}}}", f"the {what} '{{{name}}}'", expected)
    return False


def _filled(source: Source, path: Path, text: Any, names: _Names) -> Iterator[tuple[str, Path]]:
    """Every text that a platform template can become, each with the place of what decides it."""
    factors = _templates(source, path, text, names, disks=False)
    if factors is None:
        return
    alone = len(factors) == 1 and text.strip() == f"{{{factors[0]}}}"
    for chosen in itertools.islice(
        itertools.product(*(names.factors[f].items() for f in factors)), 4096
    ):
        values = {f: str(v) for f, (_, v) in zip(factors, chosen, strict=True)}
        where = path
        if alone:
            levels = _mapping(source.value, "factors", factors[0]).get("levels")
            keys = [k for k, n, _ in level_values(levels) if n == chosen[0][0]]
            where = ("factors", factors[0], "levels", *keys)
        yield fill(text, {**values, "study_dir": "."}), where


def _platform(
    source: Source, document: dict[str, Any], names: _Names, base_dir: FilePath
) -> dict[str, dict[str, Any]]:
    profiles: dict[str, dict[str, Any]] = {}
    nodes = _mapping(document, "platform").get("nodes")
    for i, node in enumerate(nodes if isinstance(nodes, list) else []):
        if not isinstance(node, dict):
            continue
        path: Path = ("platform", "nodes", i)
        for key, kind in (("memory", "size"), ("cpus", "number")):
            if key in node:
                _values(source, (*path, key), node[key], names, kind)
        disks = node.get("disks")
        for j, disk in enumerate(disks if isinstance(disks, list) else []):
            if not isinstance(disk, dict):
                continue
            at = (*path, "disks", j)
            texts = ("time_scale", "number"), ("size", "size"), ("mount", "text")
            for key, kind in (*texts, ("directory", "text")):
                if key in disk:
                    _values(source, (*at, key), disk[key], names, kind)
            _profile_or_directory(source, at, disk)
            for name, where in _filled(source, (*at, "profile"), disk.get("profile"), names):
                _profile(source, where, name, base_dir, profiles)
    return profiles


def _profile_or_directory(source: Source, path: Path, disk: dict[str, Any]) -> None:
    if "directory" not in disk:
        if "profile" not in disk:
            here = ".".join(map(str, path))
            expected = "the key profile: the storage to emulate, or directory: one to take as it is"
            source.mistake(path, f"no 'profile' in {here}", expected, key=True)
        return
    for key in ("profile", "time_scale", "mount"):
        if key in disk:
            source.mistake(
                (*path, key),
                f"both directory and {key}",
                "a disk with a profile, which is emulated, or a directory, which is taken as it is",
                key=True,
            )


def _values(source: Source, path: Path, text: Any, names: _Names, kind: str) -> None:
    if not isinstance(text, str) or "{" not in text:
        return  # the form of plain values is checked with the keys
    for value, where in _filled(source, path, text, names):
        try:
            if kind == "size" and parse_size(value) <= 0:
                raise ValueError("a size above 0, such as 512MiB")
            if kind == "number":
                _number(value)
        except ValueError as error:
            source.mistake(where, f"'{value}'", str(error))


def _number(text: str) -> None:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number above 0, such as 4") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError("a number above 0, such as 4")


def _profile(
    source: Source, path: Path, name: str, base_dir: FilePath, profiles: dict[str, dict[str, Any]]
) -> None:
    if name in profiles:
        return
    try:
        profiles[name] = read_profile(name, base_dir)
    except BadInput as error:
        ready = ready_names()
        known = f"a ready profile ({listed(ready)}) or a JSON file beside the study"
        found = f"the profile '{name}', which does not exist"
        if not str(error).startswith("no profile"):
            found = f"the profile '{name}' ({error})"
        source.mistake(path, found, f"{known}{suggestion(name, ready)}")


def _workload(source: Source, document: dict[str, Any], names: _Names) -> None:
    workload = _mapping(document, "workload")
    for key in _WORKLOAD_TEXTS:
        _templates(source, ("workload", key), workload.get(key), names, disks=True)
    for key in ("prepare", "command"):
        quick = _mapping(workload, "quick").get(key)
        if quick is not None and quick != workload.get(key):
            _templates(source, ("workload", "quick", key), quick, names, disks=True)
    for key, value in _mapping(workload, "env").items():
        path: Path = ("workload", "env", key)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            source.mistake(path, f"'{key}'", "the name of an environment variable", key=True)
        if value is None or isinstance(value, list | dict):
            source.mistake(path, _shown(value), "text or a number")
        _templates(source, path, value, names, disks=True)
    name = workload.get("parser", "none")
    if isinstance(name, str) and name.strip() and name not in NAMES:
        source.mistake(
            ("workload", "parser"),
            f"the unknown parser '{name}'",
            f"{listed(list(NAMES))}{suggestion(name, list(NAMES))}",
        )


def _responses(source: Source, document: dict[str, Any], names: _Names) -> None:
    parser_name = _mapping(document, "workload").get("parser", "none")
    known: dict[str, str] | None = None
    if isinstance(parser_name, str) and parser_name in NAMES:
        known = {**parser(parser_name).RESPONSES, "wall_s": "s"}
    taken = {f.lower(): f"the factor '{f}'" for f in names.factors}
    for name, body in _mapping(document, "responses").items():
        path: Path = ("responses", name)
        _name(source, path, name, taken, "response")
        given = body.get("from") if isinstance(body, dict) else None
        if not isinstance(given, str) or known is None or not given.strip():
            continue
        if given not in known:
            source.mistake(
                (*path, "from"),
                f"the unknown response '{given}' of parser {parser_name}",
                f"one of {_some(list(known), given)}, {{regex: …}} or {{json: …}}",
            )
        elif isinstance(body, dict):
            _convertible(source, (*path, "unit"), body.get("unit"), known[given])


def _some(known: list[str], name: str) -> str:
    shown = known if len(known) <= 12 else [*known[:10], "…"]
    return ", ".join(shown) + suggestion(name, known)


def _convertible(source: Source, path: Path, unit: Any, given: str) -> None:
    try:
        wanted = parse_unit(str(unit))
    except ValueError:
        return  # reported with the keys
    if unit is not None and wanted.dimension != parse_unit(given).dimension:
        source.mistake(path, f"the unit '{unit}'", f"a unit that {given} can be converted to")


def _unused(source: Source, document: dict[str, Any], names: _Names) -> None:
    for factor in names.factors:
        if factor not in names.used:
            source.mistake(
                ("factors", factor),
                f"the factor '{factor}', which nothing refers to",
                f"{{{factor}}} in the platform or the workload",
                key=True,
            )


def _design(source: Source, document: dict[str, Any], names: _Names) -> None:
    design = _mapping(document, "design")
    kind, generators = design.get("kind"), design.get("generators", [])
    count = len(names.factors)
    if count > _MOST_FACTORS:
        source.mistake(
            ("factors",),
            f"{count} factors",
            f"at most {_MOST_FACTORS} factors in one study",
            key=True,
        )
        return
    treatments = math.prod(max(1, len(v)) for v in names.factors.values())
    if kind == "full":
        if treatments > _MOST_TREATMENTS:
            source.mistake(
                ("design", "kind"),
                f"a full design of {treatments} treatments",
                f"at most {_MOST_TREATMENTS}: fewer factors or levels, or a fraction",
            )
        if generators:
            source.mistake(
                ("design", "generators"), "generators for a full design", "kind: {fraction: …}"
            )
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


def _generators(source: Source, generators: list[Any], factors: list[str], added: int) -> None:
    path: Path = ("design", "generators")
    if len(generators) != added:
        source.mistake(path, f"{len(generators)} generators", f"{added}, one per added factor")
    defined: dict[int, str] = {}
    words: set[int] = set()
    parsed = []
    for i, text in enumerate(generators):
        if not isinstance(text, str):
            continue
        try:
            generator = parse_generator(text, factors)
        except NoFraction as error:
            source.mistake((*path, i), f"the generator '{text}'", str(error))
            continue
        if generator.factor in defined or generator.word in words:
            source.mistake((*path, i), f"'{text}'", "each added factor and each word once")
        defined[generator.factor] = text
        words.add(generator.word)
        parsed.append((i, generator))
    for i, generator in parsed:
        inner = [factors[f] for f in defined if generator.word >> f & 1]
        if inner:
            source.mistake(
                (*path, i),
                f"the generator '{generators[i]}'",
                f"basic factors on its right side; {listed(inner)} is added itself",
            )


def _settle(source: Source, document: dict[str, Any]) -> None:
    settle = _mapping(document, "settle")
    if settle.get("resident_at_least") is not None and settle.get("resident_at_most") is not None:
        source.mistake(
            ("settle", "resident_at_least"),
            "both resident_at_least and resident_at_most",
            "one of them: a warm start or a cold one",
            key=True,
        )
