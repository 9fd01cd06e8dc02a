"""An exploration's self-contained page, and its figures as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from penstock.parts.prediction import quantities
from penstock.parts.prediction.exploration.describe import axis_word, describe, spaced
from penstock.parts.prediction.exploration.recommend import Recommendation
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.report import exploration_text
from penstock.parts.prediction.report.exploration_figures import FIGURES
from penstock.parts.prediction.report.prediction_text import Table
from penstock.report import drawings, style
from penstock.report.glossary import explained
from penstock.report.page import template, text_of
from penstock.text import counted, listed
from penstock.version import version


@dataclass(frozen=True)
class Named:
    """Names of the explored workload and platform."""

    workload: str
    platform: str


def write_page(exploration: Exploration, rec: Recommendation, named: Named, path: Path) -> None:
    """Write the page: one self-contained file for wide and narrow screens, light and dark."""
    path.write_text(explained(page(exploration, rec, named)), encoding="utf-8")


def page(exploration: Exploration, rec: Recommendation, named: Named) -> str:
    """The page's text."""
    answer = exploration_text.answer(exploration, rec)
    front = exploration_text.front_table(exploration, rec.candidate, 40, wide=True)
    metrics = [exploration_text.metric_word(m) for m in exploration.metrics]
    return template("exploration.html.j2", __package__).render(
        workload=named.workload,
        platform=named.platform,
        answer=answer,
        notes=[
            *exploration_text.further_notes(answer, rec),
            *exploration_text.assumptions(exploration),
        ],
        tiles=_tiles(exploration, rec),
        figures={
            name: drawings.in_page(
                _drawing(exploration, rec, name), name, f"{name} of {named.workload}"
            )
            for name in FIGURES
        },
        front=front,
        front_note=front.title,
        seeds=counted(len(exploration.means.seeds), "seed"),
        thinned=len(exploration.admissible) > 1000,
        metrics=listed(metrics, "and"),
        metric=exploration_text.metric_word(exploration.main_metric),
        chosen=rec.candidate is not None,
        ties=bool(exploration_text.tied(exploration)),
        matters=exploration_text.matters_table(exploration),
        complete=exploration.complete,
        near=exploration_text.compared_table(exploration, 24),
        confirmed=exploration_text.confirmed_table(exploration),
        level=f"{100 * exploration.settings.level:.0f} %",
        robust=_robust(exploration),
        draws=0 if exploration.robust is None else exploration.robust.draws,
        levels=exploration_text.level_tables(exploration, 40),
        facts=_facts(exploration, rec),
        version=version(),
        css=Markup(text_of("page.css")),
        js=Markup(text_of("page.js")),
    )


def write_figures(exploration: Exploration, rec: Recommendation, folder: Path) -> list[Path]:
    """Write every available figure as SVG and PDF to `folder`, created if absent; returns the files."""
    return drawings.write({name: _drawing(exploration, rec, name) for name in FIGURES}, folder)


def _drawing(exploration: Exploration, rec: Recommendation, name: str) -> drawings.Drawing:
    def drawn(width: float) -> Figure:
        with style.look():
            return FIGURES[name](exploration, rec.candidate, width)

    return drawn


def _tiles(exploration: Exploration, rec: Recommendation) -> list[dict[str, str]]:
    tiles: list[tuple[str, str, str]] = []
    if rec.candidate is not None:
        mean = exploration.means.of(rec.candidate)
        for m in exploration.metrics:
            tiles.append(
                (
                    exploration_text.amount(exploration, m, mean[m]),
                    exploration_text.metric_word(m),
                    "",
                )
            )
        tiles.append((f"{mean['hosts']:.0f}", "hosts", ""))
    else:
        tiles.append((rec.state, "recommendation", "warn"))
    verdict = (exploration.judgement or {}).get("verdict")
    if verdict:
        tiles.append((verdict, "model applies", "" if verdict == "ok" else "warn"))
    return [dict(zip(("value", "label", "mark"), row, strict=True)) for row in tiles]


def _robust(exploration: Exploration) -> Table | None:
    r = exploration.robust
    if r is None:
        return None
    ordered = sorted(r.candidates, key=r.mean_regret)
    rows = [
        (
            describe(exploration.space, c),
            quantities.share(r.share_good(c)),
            quantities.share(r.mean_regret(c)),
            quantities.share(r.worst_regret(c)),
        )
        for c in ordered
    ]
    columns = ("configuration", "#within 5 % of the best", "#mean regret", "#worst")
    return Table("Drawn", columns, tuple(rows))


def _facts(exploration: Exploration, rec: Recommendation) -> list[tuple[str, str]]:
    facts = [("looked at", exploration_text.effort(exploration))]
    for axis in exploration.space.axes:
        labels = [spaced(v) for v in axis.labels]
        shown = (
            ", ".join(labels) if len(labels) <= 12 else f"{labels[0]}, {labels[1]}, … {labels[-1]}"
        )
        facts.append((axis_word(axis), f"{shown} ({axis.name})"))
    question = exploration.question
    facts.append(
        ("objective", question.objective.name if question.objective else "none: Pareto front")
    )
    facts.append(("rule of the recommendation", rec.rule or "none made"))
    if question.constraints:
        facts.append(("constraints", "; ".join(c.text for c in question.constraints)))
    facts.append(
        (
            "seeds",
            f"{len(exploration.means.seeds)} for every number of the tables, the same for all; 1 for the "
            f"other configurations, up to {exploration.settings.most_seeds} for comparisons",
        )
    )
    judgement = exploration.judgement or {}
    ends = None
    if exploration.calibration is not None and exploration.selection is not None:
        best = exploration.means.of(exploration.selection.best.candidate)["makespan_s"]
        ends = exploration.calibration.ends(best)
        facts.append(("measured runs", exploration.calibration.message))
    if ends is not None:
        facts.append(("one run of the best, calibrated", quantities.seconds_range(*ends)))
    elif judgement.get("interval"):
        i = judgement["interval"]
        high = float("inf") if i["high"] is None else i["high"]
        range_text = quantities.seconds_range(i["low"], high)
        facts.append(
            ("one run of the best", f"{100 * i['level']:.0f} % between {range_text}; {i['method']}")
        )
    if judgement.get("bottleneck"):
        facts.append(("its bottleneck", str(judgement["bottleneck"])))
    return facts
