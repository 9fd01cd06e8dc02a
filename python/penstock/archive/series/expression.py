"""Series computed from others: `sum("disk * busy") / 2`, `rate(bytes)`, `moving_mean(a, 10)`.

    expression := term (("+" | "-") term)*
    term       := factor (("*" | "/") factor)*
    factor     := NUMBER | SERIES | FUNCTION [BY] "(" expression, … ")" [BY] | "(" expression ")" | "-" factor
    BY         := "by" "(" label, … ")", of sum, mean, min and max: one series for each of their values
    SERIES     := name or "name with * and ?", then {node} or {label="value"} to select some of several

A name selects all series of that name or quantity, one per node. Operands of several nodes are paired by
node; an operand of a single node is paired with each. Values are paired within half a step of the first
(unless `join` specifies otherwise). An undefined result is a missing value. Only this grammar is evaluated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.archive.series.bucket_series import quantile_series
from penstock.archive.series.selector import selector
from penstock.archive.series.series import Array, Recorded, Series, at_times, names_near
from penstock.errors import BadInput, printable

MOST_TEXT = 2_000
MOST_TOKENS = 400
MOST_DEPTH = 40
#: limit of points of all series in an expression
MOST_POINTS = 50_000_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:]{0,99}")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.:]*)"
    r'|"(?P<text>[^"]*)"'
    r"|(?P<node>\{[^{}]*\})"
    r"|(?P<sign>[-+*/(),]))"
)

Value = float | list[Series]


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


def derived(recorded: Recorded, name: str, expression: str, unit: str | None = None) -> Recorded:
    """The series `name` from an expression of others, for each run separately.

    Raises BadInput for an invalid name or expression, missing series, or incompatible units.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"found name {printable(name[:80])!r}; expected letters, digits, _, . and :")
    runs = list(dict.fromkeys((s.group, s.run) for s in recorded.series))
    series: list[Series] = []
    for group, run in runs or [("", "")]:
        own = [s for s in recorded.series if (s.group, s.run) == (group, run)]
        value = _Reader(expression, own).parse()
        if isinstance(value, float):
            raise BadInput(
                f"{name}: found a number, {expression}; expected an expression of series"
            )
        for s in value:
            named = f"{name} {s.node}".strip()
            of = s.unit if unit is None else unit
            series.append(Series(named, s.x, s.y, of, s.node, name, run, group, labels=s.labels))
    points = sum(len(s.x) for s in series)
    if points > MOST_POINTS:
        raise BadInput(f"{name}: found {points} points; expected {MOST_POINTS} at most")
    return replace(recorded, series=series)


def evaluated(expression: str, series: Sequence[Series]) -> tuple[Value, list[Series]]:
    """Value of an expression of one run's series, and the series that it uses. BadInput as for `derived`."""
    reader = _Reader(expression, series)
    return reader.parse(), reader.used


def fault_of(expression: str) -> str:
    """Syntax error of an expression, for any series; empty if valid."""
    try:
        _Reader(expression, ())
    except BadInput as error:
        return str(error)
    return ""


def split(assignment: str) -> tuple[str, str]:
    """NAME and EXPR of `NAME=EXPR`."""
    name, equals, expression = assignment.partition("=")
    if not equals or not name.strip() or not expression.strip():
        raise BadInput(f"found {printable(assignment[:80])!r}; expected NAME=EXPRESSION")
    return name.strip(), expression.strip()


class _Reader:
    """Recursive-descent parser that evaluates an expression."""

    def __init__(self, expression: str, series: Sequence[Series]) -> None:
        if len(expression) > MOST_TEXT:
            raise BadInput(
                f"found an expression of {len(expression)} characters; expected {MOST_TEXT} at most"
            )
        self._text = expression
        self._series = series
        self.used: list[Series] = []
        self._tokens = self._cut()
        self._next = 0
        self._depth = 0

    def parse(self) -> Value:
        value = self._sum()
        if self._next < len(self._tokens):
            raise self._wrong("the end, or one of + - * /")
        return value

    def _cut(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or len(tokens) >= MOST_TOKENS:
                more = f", or fewer than {MOST_TOKENS} words" if match else ""
                raise BadInput(
                    f"found {printable(text[at : at + 20])!r} at {at + 1}; expected a number, a name, "
                    f'"a name", or one of + - * / ( ) ,{more}'
                )
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return tokens

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, *signs: str) -> str | None:
        token = self._peek()
        if token is not None and token.kind == "sign" and token.text in signs:
            self._next += 1
            return token.text
        return None

    def _wrong(self, expected: str) -> BadInput:
        token = self._peek()
        actual = "the end" if token is None else f"{printable(token.text)!r} at {token.at + 1}"
        return BadInput(f"{printable(self._text)}: found {actual}; expected {expected}")

    def _sum(self) -> Value:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadInput(f"found more than {MOST_DEPTH} brackets in one another")
        value = self._product()
        while sign := self._take("+", "-"):
            value = _binary(sign, value, self._product())
        self._depth -= 1
        return value

    def _product(self) -> Value:
        value = self._factor()
        while sign := self._take("*", "/"):
            value = _binary(sign, value, self._factor())
        return value

    def _factor(self) -> Value:
        negative = False
        while self._take("-"):
            negative = not negative
        value = self._atom()
        return _binary("*", -1.0, value) if negative else value

    def _atom(self) -> Value:
        token = self._peek()
        if token is None:
            raise self._wrong("a number, a series or a function")
        if self._take("("):
            value = self._sum()
            self._close()
            return value
        self._next += 1
        if token.kind == "number":
            return float(token.text)
        if token.kind == "name":
            labels = self._labels() if token.text in _TOGETHER else None
            if self._take("("):
                return self._call(token, labels)
        if token.kind in ("name", "text"):
            following = self._peek()
            braces = ""
            if following is not None and following.kind == "node":
                braces = following.text
                self._next += 1
            return self._select(token.text, braces)
        if token.kind == "node":
            return self._select("", token.text)
        self._next -= 1
        raise self._wrong("a number, a series or a function")

    def _close(self) -> None:
        if not self._take(")"):
            raise self._wrong("a )")

    def _select(self, name: str, braces: str) -> list[Series]:
        """Series of a name and the selector in braces after it."""
        selected = _chosen(self._series, name, braces)
        self.used += selected
        return selected

    def _labels(self) -> list[str] | None:
        """Labels of `by (mode, cpu)`; None without `by`."""
        token = self._peek()
        if token is None or token.kind != "name" or token.text != "by":
            return None
        self._next += 1
        if not self._take("("):
            raise self._wrong("labels in ( )")
        labels = []
        while True:
            label = self._peek()
            if label is None or label.kind != "name":
                raise self._wrong("a label")
            labels.append(label.text)
            self._next += 1
            if not self._take(","):
                self._close()
                return labels

    def _call(self, name: _Token, labels: list[str] | None = None) -> Value:
        function = FUNCTIONS.get(name.text)
        if function is None:
            self._next -= 2
            raise self._wrong(f"a function: {', '.join(FUNCTIONS)}")
        how: list[str] = []
        arguments: list[Value] = []
        while True:
            token = self._peek()
            after = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
            if (
                token is not None
                and token.kind == "name"
                and token.text in _HOW
                and after is not None
                and after.text == ")"
                and arguments
            ):
                how.append(token.text)
                self._next += 1
            else:
                arguments.append(self._sum())
            if not self._take(","):
                break
        self._close()
        if labels is None and name.text in _TOGETHER:
            labels = self._labels()
        try:
            if labels is not None:
                return _by(labels, function, arguments, how[0] if how else "nearest")
            return function(arguments, how[0] if how else "nearest")
        except BadInput as error:
            raise BadInput(f"{name.text}: {error}") from None


_HOW = ("nearest", "last", "exact")


def _chosen(series: Sequence[Series], name: str, braces: str) -> list[Series]:
    requested = replace(selector(f"X{braces}"), name=name)
    chosen = [s for s in series if requested.takes(s.names, s.node, s.labels)]
    if not chosen and requested.node is not None:  # value of one of several labels
        plain = replace(requested, node=None)
        chosen = [
            s
            for s in series
            if requested.node in s.labels.values() and plain.takes(s.names, s.node, s.labels)
        ]
    if not chosen:
        what = printable(f"{name}{braces}")
        named = [
            s
            for s in series
            if name and replace(requested, node=None, matchers=()).takes(s.names, "", {})
        ]
        if not named:
            expected = names_near([name], [s.quantity or s.name for s in series])
            raise BadInput(f"found no series {what}; expected {expected}")
        if requested.matchers:
            choices = dict.fromkeys(f'{k}="{v}"' for s in named for k, v in s.labels.items())
        else:
            choices = dict.fromkeys(s.node for s in named if s.node)
        expected = ", ".join(printable(n) for n in list(choices)[:12]) or "none"
        raise BadInput(f"found no series {what}; expected one of {expected}")
    return chosen


def _binary(sign: str, first: Value, second: Value) -> Value:
    compute = _OPERATIONS[sign]
    if isinstance(first, float) and isinstance(second, float):
        with np.errstate(all="ignore"):
            return float(compute(np.float64(first), np.float64(second)))
    if isinstance(first, float) or isinstance(second, float):
        of: list[Series] = second if isinstance(first, float) else first  # type: ignore[assignment]
        number = second if isinstance(second, float) else math.nan
        results = []
        for s in of:
            a, b = (first, s.y) if isinstance(first, float) else (s.y, number)
            unit = f"1/{s.unit}" if sign == "/" and isinstance(first, float) and s.unit else s.unit
            results.append(replace(s, y=_computed(compute, a, b), unit=unit))
        return results
    return [
        replace(
            a,
            node=a.node or b.node,
            y=_computed(compute, a.y, at_times(b, a.x)),
            unit=_unit(sign, a.unit, b.unit),
        )
        for a, b in _pairs(first, second)
    ]


_OPERATIONS: dict[str, Callable[..., Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}


def _computed(compute: Callable[..., Array], a: float | Array, b: float | Array) -> Array:
    with np.errstate(all="ignore"):
        values = np.asarray(compute(a, b), float)
    return np.where(np.isfinite(values), values, np.nan)


def _pairs(first: Sequence[Series], second: Sequence[Series]) -> list[tuple[Series, Series]]:
    """Pairs by node; a series of a single node is paired with each."""
    if len(second) == 1:
        return [(a, second[0]) for a in first]
    if len(first) == 1:
        return [(replace(first[0], node=b.node), b) for b in second]
    by_node: dict[str, Series] = {}
    for b in second:
        if b.node in by_node:
            raise BadInput(
                f"found several series of {b.node or 'no node'}: {by_node[b.node].name}, {b.name}; "
                "expected one"
            )
        by_node[b.node] = b
    pairs = [(a, by_node[a.node]) for a in first if a.node in by_node]
    if not pairs:
        raise BadInput(
            f"found no node of both: {first[0].node or 'none'} and {second[0].node or 'none'}; expected some"
        )
    return pairs


def _unit(sign: str, a: str, b: str) -> str:
    if sign in "+-":
        if a and b and a != b:
            raise BadInput(f"found {a} {sign} {b}; expected values of one unit")
        return a or b
    if sign == "/":
        return a if b in ("", "1") else "" if a == b else f"{a or '1'}/{b}"
    return a if b in ("", "1") else b if a in ("", "1") else f"{a}·{b}"


def _series(arguments: Sequence[Value], count: int | None = None) -> list[list[Series]]:
    series = [g for g in arguments if not isinstance(g, float)]
    if len(series) != len(arguments) or not series or (count is not None and len(series) != count):
        expected = "series" if count is None else f"{count} series"
        raise BadInput(
            f"found {len(arguments)} arguments, {len(series)} of them series; expected {expected}"
        )
    return series


def _together(compute: Callable[[Array], Array]) -> Callable[[Sequence[Value], str], Value]:
    """Aggregate function of all series: at the times of the first, if each of them has a value."""

    def function(arguments: Sequence[Value], how: str) -> Value:
        every = [s for group in _series(arguments) for s in group]
        units = {s.unit for s in every if s.unit}
        if len(units) > 1:
            raise BadInput(f"found units {', '.join(sorted(units))}; expected one")
        first = every[0]
        rows = np.vstack([first.y, *(at_times(s, first.x, how) for s in every[1:])])
        unit = units.pop() if units else ""
        node = first.node if len(every) == 1 else ""
        labels = first.labels if len(every) == 1 else {}
        return [replace(first, y=compute(rows), unit=unit, node=node, labels=labels)]

    return function


def _by(
    labels: Sequence[str],
    function: Callable[[Sequence[Value], str], Value],
    arguments: Sequence[Value],
    how: str,
) -> Value:
    """One series for each combination of the values of these labels."""
    every = [s for group in _series(arguments) for s in group]
    existing = dict.fromkeys(k for s in every for k in s.labels)
    absent = [n for n in labels if n not in existing]
    if absent:
        raise BadInput(
            f"found no label {absent[0]}; expected one of {', '.join(existing) or 'none'}"
        )
    groups: dict[tuple[str, ...], list[Series]] = {}
    for s in every:
        groups.setdefault(tuple(s.labels.get(n, "") for n in labels), []).append(s)
    results = []
    for values, group in groups.items():
        (one,) = function([group], how)  # type: ignore[misc]
        of = dict(zip(labels, values, strict=True))
        results.append(replace(one, node=" ".join(filter(None, values)), labels=of))
    return results


def _rate(arguments: Sequence[Value], how: str) -> Value:
    """Rate per second between points; none if a counter decreased."""
    (group,) = _series(arguments, 1)
    return [replace(d, y=_per_second(d, s), unit=f"{s.unit or '1'}/s") for d, s in _steps(group)]


def _per_second(step: Series, of: Series) -> Array:
    with np.errstate(all="ignore"):
        values = step.y / np.diff(of.x)
    return np.where(np.isfinite(values) & (step.y >= 0), values, np.nan)


def _delta(arguments: Sequence[Value], how: str) -> Value:
    (group,) = _series(arguments, 1)
    return [d for d, _ in _steps(group)]


def _steps(group: Sequence[Series]) -> list[tuple[Series, Series]]:
    finite = [replace(s, x=s.x[(k := np.isfinite(s.y))], y=s.y[k]) for s in group]
    return [(replace(s, x=s.x[1:], y=np.diff(s.y)), s) for s in finite]


def _ratio(arguments: Sequence[Value], how: str) -> Value:
    a, b = _series(arguments, 2)
    return _binary("/", a, b)


def _join(arguments: Sequence[Value], how: str) -> Value:
    """Values of the second at the times of the first."""
    a, b = _series(arguments, 2)
    return [replace(s, x=t.x, y=at_times(s, t.x, how)) for t, s in _pairs(a, b)]


def _moving_mean(arguments: Sequence[Value], how: str) -> Value:
    """Mean of the points of the last N seconds (or indices of a sequence), including this one."""
    if (
        len(arguments) != 2
        or isinstance(arguments[0], float)
        or not isinstance(arguments[1], float)
    ):
        raise BadInput("found other arguments; expected a series and seconds")
    width = arguments[1]
    if not (math.isfinite(width) and width > 0):
        raise BadInput(f"found {width:g} s; expected more than 0")
    means = []
    for s in arguments[0]:
        there = np.isfinite(s.y)
        total = np.concatenate([[0.0], np.cumsum(np.where(there, s.y, 0.0))])
        count = np.concatenate([[0], np.cumsum(there)])
        # tolerance of half a nanosecond: times are seconds, rounded
        low = np.searchsorted(s.x, s.x - width + 5e-10, side="right")
        high = np.arange(1, len(s.x) + 1)
        low = np.minimum(low, high - 1)
        n = count[high] - count[low]
        with np.errstate(all="ignore"):
            mean = (total[high] - total[low]) / n
        means.append(replace(s, y=np.where(n > 0, mean, np.nan)))
    return means


def _abs(arguments: Sequence[Value], how: str) -> Value:
    (group,) = _series(arguments, 1)
    return [replace(s, y=np.abs(s.y)) for s in group]


def _quantile(arguments: Sequence[Value], how: str) -> Value:
    """Quantile of a histogram's buckets over the last N seconds, or since the previous point."""
    q, group, window = [*arguments, None, None][:3] if len(arguments) in (2, 3) else [None] * 3
    if not isinstance(q, float) or not isinstance(group, list) or isinstance(window, list):
        raise BadInput("found other arguments; expected a share, series of buckets, and seconds")
    return quantile_series(group, q, window)


FUNCTIONS: dict[str, Callable[[Sequence[Value], str], Value]] = {
    "sum": _together(lambda rows: np.sum(rows, axis=0)),
    "mean": _together(lambda rows: np.mean(rows, axis=0)),
    "min": _together(lambda rows: np.min(rows, axis=0)),
    "max": _together(lambda rows: np.max(rows, axis=0)),
    "rate": _rate,
    "delta": _delta,
    "ratio": _ratio,
    "join": _join,
    "moving_mean": _moving_mean,
    "abs": _abs,
    "quantile": _quantile,
}
#: functions that aggregate several series into one, and support `by (LABEL, …)`
_TOGETHER = ("sum", "mean", "min", "max")
