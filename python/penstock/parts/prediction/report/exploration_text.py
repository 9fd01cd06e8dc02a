"""An exploration as tables and sentences, for both terminal and page."""

from __future__ import annotations

from penstock.analyse.findings.answer import MOST_POINTS, NEXT_STEP, Answer
from penstock.analyse.findings.finding import Finding
from penstock.parts.prediction import quantities
from penstock.parts.prediction.exploration.describe import axis_word, describe, spaced
from penstock.parts.prediction.exploration.recommend import Recommendation
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.parts.prediction.report.prediction_text import Table
from penstock.text import listed, signed

_METRICS = {"makespan_s": "time", "cost": "cost", "energy_j": "energy"}
_VERDICTS = {
    "best": "best",
    "worse": "worse",
    "same": "tie, within 1 %",
    "undecided": "tie, intervals overlap",
}


#: currencies with cents
CENTS = ("EUR", "USD")
#: labels of points, those that may change the choice first
_ORDER = (
    "Confirmation",
    "Left out",
    "Unknown",
    "Model",
    "Idle hosts",
    "Tie",
    "Cost",
    "No effect",
    "Details",
)


def answer(exploration: Exploration, recommendation: Recommendation) -> Answer:
    """The choice, or the reason why it is open, in one sentence; then the rest as points."""
    text, confidence = recommendation.text, "clear" if recommendation.candidate else ""
    points: dict[str, str] = {}
    for label, sentence in recommendation.points:
        points[label] = f"{points[label]} {sentence}" if label in points else sentence
    if exploration.space.refused:
        points = {"Left out": refused_sentence(exploration)} | points
    confirmation = exploration.confirmation
    if confirmation is not None:
        points = {"Confirmation": confirmation.text} | points
    step = []
    if recommendation.run:
        text, confidence = f"Open: {recommendation.why}.", "open"
        named = "; ".join(describe(exploration.space, c) for c in recommendation.run)
        if confirmation is None or not confirmation.covers(recommendation.run):
            step = [(NEXT_STEP, f"run these {len(recommendation.run)}: {named}.")]
    shown = [label for label in _ORDER if label in points][: MOST_POINTS - len(step)]
    first = Finding("recommendation", "info", text, confidence=confidence)
    return Answer(first, [*((k, points[k]) for k in points if k in shown), *step], [])


def refused_sentence(exploration: Exploration) -> str:
    """The levels that the store's engine refuses, each reason once."""
    levels: dict[tuple[str, str], list[str]] = {}
    for one in exploration.space.refused:
        levels.setdefault((one.axis, one.why), []).append(spaced(one.level))
    texts = (f"{axis} {listed(own)}: {why}" for (axis, why), own in levels.items())
    return f"{'; '.join(texts)}."


def further_notes(answer: Answer, recommendation: Recommendation) -> list[str]:
    """Notes that are not part of the answer."""
    stated = " ".join(answer.sentences)
    return [note for note in recommendation.notes if note not in stated]


def assumptions(exploration: Exploration) -> list[str]:
    """Notes on the workload of the best configuration, such as hints that the store's engine refuses."""
    return [f"Note: {note}." for note in (exploration.judgement or {}).get("notes", [])]


def metric_word(metric: str) -> str:
    """`time`, `cost`, `energy`."""
    return _METRICS[metric]


def amount(exploration: Exploration, metric: str, value: float) -> str:
    """A value of a metric with its unit."""
    if metric == "makespan_s":
        return quantities.seconds(value)
    if metric == "cost":
        currency = exploration.record.evaluator.currency
        if value >= 1:
            return quantities.money(value, currency)
        if currency in CENTS and value < 0.1:
            return f"{quantities.digits(100 * value)} ct"
        return f"{quantities.digits(value)} {currency}"
    return quantities.joules(value)


def tied(exploration: Exploration) -> list[Candidate]:
    """Compared configurations that tie, with the best of them; empty without a tie."""
    selection = exploration.selection
    ties = [] if selection is None else [c.candidate for c in selection.contenders if c.tie]
    return [] if selection is None or not ties else [selection.best.candidate, *ties]


def front_table(
    exploration: Exploration, chosen: Candidate | None, most: int = 15, wide: bool = False
) -> Table:
    """The Pareto front and the ties of the best, fastest first; more than `most` are thinned evenly.

    Ends and choice are retained. `◆` marks the choice, `=` the configurations that tie.
    Levels common to all members are in the title; the others have a column each if `wide` or few.
    """
    front = sorted(
        {*exploration.front, *tied(exploration)},
        key=lambda c: (exploration.means.of(c)["makespan_s"], c),
    )
    shown = front
    if len(front) > most:
        step = (len(front) - 1) / (most - 1)
        indices = {round(i * step) for i in range(most)}
        shown = [c for i, c in enumerate(front) if i in indices or c == chosen]
    best = {
        m: min((exploration.means.of(c)[m] for c in front), default=1.0)
        for m in exploration.metrics
    }
    varied = [
        k
        for k, a in enumerate(exploration.space.axes)
        if len(a.levels) > 1 and len({c[k] for c in shown}) > 1
    ]
    common = [
        k for k, a in enumerate(exploration.space.axes) if len(a.levels) > 1 and k not in varied
    ]
    longest = [max(len(v) for v in exploration.space.axes[k].labels) for k in varied]
    columnar = wide or (len(varied) <= 4 and sum(max(n, 8) + 2 for n in longest) < 40)
    ties = {*tied(exploration), *(c for c in front if exploration.tie(c))}
    rows = []
    for c in shown:
        mean = exploration.means.of(c)
        numbers: list[str] = []
        for m in exploration.metrics:
            both = (amount(exploration, m, mean[m]), over(mean[m], best[m]))
            numbers += both if wide else [" ".join(both).strip()]
        if columnar:
            levels = [spaced(exploration.space.axes[k].levels[c[k]].label) for k in varied]
        else:
            levels = [describe(exploration.space, c, varied)]
        mark = "◆" if c == chosen else "=" if c in ties else ""
        rows.append((mark, *levels, f"{mean['hosts']:.0f}", *numbers))
    title = "Pareto front and ties" if len(front) > len(exploration.front) else "Pareto front"
    title += f", {len(shown)} of {len(front)}" if len(shown) < len(front) else ""
    if common and shown:
        title += f" (all: {describe(exploration.space, shown[0], common)})"
    axes = [axis_word(exploration.space.axes[k]) for k in varied] if columnar else ["configuration"]
    names = [_METRICS[m] for m in exploration.metrics]
    columns = [f"#{n}" for n in names]
    if wide:
        columns = [c for n in names for c in (f"#{n}", "#over best")]
    return Table(title, ("", *axes, "#hosts in all", *columns), tuple(rows))


def compared_table(exploration: Exploration, most: int = 8) -> Table:
    """Candidates near the best, and their differences from it over the same seeds."""
    rows = []
    selection = exploration.selection
    for c in selection.contenders[:most] if selection is not None else ():
        difference = ""
        if c.difference == float("inf"):
            difference = "does not always end"
        elif c.verdict != "best":
            difference = f"{_signed(c.difference)} ({_signed(c.low)} to {_signed(c.high)})"
        rows.append(
            (
                describe(exploration.space, c.candidate),
                difference,
                str(c.seeds),
                _VERDICTS[c.verdict],
            )
        )
    columns = ("configuration", "compared with the best", "#seeds", "verdict")
    return Table("Near the best", columns, tuple(rows))


def confirmed_table(exploration: Exploration) -> Table:
    """Predicted and measured makespans: the prediction of one run, and the mean of the measured runs."""
    rows = []
    confirmation = exploration.confirmation
    for row in confirmation.rows if confirmation is not None else ():
        measured, ends = row.measured_s, row.ends(exploration.settings.level)
        off = "" if measured is None else signed(row.predicted_s / measured - 1)
        rows.append(
            (
                describe(exploration.space, row.candidate),
                quantities.seconds(row.predicted_s),
                _between(row.low_s, row.high_s),
                row.error or ("" if measured is None else quantities.seconds(measured)),
                "" if ends is None else _between(*ends),
                off,
            )
        )
    columns = ("configuration", "#predicted", "#of one run", "#measured", "#of the mean", "#off")
    return Table("Predicted and measured", columns, tuple(rows))


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return quantities.seconds_range(max(0.0, low), float("inf") if high is None else high, " to ")


def matters_table(exploration: Exploration) -> Table:
    """Loss at the worst level of each axis, and its share of the variation."""
    by_metric = exploration.effects
    names = list(dict.fromkeys(e.axis for m in exploration.metrics for e in by_metric.get(m, [])))
    axes = {a.name: a for a in exploration.space.axes}
    rows = []
    for name in names:
        cells: list[str] = []
        for m in exploration.metrics:
            effect = next((e for e in by_metric[m] if e.axis == name), None)
            if effect is None:
                cells += ["–", "–"]
                continue
            worst = max(effect.levels, key=lambda level: level.loss)
            cells += [
                f"{over(1 + worst.loss, 1)} ({spaced(worst.label)})" if worst.loss > 5e-4 else "0",
                quantities.share(effect.share),
            ]
        rows.append((axis_word(axes[name]), *cells))
    columns = [c for m in exploration.metrics for c in (f"#{_METRICS[m]}: worst level", "#share")]
    return Table("Which decision matters", ("decision", *columns), tuple(rows))


def level_table(exploration: Exploration, axis: str, metric: str) -> Table:
    """The best result with each level of one axis."""
    effect = next((e for e in exploration.effects[metric] if e.axis == axis), None)
    shown = next(a for a in exploration.space.axes if a.name == axis)
    levels = () if effect is None else effect.levels
    best = min(levels, key=lambda level: level.best).candidate if levels else ()
    rows = []
    for level in levels:
        tie = exploration.means.tied(level.candidate, best, [metric], exploration.settings.level)
        tie = tie and level.candidate != best
        rows.append(
            (
                spaced(level.label),
                amount(exploration, metric, level.best),
                f"tie {over(1 + level.loss, 1)}".strip() if tie else over(1 + level.loss, 1),
                amount(exploration, metric, level.mean),
                f"{level.n:,}",
            )
        )
    columns = (axis_word(shown), f"#best {_METRICS[metric]}", "#over best", "#typical", "#of")
    return Table(f"Best {_METRICS[metric]} per level: {axis_word(shown)}", columns, tuple(rows))


def level_tables(exploration: Exploration, most_levels: int = 12) -> list[Table]:
    """Best per level of every axis for the objective's metric, else time."""
    metric = exploration.main_metric
    tables = []
    for effect in exploration.effects[metric]:
        table = level_table(exploration, effect.axis, metric)
        if len(table.rows) > most_levels:
            step = (len(table.rows) - 1) / (most_levels - 1)
            indices = {round(i * step) for i in range(most_levels)}
            best = min(range(len(effect.levels)), key=lambda i: effect.levels[i].best)
            rows = tuple(r for i, r in enumerate(table.rows) if i in indices or i == best)
            title = f"{table.title} ({len(rows)} of {len(table.rows)})"
            table = Table(title, table.columns, rows)
        tables.append(table)
    return tables


def effort(exploration: Exploration) -> str:
    """Effort of the exploration, in one sentence."""
    record = exploration.record
    engine = {
        "grid": "the whole grid",
        "rrs": "recursive random search",
        "ga": "a genetic algorithm",
    }.get(exploration.engine, exploration.engine)
    parts = [
        f"{len(record.measures):,} of {exploration.space.size:,} configurations predicted by {engine}"
        + (f" ({exploration.engine_reason})" if exploration.engine_reason else "")
    ]
    cannot = sum(record.reasons().values())
    if cannot:
        several = len(record.reasons()) > 1
        why = ", ".join(
            f"{n:,} {reason}" if several else reason
            for reason, n in list(record.reasons().items())[:3]
        )
        parts.append(f"{cannot:,} cannot be built ({why})")
    if exploration.broken:
        parts.append(f"{exploration.broken:,} against the constraints")
    for reason, n in list(exploration.failed.items())[:2]:
        parts.append(f"{n:,} failed ({reason})")
    rate = f", {record.evaluations / record.evaluated_s:,.0f}/s" if record.evaluated_s > 0 else ""
    before = f", {exploration.resumed:,} read from before" if exploration.resumed else ""
    parts.append(f"{record.evaluations:,} simulations in {exploration.wall_s:.1f} s{rate}{before}")
    return "; ".join(parts)


def over(value: float, best: float) -> str:
    """`+3 %`, `2.4×`, empty at the best."""
    if not best > 0 or value / best - 1 < 5e-4:
        return ""
    ratio = value / best
    return f"{quantities.digits(ratio, 2)}×" if ratio >= 2 else f"+{_loss(ratio - 1)}"


def _loss(share: float) -> str:
    if share >= 1:
        return f"{quantities.digits(100 * share, 3)} %"
    return f"{quantities.digits(100 * share, 1 if share < 0.01 else 2)} %"


def _signed(share: float) -> str:
    if share == 0:
        return "0"
    sign = "+" if share > 0 else "−"
    if abs(share) == float("inf"):
        return f"{sign}∞"
    return f"{sign}{_loss(abs(share))}"
