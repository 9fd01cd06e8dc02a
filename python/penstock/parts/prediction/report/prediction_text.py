"""A prediction as text and tables, for both terminal and page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.analyse.findings.answer import MOST_POINTS, NEXT_STEP, Answer
from penstock.analyse.findings.finding import Finding
from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import LATENCY, Prediction, Row
from penstock.text import counted, shortened, signed

#: stations in a table
TOP = 8


@dataclass(frozen=True)
class Table:
    """Columns, with a leading `#` for numeric ones, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def answer(prediction: Prediction) -> Answer:
    """Time with its interval and the bottleneck in one sentence; cost, model and next measurement as points.

    If the model does not apply there is no prediction; the number is a point then.
    """
    p = prediction
    grave = p.applies.reasons[0].text if p.applies.reasons else "the model does not apply"
    points = [("Cost", f"{', '.join(_paid(p))}.")] if _paid(p) else []
    if p.idle is not None and p.idle.hosts:
        points.append(("Idle hosts", p.idle.text))
    if p.applies.verdict == "outside":
        sentence = f"Not predicted: {grave}."
        points = [("Unknown", f"the model's own number decides nothing: {_time(p)}"), *points]
    else:
        sentence = _time(p)
        caution = f" with caution: {grave}" if p.applies.verdict == "caution" else ""
        points.append(("Model", f"applies{caution}."))
    if p.measure_next is not None and p.measure_next["path"] is not None:
        points.append((NEXT_STEP, measure_sentence(p)))
    return Answer(Finding("prediction", "info", sentence), points[:MOST_POINTS], [])


def document(prediction: Prediction) -> Row:
    """The document `penstock/prediction/1` with the first sentence of the answer."""
    values = prediction.to_dict()
    schema = values.pop("schema")
    return {"schema": schema, "headline": answer(prediction).headline, **values}


def _time(p: Prediction) -> str:
    """`montage takes 4.8 s (90 % between 4.61 and 5.09 s); the bottleneck is …`."""
    count = quantities.digits_apart(p.interval.low, p.interval.high)
    text = f"{shortened(p.workload)} takes {quantities.seconds(p.makespan_s, count)}{interval(p)}"
    if p.bottleneck is not None:
        busy = f", {quantities.share(p.bottleneck.utilisation)} busy"
        text += f"; the bottleneck is {p.bottleneck.text}"
        text += busy if p.bottleneck.station != LATENCY else ""
    return f"{text}."


def _paid(p: Prediction) -> list[str]:
    """Cost and energy, if available."""
    paid = [] if p.cost is None else [quantities.money(p.cost.amount, p.cost.currency)]
    return paid if p.energy_j is None else [*paid, quantities.joules(p.energy_j)]


def interval(prediction: Prediction) -> str:
    """` (90 % between 4.6 and 5.1 s)`; a replacement text without an interval."""
    i = prediction.interval
    calibrated = i.calibration is not None and i.calibration.half_width is not None
    if i.draws == 1 and not calibrated:
        return " (one run simulated, no interval)"
    if i.low == i.high:
        return " (every run alike)"
    # rounded down: few runs attain a fraction such as 2/3
    attained = math.floor(1000 * i.attained + 1e-9) / 1000
    reached = i.level if calibrated or i.attained >= i.level else attained
    return f" ({quantities.percent(reached)} between {quantities.seconds_range(i.low, i.high)})"


def stage_table(prediction: Prediction) -> Table:
    """Stages in the order of the run, with the activities of a mean task of each."""
    rows = []
    for s in prediction.stages:
        tasks = s["tasks"] or 1
        parts = [quantities.seconds(s[k] / tasks) for k in ("compute_s", "read_s", "write_s")]
        other = (s["launch_s"] + s["manager_s"]) / tasks
        span = quantities.seconds(s["end_s"] - s["start_s"])
        moved = s["read_bytes"] + s["written_bytes"]
        local = quantities.share(s["local_bytes"] / moved) if moved else "–"
        rows.append(
            (
                shortened(str(s["name"])),
                f"{s['tasks']:,.0f}",
                quantities.seconds(s["start_s"]),
                span,
                quantities.seconds(s["task_mean_s"]),
                *parts,
                quantities.seconds(other),
                local,
            )
        )
    columns = (
        "stage",
        "#tasks",
        "#from",
        "#lasts",
        "#mean task",
        "#compute",
        "#read",
        "#write",
        "#other",
        "#local",
    )
    return Table("Stages", columns, tuple(rows))


def station_table(prediction: Prediction, top: int = TOP) -> Table:
    """The stations with most of the critical path, then the busiest."""
    rows = [
        (
            str(s["name"]),
            quantities.share(s["utilisation"]),
            quantities.share(s["critical_share"]),
            quantities.seconds(s["wait_mean_s"]),
            quantities.seconds(s["wait_max_s"]),
            quantities.digits(s["queue_mean"]),
            f"{s['requests']:,.0f}",
        )
        for s in prediction.stations[:top]
    ]
    columns = (
        "station",
        "#busy",
        "#of critical path",
        "#mean wait",
        "#longest wait",
        "#mean queue",
        "#requests",
    )
    return Table("Bottlenecks", columns, tuple(rows))


def bytes_sentence(prediction: Prediction) -> str:
    """Bytes read and written, the local share of them, and network traffic."""
    b = prediction.bytes
    local = b["read_local"] + b["written_local"]
    moved = b["read"] + b["written"]
    share = f", {quantities.share(local / moved)} of it local" if moved else ""
    return (
        f"{quantities.size(b['read'])} read and {quantities.size(b['written'])} written{share}; "
        f"{quantities.size(b['network'])} crossed the network; "
        f"{quantities.size(b['stored'])} stored at the end."
    )


def placement_sentence(prediction: Prediction) -> str:
    """Number of files with a given placement; empty without one."""
    placement = prediction.placement
    if placement is None:
        return ""
    rest = placement["of"] - placement["files"]
    others = f"; the store places the other {rest:,}" if rest else ""
    return f"Placement as found for {placement['files']:,} of {placement['of']:,} files{others}."


def measure_sentence(prediction: Prediction) -> str:
    """The next measurement, and its reduction of the interval."""
    m = prediction.measure_next
    if m is None:
        return ""
    if m["path"] is None:
        return f"nothing to measure: {m['why']}."
    width = (
        f"from {quantities.seconds(m['width_s'])} to {quantities.seconds(m['width_if_known_s'])}"
    )
    return (
        f"measure {m['path']} ({m['why']}). The interval would then be narrower by "
        f"{quantities.share(m['narrows'])}, {width}. How: {m['method']}."
    )


def sensitivity_table(prediction: Prediction, top: int = 40) -> Table:
    """Uncertain values with the effect of their ranges on the makespan, largest first."""
    rows = [
        (
            str(r["path"]),
            str(r["value"]),
            _range(str(r["low"]), str(r["high"])),
            _range(_change(r["change_low"]), _change(r["change_high"])),
            quantities.digits(r["elasticity"], 2) if r["elasticity"] is not None else "–",
        )
        for r in (prediction.sensitivity or [])[:top]
    ]
    columns = ("value", "is", "range", "#makespan", "#elasticity")
    return Table("Sensitivity", columns, tuple(rows))


def frequency_table(prediction: Prediction) -> Table:
    """Time, energy and cost at each frequency."""
    states: Sequence[Row] = (prediction.frequencies or {}).get("states", [])
    currency = prediction.cost.currency if prediction.cost is not None else ""
    rows = [
        (
            str(s["frequency"]),
            quantities.seconds(s["makespan_s"]),
            "–" if s["energy_j"] is None else quantities.joules(s["energy_j"]),
            "–" if s["cost"] is None else quantities.money(s["cost"], currency),
        )
        for s in states
    ]
    return Table("Frequencies", ("frequency", "#time", "#energy", "#cost"), tuple(rows))


def effort(prediction: Prediction) -> str:
    """Effort of the prediction itself."""
    p = prediction
    runs = counted(p.simulations, "simulated run")
    return f"{runs}, {counted(p.events, 'event')}, {quantities.seconds(p.wall_s)}"


def _range(low: str, high: str) -> str:
    """`0.5 … 1.5 ms/MiB`: the unit once if common to both."""
    number, unit = _split(low)
    return f"{number if unit and unit == _split(high)[1] else low} … {high}"


def _split(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([-+−]?[\d.,]+)\s*(\D.*)", text)
    return (match.group(1), match.group(2)) if match else (text, "")


def _change(share: float | None) -> str:
    """`+3.1 %`; for None, that the run does not end."""
    return "does not end" if share is None else signed(share)
