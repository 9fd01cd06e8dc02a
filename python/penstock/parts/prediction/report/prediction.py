"""A prediction's self-contained page, and its figures as files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.report import measured_text, prediction_text
from penstock.parts.prediction.report.prediction_figures import FIGURES, draw
from penstock.report import drawings
from penstock.report.glossary import explained
from penstock.report.page import template, text_of
from penstock.text import listed
from penstock.version import version


def write_page(prediction: Prediction, path: Path) -> None:
    """Write the page: one self-contained file for wide and narrow screens, light and dark."""
    path.write_text(explained(page(prediction)), encoding="utf-8")


def page(prediction: Prediction) -> str:
    """The page's text."""
    p = prediction
    return template("prediction.html.j2", __package__).render(
        p=p,
        answer=prediction_text.answer(p),
        measure=prediction_text.measure_sentence(p),
        beside=measured_text.tables(p),
        besides=measured_text.sentences(p),
        tiles=_tiles(p),
        figures={
            name: drawings.in_page(partial(draw, p, name), name, f"{name} of {p.workload}")
            for name in FIGURES
        },
        stations=prediction_text.station_table(p, 12),
        stages=prediction_text.stage_table(p),
        bytes=" ".join(
            filter(None, (prediction_text.bytes_sentence(p), prediction_text.placement_sentence(p)))
        ),
        sensitivity=prediction_text.sensitivity_table(p),
        energy=_energy(p),
        left_out=listed(list(p.energy.omitted)[:6]) if p.energy is not None else "",
        frequencies=prediction_text.frequency_table(p),
        cost=_cost(p),
        facts=_facts(p),
        version=version(),
        css=Markup(text_of("page.css")),
        js=Markup(text_of("page.js")),
    )


def write_figures(prediction: Prediction, folder: Path) -> list[Path]:
    """Write every available figure as SVG and PDF to `folder`, created if absent; returns the files."""
    return drawings.write({name: partial(draw, prediction, name) for name in FIGURES}, folder)


def _tiles(p: Prediction) -> list[dict[str, str]]:
    i = p.interval
    rows = [(quantities.seconds(p.makespan_s), "predicted time", "")]
    if i.low < i.high:
        rows.append(
            (
                quantities.seconds_range(i.low, i.high, "–"),
                f"{quantities.percent(i.level)} of runs between",
                "",
            )
        )
    if p.bottleneck is not None:
        rows.append(
            (quantities.share(p.bottleneck.utilisation), f"{p.bottleneck.station} busy", "")
        )
    if p.cost is not None:
        rows.append((quantities.money(p.cost.amount, p.cost.currency), f"{p.cost.hosts} hosts", ""))
    if p.energy_j is not None:
        rows.append((quantities.joules(p.energy_j), "energy", ""))
    verdict = p.applies.verdict
    applies = (verdict, "model applies", "" if verdict == "ok" else "warn")
    # numbers from which nothing should be decided come after the verdict
    rows = [applies, *rows] if verdict == "outside" else [*rows, applies]
    return [dict(zip(("value", "label", "mark"), row, strict=True)) for row in rows]


def _energy(p: Prediction) -> prediction_text.Table | None:
    if p.energy is None:
        return None
    names = {
        "idle": "idle",
        "app": "computing",
        "storage": "storage",
        "network": "network",
        "capped": "removed by the cap at peak power",
    }
    total = p.energy.total_j or 1.0
    rows = [
        (names[k], quantities.joules(v), quantities.share(v / total))
        for k, v in p.energy.by_state().items()
        if v
    ]
    rows.append(("all", quantities.joules(p.energy.total_j), ""))
    return prediction_text.Table("Energy", ("state", "#energy", "#share"), tuple(rows))


def _cost(p: Prediction) -> str:
    if p.cost is None:
        return ""
    how = "by the started hour" if p.cost.started_hours else "by the second"
    return (
        f"{quantities.money(p.cost.amount, p.cost.currency)}: {p.cost.hosts} hosts for "
        f"{quantities.seconds(p.makespan_s)}, paid {how}."
    )


def _facts(p: Prediction) -> list[tuple[str, Any]]:
    i = p.interval
    rows = [("interval", i.method), ("what varied", listed(list(i.sources)))]
    rows.append(("simulated", prediction_text.effort(p)))
    rows.append(("chunk requests of one run", f"{p.requests:,.0f}"))
    seeds = p.seeds
    dense = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    shown = f"{seeds[0]} to {seeds[-1]}" if dense else ", ".join(map(str, seeds))
    rows.append(("seeds at the platform's own values", shown))
    return rows
