"""A prediction compared with measured runs, as tables and sentences, for both terminal and page."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import Prediction, Row
from penstock.parts.prediction.report.prediction_text import Table
from penstock.text import counted, listed, shortened, signed

#: listed tasks, largest errors first
TASKS = 12
#: names in a sentence
_NAMES = 4


def tables(prediction: Prediction) -> list[Table]:
    """Tables of the run and its stages, then of the tasks with the largest errors."""
    m = prediction.measured
    if m is None:
        return []
    run = {
        "name": "the whole run",
        "predicted_s": prediction.makespan_s,
        "low_s": prediction.interval.ends()["low"],
        "high_s": prediction.interval.ends()["high"],
    } | {k: m[k] for k in ("measured_s", "measured_low_s", "measured_high_s", "runs", "ratio")}
    comparisons = [_table("Predicted and measured", [run, *m["stages"]], m["level"])]
    worst = sorted(m["tasks"], key=lambda r: -abs(r["error_s"]))[:TASKS]
    if worst:
        others = len(m["tasks"]) - len(worst)
        title = "Tasks, predicted and measured" + (
            f", the worst {len(worst)} by seconds" if others else ""
        )
        comparisons.append(_table(title, worst, m["level"]))
    return comparisons


def _table(title: str, rows: Sequence[Row], level: float) -> Table:
    """Predictions of one run with its interval, and the measured mean with its own."""
    share = quantities.percent(level)
    repeated = any(row["runs"] > 1 for row in rows)
    columns: tuple[str, ...] = ("", "#predicted", f"#{share} of runs", "#measured")
    columns += ((f"#{share} of its mean", "#runs") if repeated else ()) + ("#ratio",)
    return Table(title, columns, tuple(_cells(row, repeated) for row in rows))


def _cells(row: Row, repeated: bool) -> tuple[str, ...]:
    cells: tuple[str, ...] = (
        shortened(str(row["name"])),
        quantities.seconds(row["predicted_s"]),
        _range(row["low_s"], row["high_s"]),
        quantities.seconds(row["measured_s"]),
    )
    if repeated:
        cells += (_range(row["measured_low_s"], row["measured_high_s"]), str(row["runs"]))
    return (*cells, "–" if row["ratio"] is None else quantities.digits(row["ratio"]))


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "–"
    return quantities.seconds_range(low or 0.0, float("inf") if high is None else high, " – ")


def sentences(prediction: Prediction) -> list[str]:
    """Summary of the tables: the run, the tasks, errors that cancel, names that do not match."""
    m = prediction.measured
    if m is None:
        return []
    texts = [_of_run(m)]
    if m["task_errors"] is not None:
        texts.append(_tasks(m["task_errors"]))
    if m["cancelling"] is not None:
        texts.append(_cancelling(m["cancelling"], bool(m["overlap"])))
    for what, names in m["unmatched"].items():
        if names:
            kind, _, how = what.partition("_")
            one = counted(len(names), kind[:-1])
            texts.append(f"{one} {how.replace('_', ' ')}: {_names(names)}.")
    which = ", the first of them," if m["runs"] > 1 else ""
    texts.append(f"Stored{which} in {m['store']}, which has {counted(m['pairs'], 'pair')}.")
    return texts


def _of_run(m: Row) -> str:
    off = f"the prediction is {signed(m['ratio'] - 1)} off"
    if m["runs"] == 1:
        where = "inside" if m["inside"] else "outside"
        return f"Measured: {quantities.seconds(m['measured_s'])}, {where} the interval; {off}."
    inside = f"{m['inside_runs']} of {m['runs']} runs inside the interval"
    around = quantities.seconds_range(max(0.0, m["measured_low_s"]), m["measured_high_s"])
    return (
        f"Measured: {quantities.seconds(m['measured_s'])} on average ({quantities.percent(m['level'])} "
        f"between {around}), {inside}; {off}."
    )


def _tasks(errors: Row) -> str:
    return (
        f"Of {counted(errors['compared'], 'task')} {quantities.share(errors['share_within'])} are predicted "
        f"within {quantities.share(errors['within'])}; they are {quantities.share(errors['mean'])} off on "
        f"average, {shortened(errors['worst'])} most: {quantities.share(errors['worst_error'])}."
    )


def _cancelling(c: Row, overlap: bool) -> str:
    beside = " (stages overlap: the makespan is not their sum)" if overlap else ""
    over, under, gross = (quantities.seconds(c[k]) for k in ("over_s", "under_s", "gross_s"))
    net = quantities.seconds(abs(c["net_s"])) if c["net_s"] else "none"
    return (
        f"Stage errors cancel in the sum{beside}: {_names(c['over'])} too long by {over}, "
        f"{_names(c['under'])} too short by {under}. Of {gross} of errors the sum of the stages shows "
        f"{net}: compare the stages, not the makespan."
    )


def _names(names: Sequence[str]) -> str:
    shown = [shortened(str(n)) for n in names[:_NAMES]]
    n_more = len(names) - len(shown)
    return listed([*shown, f"{n_more:,} more"] if n_more else shown)
