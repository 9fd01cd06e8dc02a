"""A number in a JSON text, by a path such as `jobs.0.read.bw_bytes`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.errors import PenstockError

WHAT = (
    "Path such as jobs.0.read.bw_bytes; of several documents (JSON Lines), -1.jobs.0… is the last."
)

#: characters after an error, mostly blanks, from which on the text does not end there
_MOST_REST = 10_000
#: limit of false starts of a document of several lines in a text
_MOST_NOTES = 1000
#: start of an object with a key; notes of programs do not start so
_OBJECT = re.compile(r'\{\s*"')
#: numbers of C's printf that JSON does not have
_NO_JSON = re.compile(r"(?<=[:,\[\s])-?(?:nan|inf)(?:\(ind\))?(?=\s*[,}\]])")


def expected(path: str) -> str:
    """Any text is a valid path."""
    return ""


def number(path: str, text: str, where: str) -> float:
    """Number at `path`. PenstockError for a text without JSON, or without a number at that path.

    Text before and after a document is skipped (notes of programs). Several documents, as in JSON Lines, are
    a list: the path then begins with an index, from 0, or -1 for the last.
    """
    values = documents(text, where)
    steps = path.split(".")
    value: Any = values if len(values) > 1 else values[0]
    if len(values) > 1 and not _is_index(steps[0]):
        raise PenstockError(
            f"found {len(values)} JSON documents in {where}; expected one, or a path that names one of them: "
            f"-1.{path} is in the last"
        )
    done: list[str] = []
    while steps:
        step = _key(value, steps) if isinstance(value, dict) else steps[0]
        done.append(step)
        steps = steps[step.count(".") + 1 :]
        if isinstance(value, _Object) and step in value.repeated:
            raise PenstockError(
                f"found {'.'.join(done)} several times in {where}; expected it once"
            )
        try:
            value = value[int(step)] if isinstance(value, list) and _is_index(step) else value[step]
        except (KeyError, IndexError, TypeError):
            raise PenstockError(f"{where} has no {'.'.join(done)}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PenstockError(f"{path} in {where} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise PenstockError(f"{path} in {where} is too large") from None


def _key(value: Mapping[str, Any], steps: list[str]) -> str:
    """The first step, or the first steps together if the key has dots, such as `99.000000`."""
    keys = (".".join(steps[:n]) for n in range(1, len(steps) + 1))
    return next((key for key in keys if key in value), steps[0])


class _Object(dict[str, Any]):
    """A JSON object; `repeated` are the keys that it has several times."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: set[str] = set()
        if len(self) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            self.repeated = {key for key, count in counts.items() if count > 1}


def document(text: str, where: str) -> Any:
    """The only JSON document of `text`; PenstockError for none or several."""
    values = documents(text, where)
    if len(values) > 1:
        raise PenstockError(f"found {len(values)} JSON documents in {where}; expected one")
    return values[0]


def documents(text: str, where: str) -> list[Any]:
    """JSON documents of `text`, in order; PenstockError for none, or if the last is truncated.

    A document starts at the start of a line with `{` or `[` and is followed by the end of its line or by the
    next document; other text is skipped, except text that starts as an object with a key.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_Object)
    text = _NO_JSON.sub("NaN", text.removeprefix("\ufeff"))
    values: list[Any] = []
    notes = at = 0
    while (at := _next_start(text, at)) >= 0:
        if _is_note(decoder, text, at):
            at = _next_line(text, at)
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError:
            raise PenstockError(
                f"found values nested too deeply in {where}; expected JSON of a report"
            ) from None
        except json.JSONDecodeError as error:
            if (values or text[at] == "[") and _is_cut(error, text):
                raise PenstockError(
                    f"found {where} to end within a JSON document; expected all of it"
                ) from None
            end = -1
        except ValueError:  # a number with too many digits
            end = -1
        if end >= 0 and _ends_a_document(text, end):
            values.append(value)
            at = end
            continue
        if _OBJECT.match(text, at):
            number = text.count("\n", 0, at) + 1
            raise PenstockError(
                f"found an incomplete JSON document, or text after it, in {where} from line {number} on; "
                "expected one document per line, or documents that end with their line"
            )
        notes += 1
        if notes >= _MOST_NOTES:
            raise PenstockError(f"found {notes} beginnings of JSON in {where}; expected documents")
        at = _next_line(text, at)
    if not values:
        raise PenstockError(f"{where} contains no JSON")
    return values


def _is_note(decoder: json.JSONDecoder, text: str, at: int) -> bool:
    """True if the line from `at` on is not the start of a document: `[INFO] begin`, `[1/2] step`, `[1] done`.

    An error in the text takes a time proportional to its position.
    """
    if _OBJECT.match(text, at):
        return False
    line = text[at : _next_line(text, at)]
    try:
        _, end = decoder.raw_decode(line)
    except json.JSONDecodeError as error:
        return not _is_cut(error, line)
    except (ValueError, RecursionError):
        return False
    return not _ends_a_document(line, end)


def _is_index(step: str) -> bool:
    return step.removeprefix("-").isdecimal()


def _next_start(text: str, at: int) -> int:
    """Next possible start of a document: `at` itself, or the start of a line; -1 for none."""
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        if line.lstrip()[:1] in ("{", "["):
            return at + len(line) - len(line.lstrip())
        at = end + 1
    return -1


def _next_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """True if the text ends within the document: in a string, a word, or before required tokens."""
    if error.msg.startswith("Unterminated string"):
        return True
    if len(text) - error.pos >= _MOST_REST:
        return False
    rest = text[error.pos :].strip()
    return len(rest) < len("false") and not set(rest) & set("]}")


def _ends_a_document(text: str, end: int) -> bool:
    """True if only the next document follows on the line."""
    rest = text[end : _next_line(text, end)].strip(" \t\r\n,")
    return not rest or rest[0] in "{["
