"""Make docs/accuracy.md of the recorded comparisons: print it.

python -m studies.prediction_study.accuracy > docs/accuracy.md
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measurements import RESULTS, VERDICTS, figure
from penstock.text import signed_percent
from studies.prediction_study.evaluation import WITHIN, WORST
from studies.prediction_study.scenarios import Scenario, frozen

#: recorded results: of the campaign, and of the runs with which the model was developed
CAMPAIGN = "predictions"
DEVELOPMENT = ("stores", "stores_cephfs")
#: the default model in the development data
MODEL = "streamed"

HEAD = """\
# Accuracy of predictions

Made by `python -m studies.prediction_study.accuracy > docs/accuracy.md` of
`bench/results/predictions.json`, `stores.json` and `stores_cephfs.json`. The error is the predicted time
over the mean of the measured runs, minus 1: `−20 %` is a prediction that is too short. How a prediction
is made is on the page of [the model](model.md).
"""
NOT_YET = """\
Not measured yet: `python studies/predictions.py --record` measures {count} scenarios on {engines}, which
were not used for seeding or calibration and were frozen before the first prediction.
"""
ABOUT_DEVELOPMENT = """\
The model was developed with these runs: they do not show how accurate it is elsewhere. There are two
runs of each scenario. Their nodes had a quarter of a processor, which was often what a run waited for,
and the first run of some includes the creation of pools.
"""
_NAME = re.compile(
    r"(?P<pattern>\w+) of (?P<mib>\d+) MiB, (?P<nodes>\d+) nodes(?P<hints>, hints)?"
    r"(?P<link>, a link of half the rate)?(?P<disk>, a disk of half the rate)?"
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """A scenario of an engine: measured mean [s] and number of runs, predicted time [s] and verdict."""

    engine: str
    scenario: Scenario
    measured_s: float
    runs: int
    predicted_s: float
    verdict: str

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1


def scenario_of(text: str) -> Scenario | None:
    """The scenario of that name; None if it is another text."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    return Scenario(
        match["pattern"],
        int(match["mib"]),
        int(match["nodes"]),
        bool(match["hints"]),
        bool(match["link"]),
        bool(match["disk"]),
    )


def compared(rows: Sequence[Row], engine: str = "") -> list[Compared]:
    """Scenarios of a recorded result. `engine`: that of a result with the models' names in its rows."""
    predicted: dict[tuple[str, str], Row] = {
        (row["case"], row["engine"]): row for row in rows if row["metric"] == "predicted"
    }
    result = []
    for row in rows:
        scenario = scenario_of(row["case"]) if row["metric"] == "measured" else None
        if scenario is None:
            continue
        of = engine or row["engine"]
        model = MODEL if engine else f"{of}, predicted"
        prediction = predicted[row["case"], model]
        time_s, verdict = prediction["value"], prediction.get("applies", "ok")
        result.append(Compared(of, scenario, row["value"], row["n"], time_s, verdict))
    return result


#: parts of the tables
PARTS: tuple[Callable[[Scenario], str], ...] = (
    lambda s: s.pattern,
    lambda s: f"{s.file_mib} MiB",
    lambda s: f"{s.nodes} nodes",
    lambda s: "with hints" if s.hints else "without hints",
    lambda s: "a slow link" if s.slow_link else "a slow disk" if s.slow_disk else "equal nodes",
)


def by_parts(scenarios: Sequence[Compared]) -> str:
    """Table: for each engine, pattern, size and number of nodes, how many predictions were right."""
    lines = [
        "| engine | part | scenarios | within 10 % | within 20 % | mean error | farthest |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine in dict.fromkeys(c.engine for c in scenarios):
        own = [c for c in scenarios if c.engine == engine]
        lines.append(_line(engine, "**all**", own))
        for part_of in PARTS:
            groups: dict[str, list[Compared]] = defaultdict(list)
            for c in own:
                groups[part_of(c.scenario)].append(c)
            lines += [_line(engine, part, group) for part, group in groups.items() if group != own]
    return "\n".join(lines) + "\n"


def _line(engine: str, part: str, group: Sequence[Compared]) -> str:
    near, far = (sum(abs(c.error) <= limit for c in group) for limit in (WITHIN, WORST))
    mean = signed_percent(statistics.fmean(c.error for c in group), 0)
    worst = max(group, key=lambda c: abs(c.error))
    cells = (engine, part, len(group), near, far, mean, signed_percent(worst.error, 0))
    return "| " + " | ".join(map(str, cells)) + " |"


def wrong(scenarios: Sequence[Compared]) -> str:
    """Table of the scenarios past 10 %, farthest first."""
    rows = sorted((c for c in scenarios if abs(c.error) > WITHIN), key=lambda c: -abs(c.error))
    if not rows:
        return "None.\n"
    lines = [
        "| engine | scenario | measured | predicted | error | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for c in rows:
        times = f"{c.measured_s:.3g} s (n = {c.runs}) | {c.predicted_s:.3g} s"
        lines.append(
            f"| {c.engine} | {c.scenario} | {times} | {signed_percent(c.error, 0)} | {c.verdict} |"
        )
    return "\n".join(lines) + "\n"


def goals(rows: Sequence[Row]) -> str:
    """Table of the goals of the campaign."""
    lines = ["| of | what | figure | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        if row.get("quoted"):
            metric = ": ".join(part for part in (row["engine"], row["metric"]) if part)
            verdict = VERDICTS.get(row.get("verdict", ""), "")
            cells = (row["case"], metric, figure(row), row.get("bar", ""), verdict)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def sections(title: str, about: str, rows: Sequence[Row], engine: str = "") -> str:
    """Part of the page for one result."""
    scenarios = compared(rows, engine)
    return f"## {title}\n\n{about}\n{by_parts(scenarios)}\n### {title}: past 10 %\n\n{wrong(scenarios)}"


def page(folder: Path = RESULTS) -> str:
    """The page, from the recorded results in a folder."""
    parts = [HEAD]
    campaign = folder / f"{CAMPAIGN}.json"
    if campaign.is_file():
        doc = json.loads(campaign.read_text("utf-8"))
        about = f"`{doc['command']}`, {doc['date']}, commit {doc['commit']}. {doc['about']}\n"
        rows = doc["rows"]
        parts.append(sections("Scenarios that the model has not seen", about, rows))
        parts.append(f"### Goals\n\n{goals(rows)}")
    else:
        parts.append(f"## Scenarios that the model has not seen\n\n{_not_yet()}")
    for name in DEVELOPMENT:
        file = folder / f"{name}.json"
        if file.is_file():
            doc = json.loads(file.read_text("utf-8"))
            engine = Path(doc["command"].split()[-1]).name.partition(".")[0]
            about = (
                f"{ABOUT_DEVELOPMENT}\n`{doc['command']}`, {doc['date']}, commit {doc['commit']}.\n"
            )
            parts.append(sections(f"Development data: {engine}", about, doc["rows"], engine))
    return "\n".join(parts)


def _not_yet() -> str:
    every = frozen()
    count = sum(map(len, every.values()))
    return NOT_YET.format(count=count, engines=", ".join(every))


if __name__ == "__main__":
    print(page(), end="")
