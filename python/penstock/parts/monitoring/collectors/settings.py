"""Settings of collectors as a file says them, `{NAME: {type: …, …}}`: read alike for a server, a study and a
monitored command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, printable
from penstock.parts.monitoring.collectors.runner import collectors_of
from penstock.plugins import COLLECTORS
from penstock.spec.source import Source, read_source

MOST_COLLECTORS = 100
#: for which experiments a collector works by where they were begun
BEGUN = ("here", "anywhere")
#: begins the names of what a command finds in its environment
VARIABLE = "PENSTOCK_COLLECT_"
#: of what a run's other observers record, and of what is computed from it
TAKEN = ("monitor", "samples", "utilisation", "derived")
#: which experiments a collector of a server works for
_CHOOSE = ("experiments", "begun")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: where a mistake is, below the settings; what was found, what was expected
Mistake = tuple[tuple[str | int, ...], str, str]


def checked_collectors(wanted: Any) -> dict[str, dict[str, Any]]:
    """Settings of collectors by name. BadInput for what is none, with what was found and expected."""
    if not isinstance(wanted, Mapping) or not all(isinstance(s, Mapping) for s in wanted.values()):
        raise BadInput("found collectors of another form; expected an object of settings by name")
    if len(wanted) > MOST_COLLECTORS:
        raise BadInput(f"found {len(wanted)} collectors; expected {MOST_COLLECTORS} at most")
    for name, settings in wanted.items():
        pattern = settings.get("experiments", "*")
        if not isinstance(pattern, str) or not 0 < len(pattern) <= 500:
            raise BadInput(f"{name}: found experiments {pattern!r}; expected a pattern of names")
        begun = settings.get("begun", BEGUN[0])
        if begun not in BEGUN:
            raise BadInput(f"{name}: found begun {begun!r}; expected {' or '.join(BEGUN)}")
        collectors_of({name: own_settings(settings)})
    return {name: dict(settings) for name, settings in wanted.items()}


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says which experiments it works for, which is no collector's."""
    return {key: value for key, value in settings.items() if key not in _CHOOSE}


def of_run(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a collector of one run: what listens does so at a free port, for who has its token, unless
    it is said otherwise. BadInput for a kind that there is not."""
    kind = COLLECTORS.load(str(settings.get("type", name)))
    private = getattr(kind, "of_run", None)
    return {**(private(settings) if private is not None else settings)}


def variable(name: str) -> str:
    """What the address of a receiver is called in the environment of a command."""
    return VARIABLE + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def of_file(path: Path, wanted: Any) -> dict[str, dict[str, Any]]:
    """The collectors of a configuration. BadInput with file and line of all that is wrong with them."""
    if not isinstance(wanted, Mapping) or len(wanted) > MOST_COLLECTORS:
        wrong = list(mistakes(wanted))
    else:
        wrong = [m for name, settings in wanted.items() for m in _of_settings(name, settings)]
    if wrong:
        raise placed(path, wrong)
    return checked_collectors(wanted)


def placed(path: Path, wrong: Iterable[Mistake]) -> BadInput:
    """What is wrong with the `collectors` of a file of JSON, with its lines."""
    try:
        source = read_source(path.read_bytes(), str(path))
    except (BadInput, OSError):  # JSON that is no YAML: the place is not known
        source = Source(str(path), None)
    for where, found, expected in wrong:
        source.mistake(("collectors", *where), found, expected)
    return BadInput(mistakes=source.mistakes)


def mistakes(wanted: Any) -> Iterator[Mistake]:
    """Everything that is wrong with the collectors of a run, each with its place."""
    if not isinstance(wanted, Mapping):
        yield (), _shown(wanted), "settings of collectors by name"
        return
    if len(wanted) > MOST_COLLECTORS:
        yield (), f"{len(wanted)} collectors", f"{MOST_COLLECTORS} at most"
        return
    variables: dict[str, str] = {}
    for name, settings in wanted.items():
        other = variables.setdefault(variable(str(name)), str(name))
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield (name,), f"collector {name!r}", "1 to 64 letters, digits, `.`, `_`, `-`"
        elif name in TAKEN:
            yield (name,), f"collector {name}", "another name: a run's own series have it"
        elif other != name:
            yield (
                (name,),
                f"collectors {other} and {name}",
                f"names that differ in {variable(name)}",
            )
        elif isinstance(settings, Mapping) and (choice := [k for k in _CHOOSE if k in settings]):
            yield (name, choice[0]), choice[0], "nothing: it works in every run"
        else:
            yield from _of_settings(name, settings, run=True)


def _of_settings(name: str, settings: Any, *, run: bool = False) -> Iterator[Mistake]:
    """What is wrong with one collector."""
    if not isinstance(settings, Mapping):
        yield (name,), _shown(settings), "the collector's settings"
        return
    try:
        checked_collectors({name: of_run(name, settings) if run else settings})
    except BadInput as error:
        found, expected = _parted(str(error), name)
        yield (name, *_place(settings, found)), found, expected


def checked_of_run(wanted: Any) -> dict[str, dict[str, Any]]:
    """Settings of the collectors of a run. BadInput with all that is wrong with them."""
    wrong = [
        f"{'.'.join(map(str, path))}: found {found}; expected {expected}"
        for path, found, expected in mistakes(wanted)
    ]
    if wrong:
        raise BadInput("; ".join(wrong))
    return {name: dict(settings) for name, settings in wanted.items()}


def _parted(text: str, name: str) -> tuple[str, str]:
    """What was found and what was expected, of the words of a collector."""
    found, _, expected = text.removeprefix(f"{name}: ").rpartition("; expected ")
    key, colon, rest = found.partition(": found ")
    if colon and key.isidentifier():
        found = f"{key} {rest}"
    found = found.removeprefix("found ")
    return (found, expected) if found and expected else (text, "settings of a collector")


def _place(settings: Mapping[str, Any], found: str) -> tuple[str | int, ...]:
    """The path of the setting that is spoken of; empty where that cannot be told."""
    best: tuple[int, tuple[str | int, ...]] = (0, ())
    for path, value in _leaves(settings, ()):
        keys = sum(isinstance(k, str) and _says(found, k) for k in path)
        shown = repr(value) if isinstance(value, str) else str(value)
        known = isinstance(value, str | int | float) and len(shown) > 2 and shown in found
        score = keys + 2 * known
        if score > best[0]:
            best = score, path
    return best[1]


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    if path:
        yield path, value
    for key, one in inner:
        yield from _leaves(one, (*path, key))


def _says(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) is not None


def _shown(value: Any) -> str:
    return "nothing" if value is None else printable(repr(value)[:80])
