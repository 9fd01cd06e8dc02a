"""Location of the data of an analytics cluster: Spark with HDFS on its hosts, apart, on volumes, or on
objects.

`studies/scenarios.py` runs `studies/scenarios.study.yaml` (needs root and the programs in
`docs/scenarios.md`), converts Spark's event logs to the clock of the nodes' samples, ranks the six scenarios
for WordCount, DFSIO and five queries, with ties, and evaluates the five shapes of the published table: met,
not met, undecided, or not measured (a scenario without a valid run), with the reason by waves. `--quick`:
little data and one run of each. Runs without a valid certificate are excluded unless `--invalid` is given.

Planted failure: the same runs, and the published table, with the times of `guest` and `objects` exchanged,
which must be reported. Exit status 3 if a shape is not met, undecided or not measured, 1 if something failed
or the planted failure is not detected. The published table: IOStack, deliverable 2.1, table 3.3a.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

from penstock.analyse.treatments.ranking import Order, order
from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.report import style

HERE = Path(__file__).resolve().parent
for part in ("blackbox", "storage-layout", "heterogeneous", "scenarios"):
    sys.path.insert(0, str(HERE / part))
sys.path.insert(0, str(HERE.parent))

import running  # noqa: E402
from disks import run_study  # noqa: E402
from judged import (  # noqa: E402
    OBJECTS,
    Cost,
    Means,
    measured,
    published,
    published_rates,
    shapes,
    swap_detected,
    swapped,
)
from layout import SCENARIOS  # noqa: E402
from scenario_runs import (  # noqa: E402
    PROGRAMS,
    ProgramRun,
    after,
    by_second,
    costs,
    rates,
    runs,
    times,
)

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim  # noqa: E402
from studies.common.published_figures import save  # noqa: E402

STUDY = HERE / "scenarios.study.yaml"
NAMES = {"wordcount": "WordCount", "dfsio": "DFSIO", "tpcds": "queries"}
ABOUT = "Two workers, two data nodes, links of 50 Mbit/s, disks of 10 MB/s: compare ratios, not seconds."
console = Console(width=130, highlight=False)


def show_runs(completed: Sequence[ProgramRun], means: Means) -> None:
    """A row per scenario: time of each program, and utilisation of the roles in each."""
    table = Table(box=None, pad_edge=False, title="seconds (deviation), n")
    table.add_column("scenario")
    for program in PROGRAMS:
        table.add_column(NAMES[program], justify="right")
    table.add_column("n", justify="right")
    for scenario in SCENARIOS:
        scenario_means = [means[p][scenario] for p in PROGRAMS if scenario in means[p]]
        n = len({r.run_id for r in completed if r.scenario == scenario})
        time_cells = [
            f"{m.mean:.1f} ({m.sd:.1f})" if n > 1 else f"{m.mean:.1f}" for m in scenario_means
        ]
        table.add_row(scenario, *time_cells, str(n))
    console.print(table)
    table = Table(
        box=None,
        pad_edge=False,
        title="busy, % (cpu of the host; in, out of the link to the wire; disk)",
    )
    for heading in ("program", "scenario"):
        table.add_column(heading)
    roles = list(dict.fromkeys(role for r in completed for role in r.busy))
    for role in roles:
        table.add_column(role, justify="right")
    for program in PROGRAMS:
        for scenario in SCENARIOS:
            matches = [r for r in completed if (r.program, r.scenario) == (program, scenario)]
            if not matches:
                continue
            cells = []
            for role in roles:
                values = [
                    sum(r.busy[role][resource] for r in matches) / len(matches)
                    for resource in ("cpu", "in", "out", "disk")
                ]
                cells.append(" ".join(f"{v:4.0f}" for v in values))
            table.add_row(NAMES[program], scenario, *cells)
    console.print(table)


def show_orders(orders: dict[str, Order]) -> None:
    """Print ranks with their bounds; ties share a rank."""
    for program, ranking in orders.items():
        console.print(f"{NAMES[program]}: {ranking}")


def show_costs(cost_rows: Sequence[Cost]) -> None:
    """Table of waves, and of the differences that they explain."""
    table = Table(box=None, pad_edge=False, title="waves")
    for heading in ("program", "scenario"):
        table.add_column(heading)
    headings = ("waves", "mean wave s", "+1 ms costs s", "%", "longer than guest by, ms a wave")
    for heading in (*headings, "after the last job s"):
        table.add_column(heading, justify="right")
    for entry in cost_rows:
        cost = entry.sensitivity
        table.add_row(
            NAMES[entry.program],
            entry.scenario,
            str(entry.waves),
            f"{cost.mean_wave_s:.3f}",
            f"{cost.longer_s():.3f}",
            f"{cost.longer_percent():.2g}",
            f"{entry.longer_ms:+.0f}",
            f"{entry.after_s:.2f}",
        )
    console.print(table)


def times_figure(completed: Sequence[ProgramRun]) -> Figure:
    """A panel per program: time over that of `guest` by scenario, measured (a dot per run) and published."""
    fig = style.figure(style.WIDE_INCHES, 3.1)
    measured_series, published_series = style.SERIES[0], style.SERIES[1]
    table = published()
    for axes, program in zip(fig.subplots(1, len(PROGRAMS), sharey=True), PROGRAMS, strict=True):
        by_scenario = times(completed)[program]
        guest = sum(by_scenario["guest"]) / len(by_scenario["guest"])
        for x, scenario in enumerate(SCENARIOS):
            if scenario not in by_scenario:
                continue
            ratios = [t / guest for t in by_scenario[scenario]]
            mean, at = sum(ratios) / len(ratios), x - 0.16
            look = {
                "color": measured_series.colour,
                "label": "here, mean and runs" if x == 0 else "",
            }
            axes.plot([at - 0.16, at + 0.16], [mean, mean], lw=1.4, color=measured_series.colour)
            axes.plot([at] * len(ratios), ratios, measured_series.mark, ms=4, alpha=0.8, **look)
            ratio = table[program][scenario].mean / table[program]["guest"].mean
            look = {"color": published_series.colour, "label": "published" if x == 0 else ""}
            axes.plot(x + 0.2, ratio, published_series.mark, ms=5, **look)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(style.plain_number))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(NAMES[program])
        axes.set_xticks(range(len(SCENARIOS)), list(SCENARIOS), rotation=60, ha="right")
        axes.axhline(1, color=style.MUTED, lw=0.8, zorder=0)
        style.grid(axes)
    fig.axes[0].set_ylabel("time (times that of guest)")
    fig.axes[0].legend(loc="upper left", frameon=False, fontsize=8)
    return fig


def clock_figure(completed: Sequence[ProgramRun], program: str = "tpcds") -> Figure:
    """One run of a program near its data and on objects, each second: tasks, processors, links, disks."""
    shown = [s for s in ("guest", "apart", OBJECTS) if any(r.scenario == s for r in completed)]
    fig = style.figure(style.WIDE_INCHES, 4.4)
    grid = fig.subplots(4, len(shown), squeeze=False, sharex="col", sharey="row")
    for column, scenario in enumerate(shown):
        run = next(r for r in completed if (r.scenario, r.program) == (scenario, program))
        ended_ns = run.began_ns + round(run.time_s * 1e9)
        series = by_second(Bundle.open(Path(run.bundle)), run.began_ns, ended_ns)
        for row, (name, (x, y)) in enumerate(series.items()):
            axes = grid[row][column]
            axes.step(
                x, y, where="post" if row == 0 else "pre", color=style.SERIES[row].colour, lw=1
            )
            axes.set_xlim(0, run.time_s)
            if column == 0:
                axes.set_ylabel(name if row == 0 else f"{name} (%)", fontsize=7.5)
            if row == 0:
                axes.set_title(f"{scenario}: {run.waves} waves, {run.time_s:.3g} s", fontsize=8.5)
            style.grid(axes)
        grid[-1][column].set_xlabel("seconds since the program began")
    for row in grid:  # of all scenarios, once they are drawn
        row[0].set_ylim(0, max(axes.dataLim.y1 for axes in row) * 1.05 or 1)
    return fig


def record_rows(
    completed: Sequence[ProgramRun], means: Means, claims: Sequence[Claim]
) -> list[record.Row]:
    """Times of every scenario and the shapes."""
    rows = []
    for program in PROGRAMS:
        for scenario in SCENARIOS:
            times_s = [
                r.time_s for r in completed if (r.program, r.scenario) == (program, scenario)
            ]
            if times_s:
                rows.append(record.row(NAMES[program], scenario, "time", times_s, "s"))
    for program, ranking in orders_of(means).items():
        rows.append(record.claim(NAMES[program], "ranking", str(ranking), "", None))
    return rows + checks.rows(claims)


def orders_of(means: Means) -> dict[str, Order]:
    """Ranking of the scenarios of each program that has two of them."""
    return {p: order(list(means[p].values())) for p in PROGRAMS if len(means[p]) > 1}


def claims_of(completed: Sequence[ProgramRun]) -> list[Claim]:
    """Claims on the shapes."""
    cost_rows = costs(completed)
    return shapes(measured(times(completed)), rates(cost_rows), after(cost_rows))


def figures(completed: Sequence[ProgramRun], folder: Path) -> None:
    """Draw both figures for the existing runs."""
    by_program = times(completed)
    with style.look():
        if all("guest" in by_program[p] for p in PROGRAMS):
            save(times_figure(completed), folder / "scenarios.svg")
        if any(r.scenario in ("guest", "apart", OBJECTS) for r in completed):
            save(clock_figure(completed), folder / "scenarios-clock.svg")


def planted_in(completed: Sequence[ProgramRun], claims: Sequence[Claim]) -> dict[str, bool | None]:
    """Swapped scenarios, in the measured and in the published table: true if detected."""
    cost_rows = costs(completed)
    swapped_claims = shapes(swapped(measured(times(completed))), rates(cost_rows), after(cost_rows))
    published_claims = shapes(published(), published_rates())
    return {
        "guest and objects swapped": swap_detected(claims, swapped_claims),
        "the same in the published table": swap_detected(
            published_claims, shapes(swapped(published()), published_rates())
        ),
    }


def main() -> int:
    """Exit status: 0 every shape is met, 1 something failed, 3 a shape is not met or not measured."""
    options = running.options(__doc__, "scenarios", "little data, one run of each")
    arguments = options.parse_args()
    out: Path = arguments.out.resolve()
    try:
        if not arguments.compare:
            overrides = ["--quick", "--set", "design.replicates=1"] if arguments.quick else []
            run_study(STUDY, out, overrides)
        completed, excluded = runs(out, invalid=arguments.invalid)
    except (PenstockError, OSError) as error:
        print(f"scenarios: {error}", file=sys.stderr)
        return 1
    for reason in excluded:
        print(f"scenarios: not valid: {reason[:160]}", file=sys.stderr)
    valid = [r for r in completed if r.valid]
    claims = claims_of(valid)
    planted = planted_in(valid, claims)
    if arguments.invalid:
        claims = checks.with_invalid(claims, claims_of(completed))
    figures(completed, arguments.figures or out)
    means = measured(times(completed))
    if arguments.json:
        document = {"runs": [vars(r) for r in completed], "claims": checks.as_json(claims)}
        document |= {"waves": [vars(c) for c in costs(completed)]}
        print(json.dumps(document))
    else:
        show_runs(completed, means)
        show_orders(orders_of(means))
        show_costs(costs(completed))
        checks.show(claims, 130)
        if any(
            len(values) == 1
            for by_scenario in times(completed).values()
            for values in by_scenario.values()
        ):
            print(
                "one run only: a deviation of 10 % is assumed, which allows no significant difference"
            )
    record.keep(arguments.record, record_rows(completed, means, claims), planted, ABOUT)
    return checks.finish("scenarios", claims, planted)


if __name__ == "__main__":
    sys.exit(main())
