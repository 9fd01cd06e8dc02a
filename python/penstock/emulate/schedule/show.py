"""Preview of a schedule: a table, lines in the terminal, a small SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from penstock.spec.cluster import Event

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
#: points of a step function: time [s], value
Line = list[tuple[float, float | None]]
#: keys whose values are rates
_RATES = ("read_bps", "write_bps", "out_bps", "in_bps")


def rows(events: Sequence[Event]) -> list[dict[str, str]]:
    """One row for each change: `at`, `where`, `key`, `value` as text."""
    out = []
    for event in events:
        where = event.resource if event.name is None else f"{event.resource} {event.name}"
        if event.nodes != ("*",):
            where = f"{', '.join(event.nodes)}: {where}"
        for key, value in leaves(event.patch):
            out.append(
                {"at": _when(event), "where": where, "key": key, "value": value_text(key, value)}
            )
    return out


def text(events: Sequence[Event]) -> str:
    """Table and picture, at most 100 columns wide."""
    listed = rows(events)
    if not listed:
        return "Nothing is planned.\n"
    widths = {k: max(len(r[k]) for r in listed) for k in ("at", "where", "key")}
    lines = [
        f"{r['at']:>{widths['at']}}  {r['where']:<{widths['where']}}  "
        f"{r['key']:<{widths['key']}}  {r['value']}"
        for r in listed
    ]
    return "\n".join(line[:100].rstrip() for line in lines) + "\n" + _picture(events)


def leaves(patch: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Values of a patch with dotted keys; lists and profiles are not split."""
    out: list[tuple[str, Any]] = []
    for key, value in patch.items():
        if isinstance(value, Mapping) and key != "profile":
            out += leaves(value, f"{above}{key}.")
        else:
            out.append((f"{above}{key}", value))
    return out


def value_text(key: str, value: Any) -> str:
    """A value with its unit."""
    last = key.rsplit(".", 1)[-1]
    if value is None or value == "max":
        return "max"
    if isinstance(value, bool):
        return "on" if value else "off"
    if last in _RATES:
        return f"{value / 1e6:g} MB/s"
    if last.endswith("iops"):
        return f"{value:g} IOPS"
    if last.endswith("_s"):
        return f"{value:g} s"
    if last.endswith("_bytes"):
        return f"{value / 2**20:g} MiB"
    if isinstance(value, Mapping):
        return str(value.get("name", "a profile"))
    return f"{value:g}" if isinstance(value, float) else str(value)


def patch_texts(patch: Mapping[str, Any]) -> list[str]:
    """Values of a patch as `limits.read_bps=10 MB/s`, …"""
    return [f"{key}={value_text(key, value)}" for key, value in leaves(patch)]


def changed_texts(settings: Mapping[str, Any], stats: Mapping[str, Any]) -> list[str]:
    """Changed settings of a disk and its remaining credits, from its settings and counters."""
    texts = [text for text in patch_texts(settings) if "since_ns=" not in text]
    levels = stats.get("levels") or {}
    for key, unit in (("credits_iops", "requests"), ("credits_bytes", "bytes")):
        if levels.get(key) is not None:
            texts.append(f"{levels[key]:,.0f} {unit} of credit left")
    return texts


def _when(event: Event) -> str:
    when, condition = event.when, event.when.condition
    if condition:
        on = " ".join(f"{k} {v}" for k, v in condition.items())
        return f"{on} + {when.at_s:g} s"
    if when.phase is not None:
        return f"{when.phase} + {when.at_s:g} s"
    return f"{when.at_s:.3f} s"


def _lines(events: Sequence[Event]) -> tuple[dict[str, Line], float]:
    """Timed numbers as functions of time, by name (None: no limit); and the total length."""
    lines: dict[str, Line] = {}
    for event in events:
        if event.when.condition or event.when.phase is not None:
            continue
        for key, value in leaves(event.patch):
            if value is None or value == "max":
                number = None
            elif isinstance(value, int | float):
                number = float(value)
            else:
                continue
            where = "" if event.nodes == ("*",) else f"{','.join(event.nodes)} "
            name = "" if event.name is None else f"{event.name} "
            lines.setdefault(f"{where}{name}{key}", []).append((event.when.at_s, number))
    last = max((at for line in lines.values() for at, _ in line), default=0.0)
    return lines, last * 1.1 or 1.0


def _value_at(line: Line, at_s: float) -> float | None:
    value = None
    for when, number in line:
        if when <= at_s:
            value = number
    return value


def _picture(events: Sequence[Event]) -> str:
    lines, length_s = _lines(events)
    if not lines:
        return ""
    width = max(len(name) for name in lines)
    out = [""]
    for name, line in lines.items():
        top = max((v for _, v in line if v is not None), default=1.0) or 1.0
        cells = []
        for column in range(_WIDTH):
            value = _value_at(line, length_s * (column + 0.5) / _WIDTH)
            step = 0 if value is None else min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1)))
            cells.append("·" if value is None else _BARS[step])
        key = name.rsplit(" ", 1)[-1]
        out.append(f"{name:<{width}} {''.join(cells)} {value_text(key, top)}"[:100])
    out.append(f"{'':<{width}} 0 s{f'{length_s:.1f} s':>{_WIDTH - 3}}   (·: no limit)")
    return "\n".join(out) + "\n"


def svg(events: Sequence[Event]) -> str:
    """Numbers over time as steps, one strip for each; 720 pixels wide."""
    lines, length_s = _lines(events)
    margin, width, strip = 170, 540, 46
    height = strip * len(lines) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" '
        f'viewBox="0 0 720 {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="720" height="{height}" fill="white"/>',
    ]
    for number, (name, line) in enumerate(lines.items()):
        top_y = strip * number + 8
        base = top_y + strip - 14
        top = max((v for _, v in line if v is not None), default=1.0) or 1.0
        key = name.rsplit(" ", 1)[-1]
        parts.append(f'<text x="6" y="{base - 12}">{escape(name)}</text>')
        parts.append(f'<text x="6" y="{base}" fill="#666">to {escape(value_text(key, top))}</text>')
        parts.append(f'<path d="M{margin} {base}h{width}" stroke="#bbb"/>')
        ends = [at for at, _ in line[1:]] + [length_s]
        for (at_s, value), end_s in zip(line, ends, strict=True):
            x, w = margin + width * at_s / length_s, width * (end_s - at_s) / length_s
            if value is None:
                parts.append(
                    f'<path d="M{x:.1f} {top_y}h{w:.1f}" stroke="#888" stroke-dasharray="2 3"/>'
                )
            else:
                h = (base - top_y) * min(1.0, value / top)
                parts.append(
                    f'<rect x="{x:.1f}" y="{base - h:.1f}" width="{w:.1f}" height="{h:.1f}" '
                    'fill="#9ec5e8" stroke="#2b6ca3" stroke-width="0.7"/>'
                )
    parts.append(f'<text x="{margin}" y="{height - 8}">0 s</text>')
    parts.append(
        f'<text x="{margin + width}" y="{height - 8}" text-anchor="end">{length_s:.1f} s</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"
