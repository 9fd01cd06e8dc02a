"""Settings of collectors in a file, `{NAME: {type: …, …}}`: the same for a server, a study and a monitored
command.
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
#: values of the setting `begun`
BEGUN = ("here", "anywhere")
#: prefix of the variables in a command's environment
VARIABLE = "PENSTOCK_COLLECT_"
#: names of sources of a run's other observers, and of derived series
TAKEN = ("monitor", "samples", "utilisation", "derived")
#: settings that select the experiments of a collector of a server
_CHOOSE = ("experiments", "begun")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: path below the settings, actual value, expected value
Mistake = tuple[tuple[str | int, ...], str, str]


def checked_collectors(raw: Any) -> dict[str, dict[str, Any]]:
    """Settings of collectors by name. BadInput, with actual and expected value, if they are invalid."""
    if not isinstance(raw, Mapping) or not all(isinstance(s, Mapping) for s in raw.values()):
        raise BadInput("found collectors of another form; expected an object of settings by name")
    if len(raw) > MOST_COLLECTORS:
        raise BadInput(f"found {len(raw)} collectors; expected {MOST_COLLECTORS} at most")
    for name, settings in raw.items():
        pattern = settings.get("experiments", "*")
        if not isinstance(pattern, str) or not 0 < len(pattern) <= 500:
            raise BadInput(f"{name}: found experiments {pattern!r}; expected a pattern of names")
        begun = settings.get("begun", BEGUN[0])
        if begun not in BEGUN:
            raise BadInput(f"{name}: found begun {begun!r}; expected {' or '.join(BEGUN)}")
        collectors_of({name: own_settings(settings)})
    return {name: dict(settings) for name, settings in raw.items()}


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that select experiments, which are not passed to the collector."""
    return {key: value for key, value in settings.items() if key not in _CHOOSE}


def of_run(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a collector of one run: by default a receiver has a free port and a token of its own.

    BadInput for an unknown kind.
    """
    kind = COLLECTORS.load(str(settings.get("type", name)))
    private = getattr(kind, "of_run", None)
    return {**(private(settings) if private is not None else settings)}


def variable(name: str) -> str:
    """Environment variable with the address of a receiver."""
    return VARIABLE + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def of_file(path: Path, raw: Any) -> dict[str, dict[str, Any]]:
    """Collectors of a configuration. BadInput with file and line of each mistake."""
    if not isinstance(raw, Mapping) or len(raw) > MOST_COLLECTORS:
        errors = list(mistakes(raw))
    else:
        errors = [m for name, settings in raw.items() for m in _of_settings(name, settings)]
    if errors:
        raise placed(path, errors)
    return checked_collectors(raw)


def placed(path: Path, errors: Iterable[Mistake]) -> BadInput:
    """Error with the mistakes in the `collectors` of a JSON file, with line numbers."""
    try:
        source = read_source(path.read_bytes(), str(path))
    except (BadInput, OSError):  # JSON that is not YAML: the line is unknown
        source = Source(str(path), None)
    for keys, actual, expected in errors:
        source.mistake(("collectors", *keys), actual, expected)
    return BadInput(mistakes=source.mistakes)


def mistakes(raw: Any) -> Iterator[Mistake]:
    """Mistakes in the collectors of a run, with their paths."""
    if not isinstance(raw, Mapping):
        yield (), _shown(raw), "settings of collectors by name"
        return
    if len(raw) > MOST_COLLECTORS:
        yield (), f"{len(raw)} collectors", f"{MOST_COLLECTORS} at most"
        return
    variables: dict[str, str] = {}
    for name, settings in raw.items():
        other_name = variables.setdefault(variable(str(name)), str(name))
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield (name,), f"collector {name!r}", "1 to 64 letters, digits, `.`, `_`, `-`"
        elif name in TAKEN:
            yield (name,), f"collector {name}", "another name: a run's own series have it"
        elif other_name != name:
            yield (
                (name,),
                f"collectors {other_name} and {name}",
                f"names that differ in {variable(name)}",
            )
        elif isinstance(settings, Mapping) and (choice := [k for k in _CHOOSE if k in settings]):
            yield (name, choice[0]), choice[0], "nothing: it works in every run"
        else:
            yield from _of_settings(name, settings, run=True)


def _of_settings(name: str, settings: Any, *, run: bool = False) -> Iterator[Mistake]:
    """Mistakes in the settings of one collector."""
    if not isinstance(settings, Mapping):
        yield (name,), _shown(settings), "the collector's settings"
        return
    try:
        checked_collectors({name: of_run(name, settings) if run else settings})
    except BadInput as error:
        actual, expected = _parted(str(error), name)
        yield (name, *_place(settings, actual)), actual, expected


def checked_of_run(raw: Any) -> dict[str, dict[str, Any]]:
    """Settings of the collectors of a run. BadInput with all mistakes."""
    errors = [
        f"{'.'.join(map(str, path))}: found {actual}; expected {expected}"
        for path, actual, expected in mistakes(raw)
    ]
    if errors:
        raise BadInput("; ".join(errors))
    return {name: dict(settings) for name, settings in raw.items()}


def _parted(text: str, name: str) -> tuple[str, str]:
    """Actual and expected value, parsed from an error message of a collector."""
    actual, _, expected = text.removeprefix(f"{name}: ").rpartition("; expected ")
    key, colon, remainder = actual.partition(": found ")
    if colon and key.isidentifier():
        actual = f"{key} {remainder}"
    actual = actual.removeprefix("found ")
    return (actual, expected) if actual and expected else (text, "settings of a collector")


def _place(settings: Mapping[str, Any], actual: str) -> tuple[str | int, ...]:
    """Path of the setting that a message refers to; empty if none matches."""
    best: tuple[int, tuple[str | int, ...]] = (0, ())
    for path, value in _leaves(settings, ()):
        keys = sum(isinstance(k, str) and _says(actual, k) for k in path)
        shown = repr(value) if isinstance(value, str) else str(value)
        in_text = isinstance(value, str | int | float) and len(shown) > 2 and shown in actual
        score = keys + 2 * in_text
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
    for key, item in inner:
        yield from _leaves(item, (*path, key))


def _says(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) is not None


def _shown(value: Any) -> str:
    return "nothing" if value is None else printable(repr(value)[:80])
