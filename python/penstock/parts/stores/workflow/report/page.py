"""Self-contained page of a measured workflow beside its prediction, and its figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean

from markupsafe import Markup
from matplotlib.figure import Figure

from penstock.parts.prediction import quantities
from penstock.parts.prediction.report.prediction_text import Table, answer, interval
from penstock.parts.stores.workflow.report.figures import (
    MOST_STAGES,
    Timed,
    longest,
    middle_run,
    timed,
    timeline,
    times,
)
from penstock.parts.stores.workflow.result import Result
from penstock.report import drawings, style
from penstock.report.glossary import explained
from penstock.report.page import template, text_of, unbroken
from penstock.text import counted, shortened, signed
from penstock.version import version
from penstock.writing import atomic_folder


@dataclass(frozen=True)
class Contents:
    """A page: results by name of the store, its title, its first sentence, and further sentences."""

    title: str
    headline: str
    results: Mapping[str, Result]
    sentences: Sequence[str]

    @cached_property
    def rows(self) -> dict[str, list[Timed]]:
        """Times of the complete run and of each stage, by store."""
        return {name: timed(result) for name, result in self.results.items()}


def write_report(contents: Contents, out: Path, stem: str) -> Path:
    """Write STEM.html and `figures` into the directory `out`; return the page."""
    with atomic_folder(out) as folder:
        drawings.write(_drawings(contents), folder / "figures")
        text = explained(page(contents))
        (folder / f"{stem}.html").write_text(text, encoding="utf-8")
    return out / f"{stem}.html"


def page(contents: Contents) -> str:
    """The page's text."""
    results, rows = contents.results, contents.rows
    figures = {
        name: drawings.in_page(drawing, name, f"{name}: {contents.title}")
        for name, drawing in _drawings(contents).items()
    }
    return template("workflow.html.j2", __package__).render(
        contents=contents,
        predicted=any(result.prediction for result in results.values()),
        tiles=_tiles(rows, results),
        figures=figures,
        thinned=any(len(longest(own)) < len(own) for own in rows.values()),
        most=MOST_STAGES,
        tables={name: _table(name, longest(own)) for name, own in rows.items()},
        timelines={
            name: (figures[_timeline_name(name, results)], middle_run(result))
            for name, result in results.items()
        },
        facts=_facts(results),
        version=version(),
        css=Markup(text_of("page.css")),
        js=Markup(text_of("page.js")),
    )


def headline(result: Result) -> str:
    """The first sentence about the runs of one store: measured and predicted time."""
    mean = fmean(result.makespans_s)
    several = f" on average of {len(result.runs)} runs" if len(result.runs) > 1 else ""
    text = f"{shortened(result.workload)} took {quantities.seconds(mean)}{several}"
    p = result.prediction
    if p is None:
        return f"{text}."
    if p.applies.verdict == "outside":
        withheld = answer(p).headline
        return f"{text}; {withheld[0].lower()}{withheld[1:]}"
    return f"{text}; predicted: {quantities.seconds(p.makespan_s)}{interval(p)}."


def _drawings(contents: Contents) -> dict[str, drawings.Drawing]:
    panels = {name: longest(rows) for name, rows in contents.rows.items()}

    def drawn(draw: drawings.Drawing, width: float) -> Figure:
        with style.look():
            return style.settled(draw(width))

    results = contents.results.values()
    end_s = max(result.runs[middle_run(result)].makespan_s for result in results)
    figures: dict[str, drawings.Drawing] = {"times": partial(drawn, partial(times, panels))}
    for name, result in contents.results.items():
        key = _timeline_name(name, contents.results)
        figures[key] = partial(drawn, partial(timeline, result, end_s))
    return figures


def _timeline_name(name: str, results: Mapping[str, Result]) -> str:
    return "timeline" if len(results) == 1 else f"timeline-{name}"


def _tiles(
    rows: Mapping[str, Sequence[Timed]], results: Mapping[str, Result]
) -> list[dict[str, str]]:
    tiles = []
    for name, (total, *_) in rows.items():
        store = f"{name}, " if len(rows) > 1 else ""
        tiles.append((quantities.seconds(fmean(total.measured_s)), f"{store}measured", ""))
        if total.predicted_s is not None and total.off is not None:
            label = unbroken(f"{store}predicted ({signed(total.off)})")
            tiles.append((quantities.seconds(total.predicted_s), label, ""))
    (first, *more) = results.values()
    if first.prediction is not None and not more:
        verdict = first.prediction.applies.verdict
        tiles.append((verdict, "model applies", "" if verdict == "ok" else "warn"))
    return [dict(zip(("value", "label", "mark"), tile, strict=True)) for tile in tiles]


def _table(name: str, rows: Sequence[Timed]) -> Table:
    several = len(rows[0].measured_s) > 1
    predicted = any(row.predicted_s is not None for row in rows)
    columns = ("", "#measured", *(("#least", "#most") if several else ()))
    columns += ("#predicted", "#range", "#off by") if predicted else ()
    return Table(name, columns, tuple(_cells(row, several, predicted) for row in rows))


def _cells(row: Timed, several: bool, predicted: bool) -> tuple[str, ...]:
    ends = (min(row.measured_s), max(row.measured_s)) if several else ()
    seconds = (fmean(row.measured_s), *ends)
    cells = (shortened(row.name), *map(quantities.seconds, seconds))
    if not predicted:
        return cells
    if row.predicted_s is None:
        return (*cells, "–", "–", "–")
    spread = "–"
    if row.low_s is not None and row.high_s is not None:
        spread = quantities.seconds_range(row.low_s, row.high_s, " – ")
    off = "–" if row.off is None else signed(row.off)
    return (*cells, quantities.seconds(row.predicted_s), spread, off)


def _facts(results: Mapping[str, Result]) -> list[tuple[str, str]]:
    first = next(iter(results.values()))
    facts = [("engine of the store", first.engine), ("workload", first.workload)]
    for name, result in results.items():
        store = f" with the store {name}" if len(results) > 1 else ""
        measured = ", ".join(map(quantities.seconds, result.makespans_s[:12]))
        more = ", …" if len(result.runs) > 12 else ""
        facts.append((f"runs{store}", f"{counted(len(result.runs), 'run')}: {measured}{more}"))
        if result.prediction is not None:
            facts.append((f"predicted range{store}", result.prediction.interval.method))
    return facts
