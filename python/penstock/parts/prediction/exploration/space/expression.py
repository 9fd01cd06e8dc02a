"""Objectives and constraints: arithmetic over the metrics of a configuration.

Parsed with `ast` into closures over numbers, without eval. A quantity may have a unit (`makespan <= 10 min`);
its value is in the base unit: seconds, joules, bytes, the platform's currency.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.spec.names import listed, suggestion
from penstock.spec.source import Position
from penstock.spec.units import CURRENCIES

Values = Mapping[str, float]
_Compiled = Callable[[Values], float]

#: name in expressions → column of the evaluations
METRICS = {
    "makespan_s": "makespan_s",
    "makespan": "makespan_s",
    "time": "makespan_s",
    "cost": "cost",
    "energy_j": "energy_j",
    "energy": "energy_j",
    "hosts": "hosts",
    "network_bytes": "network_bytes",
}
SHORT = {"time": "makespan_s", "cost": "cost", "energy": "energy_j"}

_UNITS = (
    {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    | {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}
    | {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    | {"KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4}
    | dict.fromkeys(CURRENCIES, 1.0)
    | {"%": 0.01}
)
_KINDS = {
    "makespan_s": ({"us", "ms", "s", "min", "h", "d"}, "a time"),
    "energy_j": ({"J", "kJ", "MJ", "Wh", "kWh"}, "an energy"),
    "cost": (set(CURRENCIES), "an amount of money"),
    "hosts": (set[str](), "a number"),
    "network_bytes": ({u for u in _UNITS if u.endswith("B")}, "a size"),
}
_QUANTITY = re.compile(
    r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|[A-Za-z]+)(?![\w(.])"
)
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "log": math.log,
    "sqrt": math.sqrt,
    "exp": math.exp,
}
_LONGEST, _DEEPEST = 500, 60


@dataclass(frozen=True)
class Expression:
    """One expression: its text, the columns that it needs, and its value for one configuration.

    `value` gives NaN for an undefined result (a division by 0, a logarithm of 0).
    """

    text: str
    needs: frozenset[str]
    _compiled: _Compiled
    currencies: frozenset[str] = frozenset()

    def value(self, values: Values) -> float:
        """The expression's value; comparisons give 1 or 0."""
        try:
            result = self._compiled(values)
        except (ArithmeticError, ValueError):
            return math.nan
        if isinstance(result, complex) or not math.isfinite(result):
            return math.nan
        return float(result)

    def holds(self, values: Values) -> bool:
        """True if a constraint holds; False for an undefined value."""
        result = self.value(values)
        return result == result and result != 0.0


@dataclass(frozen=True)
class Objective:
    """Objective to minimise: `sign` × the expression (sign -1 to maximise it)."""

    expression: Expression
    sign: int
    name: str

    def loss(self, values: Values) -> float:
        """Value to minimise; infinity for an undefined one."""
        result = self.expression.value(values)
        return self.sign * result if result == result else math.inf


def parse_constraint(
    text: str, at: Position | None = None, keys: tuple[str, ...] = ()
) -> Expression:
    """A condition such as `cost <= 2 EUR` or `makespan <= 10min and hosts <= 16`; BadInput.

    `keys` are dotted paths of numeric axes, valid names too.
    """
    where = at or Position(f"--constraint {text}", 1, 1)
    tree, expression = _parse(text, where, keys)
    if not _is_condition(tree):
        raise where.bad_input(
            f"'{text}'", "a comparison, such as cost <= 2 EUR or makespan <= 10min"
        )
    return expression


def parse_objective(text: str, at: Position | None = None, keys: tuple[str, ...] = ()) -> Objective:
    """`time`, `cost`, `energy`, or `min EXPR` / `max EXPR` (a utility, Costa 2014, eq. 1.1); BadInput."""
    where = at or Position(f"--objective {text}", 1, 1)
    stripped = text.strip()
    if stripped in SHORT:
        name = SHORT[stripped]
        return Objective(Expression(stripped, frozenset({name}), lambda v: v[name]), 1, stripped)
    match = re.match(r"(min|max)(?:imi[sz]e)?\s*:?\s+(?=\S)", stripped)
    if match is None:
        expected = "time, cost, energy, or min or max before an expression, such as 'min cost * makespan_s'"
        raise where.bad_input(f"'{stripped}'", expected)
    tree, expression = _parse(stripped[match.end() :], where, keys)
    if _is_condition(tree):
        raise where.bad_input(f"'{stripped}'", "a number to make small or large, not a comparison")
    if not expression.needs:
        raise where.bad_input(f"'{stripped}'", f"an expression over {listed(sorted(set(METRICS)))}")
    return Objective(expression, 1 if match.group(1) == "min" else -1, stripped)


def _is_condition(node: ast.expr) -> bool:
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


class _Fault(Exception):  # noqa: N818 - a signal
    def __init__(self, node: ast.AST, found: str, expected: str) -> None:
        super().__init__(found)
        self.node, self.found, self.expected = node, found, expected


def _parse(text: str, at: Position, keys: tuple[str, ...]) -> tuple[ast.expr, Expression]:
    if len(text) > _LONGEST:
        raise at.bad_input(f"an expression of {len(text)} characters", f"at most {_LONGEST}")
    units: list[tuple[str, str]] = []
    plain = _QUANTITY.sub(lambda m: _quantity(m, units, at), text.strip())
    try:
        tree = ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise at.bad_input(
            f"'{text.strip()}'", "an expression, such as cost + 0.01 * makespan_s"
        ) from None
    needs: set[str] = set()
    try:
        compiled = _compile(tree, needs, keys, 0)
    except _Fault as fault:
        raise at.bad_input(fault.found, fault.expected) from None
    _check_units(units, needs, at)
    currencies = frozenset(unit for _, unit in units) & set(CURRENCIES)
    return tree, Expression(text.strip(), frozenset(needs), compiled, currencies)


def _quantity(match: re.Match[str], units: list[tuple[str, str]], at: Position) -> str:
    number, unit = match.groups()
    if unit in ("and", "or", "if", "else", "not"):
        return match.group(0)
    if unit not in _UNITS:
        near = suggestion(unit, list(_UNITS))
        raise at.bad_input(f"the unit '{unit}'{near}", f"one of {listed(list(_UNITS))}")
    units.append((match.group(0), unit))
    return f"({float(number) * _UNITS[unit]!r})"


def _check_units(units: list[tuple[str, str]], needs: set[str], at: Position) -> None:
    """Check that each unit fits a metric of the expression."""
    for text, unit in units:
        kinds = [kind for name in needs if name in _KINDS for kind in (_KINDS[name],)]
        if unit != "%" and kinds and not any(unit in allowed for allowed, _ in kinds):
            names = listed(sorted({word for _, word in kinds}))
            raise at.bad_input(f"'{text}'", f"{names}")


def _compile(node: ast.expr, needs: set[str], keys: tuple[str, ...], depth: int) -> _Compiled:
    if depth > _DEEPEST:
        raise _Fault(node, "an expression nested too deeply", f"at most {_DEEPEST} levels")
    inner = depth + 1
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number = float(node.value)  # type: ignore[arg-type]
        return lambda _: number
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = ast.unparse(node)
        column = METRICS.get(name, name if name in keys else None)
        if column is None:
            names = [*METRICS, *keys]
            raise _Fault(node, f"'{name}'{suggestion(name, names)}", listed(names))
        needs.add(column)
        return lambda v: v[column]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        do = _ARITHMETIC[type(node.op)]
        first = _compile(node.left, needs, keys, inner)
        second = _compile(node.right, needs, keys, inner)
        return lambda v: do(first(v), second(v))
    if isinstance(node, ast.UnaryOp):
        one = _compile(node.operand, needs, keys, inner)
        if isinstance(node.op, ast.USub):
            return lambda v: -one(v)
        if isinstance(node.op, ast.UAdd):
            return one
        if isinstance(node.op, ast.Not):
            return lambda v: float(not one(v))
    if isinstance(node, ast.BoolOp):
        parts = [_compile(part, needs, keys, inner) for part in node.values]
        every = all if isinstance(node.op, ast.And) else any
        return lambda v: float(every(part(v) for part in parts))
    if isinstance(node, ast.Compare) and all(type(op) in _ORDER for op in node.ops):
        sides = [_compile(side, needs, keys, inner) for side in (node.left, *node.comparators)]
        tests = [_ORDER[type(op)] for op in node.ops]
        return lambda v: float(
            all(t(a(v), b(v)) for t, a, b in zip(tests, sides, sides[1:], strict=False))
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None and node.args:
            values = [_compile(arg, needs, keys, inner) for arg in node.args]
            n_arguments = 2 if node.func.id in ("min", "max") else 1
            if len(values) != n_arguments and not (n_arguments == 2 and len(values) > 2):
                raise _Fault(
                    node, f"'{ast.unparse(node)}'", f"{n_arguments} values for {node.func.id}"
                )
            return lambda v: function(*(value(v) for value in values))
    source = ast.unparse(node)
    expected = f"numbers, names, + - * / **, comparisons, and, or, not, {listed(list(_FUNCTIONS))}"
    raise _Fault(node, f"'{source}'", expected)
