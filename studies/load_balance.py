"""Load balance over two replicas whose disks change in opposite directions, blind and by latency.

`studies/load_balance.py` runs `studies/load-balance.study.yaml` (needs root), judges the shares of
requests between the changes, and draws them as SVG. `--quick`: windows of 2 s instead of 10, one
replicate. Runs whose certificate is not valid are left out unless `--invalid` is given. Planted: the same
requests with the two kinds of clients taken for each other, which must not pass. Exit status 3 if something
that must hold does not, 1 if something failed or what was planted is not found.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError
from penstock.report import style

HERE = Path(__file__).resolve().parent
for part in ("blackbox", "storage-layout", "heterogeneous"):
    sys.path.insert(0, str(HERE / part))
sys.path.insert(0, str(HERE.parent))

import running  # noqa: E402
from claims import Claim, kept  # noqa: E402
from drawing import save  # noqa: E402
from shares import WINDOWS, Asked, asked  # noqa: E402
from steps import mean_interval  # noqa: E402

from bench import record  # noqa: E402

STUDY = HERE / "load-balance.study.yaml"
#: `--set` of the quick size: changes at 2, 4 and 6 s, 8 s in all
QUICK = [
    *(f"platform.schedule.{i}.at={at}s" for i, at in enumerate((2, 2, 4, 4, 6))),
    "design.replicates=1",
]


def balance_claims(found: list[Asked]) -> list[Claim]:
    """What must hold of the shares."""
    aware = [a for a in found if a.client == "aware"]
    blind = [a for a in found if a.client == "blind"]
    made = []
    for window, says, low, high in (
        ("first", "s-0 slow, s-1 fast: aware clients ask s-1 in more than 70 %", 0.70, 1.0),
        ("second", "s-0 fast, s-1 slow: aware clients ask s-1 in less than 30 %", 0.0, 0.30),
        ("before", "both alike before: aware clients ask s-1 in 50 ± 10 %", 0.40, 0.60),
        ("after", "both alike again: aware clients ask s-1 in 50 ± 10 %", 0.40, 0.60),
    ):
        shares = [a.share(window) for a in aware]
        holds = all(low <= s <= high for s in shares) if shares else None
        made.append(Claim("load-balance", says, "", _percent(shares), holds))
    shares = [a.share(w) for a in blind for w in WINDOWS]
    holds = all(0.47 <= s <= 0.53 for s in shares) if shares else None
    says = "blind clients ask s-1 in 50 ± 3 % of all windows"
    made.append(Claim("load-balance", says, "", _percent(shares), holds))
    done = {
        k: [a.requests("first", "second") for a in of] for k, of in (("a", aware), ("b", blind))
    }
    more = None
    words = "no pair of valid runs"
    if done["a"] and done["b"]:
        more = min(done["a"]) > max(done["b"])
        words = f"{np.mean(done['a']):.0f} and {np.mean(done['b']):.0f}"
    says = "while one disk is slow, aware clients complete more requests than blind ones"
    made.append(Claim("load-balance", says, "", words, more))
    return made


def planted(found: list[Asked]) -> bool | None:
    """Whether clients of the other kind would be noticed; None without both kinds."""
    other = {"aware": "blind", "blind": "aware"}
    if {a.client for a in found} != set(other):
        return None
    swapped = [replace(a, client=other[a.client]) for a in found]
    return sum(c.holds is False for c in balance_claims(swapped)) >= 4


def _percent(shares: list[float]) -> str:
    if not shares:
        return "no valid run"
    one = mean_interval(100 * s for s in shares)
    return f"{one} %, {100 * min(shares):.1f} to {100 * max(shares):.1f}, n = {len(shares)}"


def draw(found: list[Asked]) -> Figure:
    """Share of s-1 over time, a line per run."""
    fig = style.figure(style.WIDE_INCHES, 2.9)
    axes = fig.subplots(1, 1)
    for client, series in zip(("aware", "blind"), style.SERIES, strict=False):
        label = f"{client} clients"
        for one in (a for a in found if a.client == client):
            at, share = one.series()
            axes.plot(at, 100 * share, color=series.colour, ls=series.line, lw=1.2, label=label)
            label = ""
    words = (
        "both 16 MB/s",
        "s-0 2 MB/s, s-1 unlimited",
        "s-0 unlimited, s-1 2 MB/s",
        "both 16 MB/s",
    )
    edges = [-found[0].changes_s[1], *found[0].changes_s, found[0].at_s.max()] if found else []
    for edge in edges[1:-1]:
        axes.axvline(edge, color=style.MUTED, lw=0.8, ls=":")
    for left, right, said in zip(edges, edges[1:], words, strict=False):
        axes.text((left + right) / 2, 104, said, ha="center", va="bottom", fontsize=7.5)
    axes.set_ylim(0, 102)
    axes.set_ylabel("requests that go to s-1 (%)")
    axes.set_xlabel("time after the first change (s)")
    axes.legend(loc="lower left", frameon=False, fontsize=8)
    style.grid(axes)
    return fig


def main() -> int:
    """Exit status: 0 all holds, 1 something failed, 3 something does not hold."""
    options = running.options(__doc__, "load-balance", "short windows, one replicate")
    given = options.parse_args()
    out: Path = given.out.resolve()
    try:
        if not given.compare:
            words = running.resumed(out)
            if given.quick:
                words += ["--quick", *(w for change in QUICK for w in ("--set", change))]
            running.run_study(STUDY, out, words, invalid=given.invalid)
        found, left_out = asked(out, invalid=given.invalid)
    except PenstockError as error:
        print(f"load-balance: {error}", file=sys.stderr)
        return 1
    for reason in left_out:
        print(f"load-balance: not valid: {reason[:200]}", file=sys.stderr)
    claims = balance_claims(found)
    if found:
        with style.look():
            save(draw(found), (given.figures or out) / "load-balance.svg")
    if given.json:
        print(
            json.dumps({"claims": [vars(c) for c in claims], "valid": sum(a.valid for a in found)})
        )
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("claim", "ours", "holds"):
            table.add_column(heading, overflow="fold")
        for one in claims:
            table.add_row(one.says, one.ours, {True: "yes", False: "NO", None: "?"}[one.holds])
        Console(width=110, highlight=False).print(table)
    noticed = planted(found)
    valid = record.share("runs", "", "valid", len(found), len(found) + len(left_out))
    record.keep(given.record, [*kept(claims), valid], {"clients of the other kind": noticed})
    if noticed is False:
        print("load-balance: planted clients of the other kind: NOT FOUND", file=sys.stderr)
        return 1
    return 0 if all(c.holds is not False for c in claims) else 3


if __name__ == "__main__":
    sys.exit(main())
