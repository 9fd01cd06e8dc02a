"""A plan as text of at most 100 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.design.caution import ALIASED, roman
from penstock.design.changes import Step
from penstock.design.planned import Plan
from penstock.spec import describe
from penstock.spec.study import Level, Study
from penstock.text import COLUMNS, at_speed, tenths, term_text

#: estimated terms of each model of `penstock.design.kinds.base`
MODEL_TEXTS = {
    "main": "main effects",
    "squares": "main effects, and squares apart from them",
    "pairs": "main effects and products of two",
    "quadratic": "main effects, curvature and products of two",
}
#: factor and level → time scale of its disks
Scales = Callable[[str, str], float]


def plan_text(plan: Plan, study: Study, scales: Scales = lambda _factor, _level: 1.0) -> str:
    """The planned runs for a terminal; levels with the speed of their disks according to `scales`."""
    return "\n".join(line.rstrip() for line in _lines(plan, study, scales))


def paragraph(text: str) -> str:
    """Text wrapped to a plan's width, without breaking names or paths."""
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _lines(plan: Plan, study: Study, scales: Scales) -> Iterator[str]:
    yield f"{plan.study_id}"
    yield from _wrapped(study.question)
    yield ""
    yield from _factors(plan, scales)
    yield ""
    if plan.choice is not None:
        yield from _choice(plan.choice)
        yield ""
    yield from _design(plan, study)
    yield ""
    yield from _runs(plan, scales)
    yield from _platform(study.document)
    if plan.aliases:
        yield ""
        yield "Aliases: each reported effect is a sum that these runs cannot separate"
        for alias in plan.aliases:
            yield from _wrapped(alias.words)
    yield ""
    yield "Power"
    yield from _power(plan, study)
    yield ""
    yield "Limits of this design"
    for sentence in plan.cautions:
        if plan.aliases and sentence.startswith(ALIASED):
            continue  # listed above
        yield from _wrapped(sentence, "- ")


#: description of an action for which the study has no command
_OWN = {
    "redeploy": "nodes and disks are stopped and started again",
    "reformat": "the data are created again in new directories",
    "restart": "services are started again",
    "remount": "disks are mounted again",
}


def sequence_text(
    steps: Sequence[Step], study: Study, levels: Mapping[str, Mapping[str, str]]
) -> str:
    """Steps of each run in order: actions for changed factors, the study's commands, the run."""
    work = study.workload
    lines = ["Actions before a run in which a factor changes"]
    for action, own in _OWN.items():
        needs = [f.name for f in study.factors if f.change == action]
        command = work.hooks.get(action)
        description = f"{own}; {command}" if command else own
        lines += _wrapped(f"{action} ({', '.join(needs) or 'no factor'}): {description}", "- ")
    order = [name for name in ("apply", "verify") if name in work.hooks]
    around = [
        *(["prepare"] if work.prepare else []),
        *order,
        "settle",
        *(f"service {s.name}" for s in work.services),
        "command",
        *(["after"] if work.after else []),
    ]
    lines += ["", "In every run, after its actions"]
    lines += _wrapped(", ".join(around))
    for name in order:
        lines += _wrapped(f"{name}: {work.hooks[name]}", "- ")
    lines += _wrapped(f"command: {work.command}", "- ")
    lines += ["", "Runs, in the order they will be made"]
    for one in steps:
        if one.changed:
            what = ", ".join(f"{n} {a} to {b}" for n, (a, b) in one.changed.items() if a != b)
            what = what or "the same setting, set up again"
        else:
            first = one.actions and one is steps[0]
            what = (
                ", ".join(f"{n} {v}" for n, v in levels[one.run_id].items())
                if first
                else "as before"
            )
        done = ", ".join(one.actions) or "no action"
        lines += _wrapped(f"{one.run_id}: {what}: {done}")
    if "undo" in work.hooks:
        lines += ["", f"  At the end: {work.hooks['undo']}"]
    return "\n".join(line.rstrip() for line in lines)


def _platform(document: dict[str, Any]) -> Iterator[str]:
    if describe.is_plain(document) and not describe.hosts(document):
        return
    for title, rows in (
        ("Nodes", describe.nodes(document)),
        ("Networks", describe.networks(document)),
        ("Changes during a run", describe.schedule(document)),
        ("Services", describe.services(document)),
    ):
        if rows:
            yield ""
            yield title
        for row in rows:
            first, *others = [v for v in row.values() if v]
            yield from _wrapped(f"{first}: {'; '.join(others)}" if others else first, "- ")
    names = describe.hosts(document)
    if names:
        yield ""
        yield "Hosts"
        yield from _wrapped(f"{', '.join(names)}: each block of runs takes place on one of them.")


def _wrapped(text: str, mark: str = "") -> list[str]:
    blank = " " * (2 + len(mark))
    return textwrap.wrap(text, COLUMNS, initial_indent="  " + mark, subsequent_indent=blank)


def _factors(plan: Plan, scales: Scales) -> Iterator[str]:
    yield "Factors (first level -1, second +1)" if plan.two_level else "Factors"
    for factor in plan.factors:
        unit = f" [{factor.unit}]" if factor.unit else ""
        levels = ", ".join(
            at_speed(
                level.name if level.name == _text(level) else f"{level.name} ({_text(level)})",
                scales(factor.name, level.name),
            )
            for level in factor.levels
        )
        yield from textwrap.wrap(
            f"{factor.name}{unit}: {levels}", COLUMNS, initial_indent="  ", subsequent_indent="    "
        )


def _text(level: Level) -> str:
    """Text of a level in templates; JSON for a mapping or list."""
    parts = isinstance(level.value, dict | list)
    return json.dumps(level.value).replace('"', "") if parts else str(level.value)


def _design(plan: Plan, study: Study) -> Iterator[str]:
    yield "Design"
    count = len(plan.factors)
    each = len(plan.rows) // plan.replicates
    repeated = "" if plan.stages or each == plan.treatments else f", with repeated ones {each},"
    runs = f"{plan.treatments} treatments{repeated} x {plan.replicates} = {len(plan.rows)} runs"
    if plan.fraction:
        kind = f"fraction 2^({count}-{plan.fraction}), resolution {roman(plan.resolution)}"
    else:
        kind = f"full 2^{count}" if plan.two_level else "full, mixed levels"
        if plan.kind != "full":
            kind = f"{plan.kind}, {MODEL_TEXTS[plan.model or 'main']}"
        elif plan.model is not None:
            kind = "full but for forbidden combinations"
    yield f"  {kind}: {runs}"
    if plan.generators:
        yield from _wrapped("generators: " + ", ".join(map(_product, plan.generators)))
        yield from _wrapped(
            "defining relation: " + " = ".join(map(_product, plan.defining_relation))
        )
        lengths = ", ".join(f"{n} of length {k}" for k, n in plan.word_lengths.items())
        yield from _wrapped("words: " + lengths)
    for number, terms in enumerate(plan.between_blocks, start=1):
        yield from _wrapped(f"pass {number}: block = {', '.join(map(term_text, terms))}")
    most = "at most " if study.workload.expected_s is None else ""
    yield from _wrapped(f"estimated time: {most}{duration(plan.estimated_s)} ({plan.estimate_why})")
    yield from _wrapped(f"order (seed {plan.seed}): {plan.order_why}")
    if plan.orders:
        yield ""
        yield from _orders(plan)


def _product(word: str) -> str:
    return word.replace("*", " × ").replace("-", "−")


def _orders(plan: Plan) -> Iterator[str]:
    """Duration of each order, and its detectable differences of level means."""
    yield "Orders: time, and the smallest difference detected with 80 % power [standard deviations]"
    names = [f.name for f in plan.factors]
    rows = []
    for option in plan.orders:
        shared = " x ".join(", ".join(option[k]) for k in ("hard", "strips") if option[k])
        is_chosen = (option["order"], option["hard"], option["strips"]) == (
            plan.order,
            plan.whole_plot_factors,
            plan.strip_factors,
        )
        detectable = [option["detectable"][n] for n in names]
        rows.append(
            [
                f"{'> ' if is_chosen else '  '}{option['order']}",
                shared,
                duration(option["seconds"]),
                *(f"{d:.2f}" if d is not None else "no error" for d in detectable),
            ]
        )
    yield from table(["  order", "retained", "time", *names], rows)
    yield from _wrapped(
        "assumption: half of the variance of a run is that of its setting. A retained setting occurs a few "
        "times only, so its effect has few degrees of freedom"
    )


def _choice(choice: dict[str, Any]) -> Iterator[str]:
    yield f"Purpose: {choice['purpose']}"
    yield from _wrapped(choice["why"])
    yield ""
    yield "Designs for this purpose"
    rows = [
        [
            "->" if one["chosen"] else "",
            one["design"],
            f"{one['treatments']} x {one['replicates']}",
            str(one["runs"]),
            duration(one["estimated_s"]),
            tenths(one["detectable_share_80"]) if one["detectable_share_80"] else "-",
            one["refused"],
        ]
        for one in choice["alternatives"]
    ]
    yield from table(
        ["", "design", "treatments", "runs", "time", "detected (80 %)", "not chosen because"], rows
    )
    for one in choice["alternatives"]:
        yield from _wrapped(f"{one['design']}: {one['cannot']}", "- ")


def _runs(plan: Plan, scales: Scales) -> Iterator[str]:
    names = [f.name for f in plan.factors]
    rows = [
        [
            r.run_id,
            str(r.replicate),
            r.treatment_id,
            *(at_speed(r.levels[n], scales(n, r.levels[n])) for n in names),
        ]
        for r in plan.rows
    ]
    yield "Runs, in the order they will be made"
    yield from table(["run", "pass", "treatment", *names], rows)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int = COLUMNS
) -> Iterator[str]:
    """Lines of a text table, columns shortened to fit `width`."""
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    while sum(widths) + 2 * len(widths) > width and max(widths) > 4:
        widths[widths.index(max(widths))] -= 1
    for row in [head, *rows]:
        cells = (
            (cell if len(cell) <= w else cell[: w - 1] + "…").ljust(w)
            for cell, w in zip(row, widths, strict=True)
        )
        yield ("  " + "  ".join(cells)).rstrip()[:width]


def _power(plan: Plan, study: Study) -> Iterator[str]:
    power = plan.power
    noise, source = power.get("assumed_noise", 0.0), study.design.noise_from
    where = "design.noise" if source == "assumed" else source
    varying = f"if repeated runs vary by {tenths(noise)} ({where})"
    if not power.get("degrees_of_freedom"):
        why = "no replicates" if plan.replicates == 1 else "model and blocks use them all"
        yield from _wrapped(f"{why}: no degrees of freedom for the error")
        return
    yield from _wrapped(
        f"80 % for a difference of level means of {power['detectable_sigma_80']:.2f} standard deviations, "
        f"90 % for {power['detectable_sigma_90']:.2f} (single test, {power['degrees_of_freedom']} degrees of "
        "freedom"
        + (f" of {power['factor']}, the least precise" if "factor" in power else "")
        + f"). 95 % interval of a coefficient: ± {power['half_width_q_sigma']:.2f} standard deviations"
    )
    yield from _wrapped(
        f"{varying}: {tenths(power['detectable_share_80'])} of the mean for 80 %, "
        f"{tenths(power['detectable_share_90'])} for 90 %"
    )
    together = plan.power_together
    if together.get("terms", 0) > 1:
        yield from _wrapped(
            f"the report tests all {together['terms']} terms together (Holm). A single effect among them "
            f"then needs {together['detectable_sigma_80']:.2f} standard deviations for 80 % "
            f"({tenths(together['detectable_share_80'])} of the mean)"
        )
