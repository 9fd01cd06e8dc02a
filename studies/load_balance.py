"""Load balance over two replicas whose disks change in opposite directions: blind clients, and clients that
use latency.

`studies/load_balance.py` runs `studies/load-balance.study.yaml` (needs root), evaluates the shares of
requests between the changes, and draws them as SVG. `--quick`: windows of 2 s instead of 10, one replicate.
Runs without a valid certificate are excluded unless `--invalid` is given. Planted failure: the two kinds of
clients exchanged, which must not pass. Exit status 3 if a claim is not met or not measured, 1 if something
failed or the planted failure is not detected.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from penstock.errors import PenstockError
from penstock.report import style

HERE = Path(__file__).resolve().parent
for part in ("blackbox", "storage-layout", "heterogeneous"):
    sys.path.insert(0, str(HERE / part))
sys.path.insert(0, str(HERE.parent))

import running  # noqa: E402
from disks import run_study  # noqa: E402
from shares import WINDOWS, ClientRun, client_runs  # noqa: E402
from steps import mean_interval  # noqa: E402

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Finding, Result, claim, met_if, valid_runs  # noqa: E402
from studies.common.published_figures import save  # noqa: E402

STUDY = HERE / "load-balance.study.yaml"
#: `--set` of the quick size: changes at 2, 4 and 6 s; 8 s in total
QUICK = [
    *(f"platform.schedule.{i}.at={at}s" for i, at in enumerate((2, 2, 4, 4, 6))),
    "design.replicates=1",
]


#: window, claim, least and largest share of s-1
SHARES = (
    ("first", "s-0 slow, s-1 fast: aware clients ask s-1 in more than 70 %", 0.70, 1.0),
    ("second", "s-0 fast, s-1 slow: aware clients ask s-1 in less than 30 %", 0.0, 0.30),
    ("before", "both alike before: aware clients ask s-1 in 50 ± 10 %", 0.40, 0.60),
    ("after", "both alike again: aware clients ask s-1 in 50 ± 10 %", 0.40, 0.60),
)


def balance_claims(clients: list[ClientRun]) -> list[Claim]:
    """Shares of the requests, and their number while one disk is slow."""
    aware = [a for a in clients if a.client == "aware"]
    blind = [a for a in clients if a.client == "blind"]
    needs = valid_runs(["aware clients", "blind clients"], (f"{a.client} clients" for a in clients))
    only = {name: {name: runs} for name, runs in needs.items()}
    claims = [
        claim(
            "load-balance",
            wording,
            only["aware clients"],
            lambda window=window, low=low, high=high: _within(
                [a.share(window) for a in aware], low, high
            ),
        )
        for window, wording, low, high in SHARES
    ]
    claims.append(
        claim(
            "load-balance",
            "blind clients ask s-1 in 50 ± 3 % of all windows",
            only["blind clients"],
            lambda: _within([a.share(w) for a in blind for w in WINDOWS], 0.47, 0.53),
        )
    )
    wording = "while one disk is slow, aware clients complete more requests than blind ones"
    claims.append(claim("load-balance", wording, needs, lambda: _more(aware, blind)))
    return claims


def _within(shares: list[float], low: float, high: float) -> Finding:
    return met_if(all(low <= share <= high for share in shares), _percent(shares))


def _more(aware: list[ClientRun], blind: list[ClientRun]) -> Finding:
    completed = [[a.requests("first", "second") for a in runs] for runs in (aware, blind)]
    evidence = " and ".join(f"{np.mean(requests):.0f}" for requests in completed)
    return met_if(min(completed[0]) > max(completed[1]), evidence)


def planted(clients: list[ClientRun]) -> bool | None:
    """True if exchanged clients would be detected; None without both kinds."""
    opposite = {"aware": "blind", "blind": "aware"}
    if {a.client for a in clients} != set(opposite):
        return None
    swapped = [replace(a, client=opposite[a.client]) for a in clients]
    return sum(c.result is Result.NOT_MET for c in balance_claims(swapped)) >= 4


def _percent(shares: list[float]) -> str:
    interval = mean_interval(100 * s for s in shares)
    return f"{interval} %, {100 * min(shares):.1f} to {100 * max(shares):.1f}, n = {len(shares)}"


def draw(clients: list[ClientRun]) -> Figure:
    """Share of s-1 over time, a line per run."""
    fig = style.figure(style.WIDE_INCHES, 2.9)
    axes = fig.subplots(1, 1)
    for client, series in zip(("aware", "blind"), style.SERIES, strict=False):
        label = f"{client} clients"
        for client_run in (a for a in clients if a.client == client):
            at, share = client_run.series()
            axes.plot(at, 100 * share, color=series.colour, ls=series.line, lw=1.2, label=label)
            label = ""
    limits = (
        "both 16 MB/s",
        "s-0 2 MB/s, s-1 unlimited",
        "s-0 unlimited, s-1 2 MB/s",
        "both 16 MB/s",
    )
    edges = (
        [-clients[0].changes_s[1], *clients[0].changes_s, clients[0].at_s.max()] if clients else []
    )
    for edge in edges[1:-1]:
        axes.axvline(edge, color=style.MUTED, lw=0.8, ls=":")
    for left, right, limit in zip(edges, edges[1:], limits, strict=False):
        axes.text((left + right) / 2, 104, limit, ha="center", va="bottom", fontsize=7.5)
    axes.set_ylim(0, 102)
    axes.set_ylabel("requests that go to s-1 (%)")
    axes.set_xlabel("time after the first change (s)")
    axes.legend(loc="lower left", frameon=False, fontsize=8)
    style.grid(axes)
    return fig


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    options = running.options(__doc__, "load-balance", "short windows, one replicate")
    arguments = options.parse_args()
    out: Path = arguments.out.resolve()
    try:
        if not arguments.compare:
            overrides = ["--quick", *(w for change in QUICK for w in ("--set", change))]
            run_study(STUDY, out, overrides if arguments.quick else [])
        clients, excluded = client_runs(out, invalid=arguments.invalid)
    except PenstockError as error:
        print(f"load-balance: {error}", file=sys.stderr)
        return 1
    for reason in excluded:
        print(f"load-balance: not valid: {reason[:200]}", file=sys.stderr)
    claims = balance_claims([a for a in clients if a.valid])
    if arguments.invalid:
        claims = checks.with_invalid(claims, balance_claims(clients))
    if clients:
        with style.look():
            save(draw(clients), (arguments.figures or out) / "load-balance.svg")
    if arguments.json:
        document = {"claims": checks.as_json(claims), "valid": sum(a.valid for a in clients)}
        print(json.dumps(document))
    else:
        checks.show(claims)
    detected = {"clients of the other kind": planted(clients)}
    usable = sum(a.valid for a in clients)
    valid = record.share("runs", "", "valid", usable, usable + len(excluded))
    record.keep(arguments.record, [*checks.rows(claims), valid], detected)
    return checks.finish("load-balance", claims, detected)


if __name__ == "__main__":
    sys.exit(main())
