"""Analysis after the runs: tables over all of them, effects, predictions, findings, the report.

Everything is computed from the bundles and the frozen study and plan, so it can be repeated at any time.
Imports are local: figures and statistics take a second to load, which a refused run avoids.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from penstock.analyse.fidelity.fidelity import RULES
from penstock.analyse.fidelity.validity import DEGRADED, graded
from penstock.analyse.findings.estimability import size_sentence
from penstock.analyse.findings.findings import write_findings
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.bias import degraded_count
from penstock.archive.bundle import Bundle, write_parquet
from penstock.archive.catalogue import Catalogue, open_index
from penstock.archive.runs import attempts as all_attempts
from penstock.archive.runs import attempts_table, bundles, joined, one_table, runs_table
from penstock.campaign.evidence.rejudge import RejudgedCertificates, rejudged_certificates
from penstock.campaign.frozen import read_campaign
from penstock.campaign.left_out import excluded_runs, without
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.plugins import ANALYSIS_STEPS
from penstock.spec.study import Study
from penstock.study.load import load_study
from penstock.text import counted, without_nan, wrapped
from penstock.workload.responses import measure

if TYPE_CHECKING:
    from penstock.analyse.findings.answer import Answer
    from penstock.analyse.findings.finding import Finding


@dataclass
class Analysis:
    """Result of the analysis of a study.

    Steps of the analysis (`penstock.plugins.ANALYSIS_STEPS`) receive it and write tables to `out`, from its
    `runs`, `study`, `plan` and `tables`.

    `conclusion` is the answer, `plot` and `ranked` the plot and the table of treatments for a terminal.
    `notes` has the parts that failed, with the reason, and the runs whose verdict has changed since their
    end.
    """

    out: Path
    runs: pd.DataFrame
    study: Study
    plan: Plan
    effects: pd.DataFrame | None = None
    conclusion: Answer | None = None
    plot: list[str] = field(default_factory=list)
    ranked: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    outcome: Outcome | None = None
    report: Path | None = None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def tables(self) -> Outcome:
        """Tables of the study as of the first use."""
        return Outcome.read(self.out)

    @property
    def valid_runs(self) -> int:
        """Number of runs that the analysis used."""
        return int(self.runs["valid"].sum())

    @property
    def degraded_runs(self) -> int:
        """Number of degraded runs."""
        return degraded_count(self.runs)

    @property
    def answer(self) -> list[str]:
        """The answer in sentences, the conclusion first; empty without a measured response."""
        return [] if self.conclusion is None else self.conclusion.sentences

    def lines(self, out: Path | None = None, study: Path | None = None) -> list[str]:
        """Answer, plot, ranked table and the number of valid runs, for a terminal.

        `out` and `study` replace OUT and STUDY in the commands of the answer.
        """
        answer = [] if self.conclusion is None else self.conclusion.lines(out=out, study=study)
        parts = [answer, self.plot, self.ranked]
        runs = f"{self.valid_runs} of {len(self.runs)} runs valid"
        repeated = int(self.runs["attempt"].gt(1).sum()) if "attempt" in self.runs else 0
        runs += f", {repeated} of them repeated" if repeated else ""
        runs += f", {self.degraded_runs} of them degraded" if self.degraded_runs else ""
        slowed = "" if self.outcome is None else self.outcome.speeds.stated
        size = "" if self.outcome is None else size_sentence(self.outcome).strip()
        parts.append([" · ".join(filter(None, [runs, slowed]))])
        parts[-1] += wrapped(size)
        return [line for part in parts if part for line in ["", *part]][1:]


def frozen_study(out: Path) -> tuple[Study, Plan]:
    """The study and the plan of an OUT directory. Raises BadInput if it is none."""
    if not out.is_dir() or read_campaign(out) is None:
        raise BadInput(f"{out}: found no campaign.json; expected the directory of a study (its -o)")
    study = load_study(out / "study.yaml")
    return study, plan_from_json(json.loads((out / "plan.json").read_text()))


def analyse(
    out: Path,
    say: Callable[[str], None] = lambda _: None,
    full: bool = True,
    report: bool = True,
) -> Analysis:
    """Compute the tables of all runs and, if `full`, effects, means, predictions, findings and (if `report`)
    the report.

    A part that is impossible (such as for too few valid runs) is omitted and noted. Raises BadInput if `out`
    is not the directory of a study.
    """
    study, plan = frozen_study(out)
    factors = [f.name for f in plan.factors]
    responses = [r.name for r in study.responses]
    judged = [rejudged_certificates(remeasured(b, study)) for b in bundles(out)]
    last = [graded(each.bundle, study.responses, each.fidelity) for each in judged]
    reasons = excluded_runs(out)
    runs = runs_table([without(b, reasons) for b in last], factors, responses)
    write_parquet(out / "runs.parquet", runs)
    write_parquet(out / "attempts.parquet", attempts_table(all_attempts(out)))
    result = Analysis(out, runs.to_pandas(), study, plan, notes=_on_certificates(judged))
    result.notes += _used_now(bundles(out), last)
    again = {str(each.bundle.manifest["run_id"]) for each in judged if each.rejudged}
    regraded = [
        b for b in last if b.manifest["run_id"] in again or b.manifest["validity"] == DEGRADED
    ]
    _tell_catalogues(out, regraded, result)
    fidelity = one_table("fidelity", [j.fidelity for j in judged if j.fidelity is not None])
    windows = one_table("fidelity_windows", [j.windows for j in judged if j.windows is not None])
    for name, table in (
        ("fidelity", fidelity),
        ("fidelity_windows", windows),
        *((name, joined(last, name)) for name in ("confirmation", "agreement")),
    ):
        if table is not None:
            write_parquet(out / f"{name}.parquet", table)
        else:
            (out / f"{name}.parquet").unlink(missing_ok=True)
    if not full:
        return result
    say("analysing")
    for name in ANALYSIS_STEPS:
        _part(result, name, partial(ANALYSIS_STEPS.load(name), result))
    _part(result, "findings", lambda: _findings(result))
    if report:
        write_page(result, say)
    return result


def write_page(result: Analysis, say: Callable[[str], None]) -> None:
    """Write the report of a full analysis; one that is not full has none."""
    if result.outcome is not None:
        say("writing the report")
        _part(result, "report", lambda: _report(result))


def _tell_catalogues(out: Path, rejudged: list[Bundle], result: Analysis) -> None:
    """Write changed verdicts to the catalogues that list the study."""
    here = out.resolve()
    own = here / "catalogue.sqlite"
    for opened in (partial(Catalogue, own), open_index):
        if not rejudged or (opened is not open_index and not own.exists()):
            continue
        try:
            with opened() as catalogue:
                if any(study.out == str(here) for study in catalogue.studies()):
                    catalogue.put_runs(here, rejudged)
        except PenstockError as error:
            result.notes.append(f"verdicts in the catalogue are as they were: {error}")


def _on_certificates(judged: list[RejudgedCertificates]) -> list[str]:
    """Notes on certificates by older rules."""
    rejudged = sum(each.rejudged for each in judged)
    changed = [each.changed for each in judged if each.changed]
    notes = [each.unchanged for each in judged if each.unchanged]
    if rejudged:
        notes.append(
            f"{rejudged} runs were evaluated again by the current rules (version {RULES}), "
            f"{len(changed)} with another verdict"
        )
    return notes + changed


def _used_now(stored: list[Bundle], now: list[Bundle]) -> list[str]:
    """Runs that are used although their manifests mark them invalid."""
    names = [
        str(b.manifest["run_id"])
        for a, b in zip(stored, now, strict=True)
        if b.manifest["valid"] and not a.manifest["valid"] and b.manifest["validity"] == DEGRADED
    ]
    if not names:
        return []
    return [f"{counted(len(names), 'run')} made as invalid {'is' if len(names) == 1 else 'are'} used as "
            f"degraded: {', '.join(names)}"]  # fmt: skip


def remeasured(bundle: Bundle, study: Study) -> Bundle:
    """The bundle with its responses as the study now defines them, parsed from the program's files.

    Only if they differ from those in its manifest: a response was added, or its unit changed.
    """
    manifest = bundle.manifest
    have = {n: r.get("unit") for n, r in manifest["responses"].items()}
    units = {r.name: r.unit for r in study.responses}
    if manifest["state"] != "finished" or have == units:
        return bundle
    try:
        measured = measure(
            study.responses,
            study.workload.parser,
            bundle.path / "workload",
            _text(bundle.path / "stdout.txt"),
            _text(bundle.path / "stderr.txt"),
            float(manifest.get("times", {}).get("wall_s") or 0.0),
            bundle,
        )
    except (OSError, PenstockError) as error:
        return Bundle(bundle.path, {**manifest, "valid": False, "reason": str(error)})
    responses = {n: {"value": m.value, "unit": m.unit} for n, m in measured.items()}
    return Bundle(bundle.path, {**manifest, "responses": responses})


def headline(effects: pd.DataFrame | None, terms: int = 3) -> list[dict[str, Any]]:
    """The largest effects of each response: response, term, effect, interval, share of the variation."""
    if effects is None or effects.empty:
        return []
    rows: list[Any] = []
    of_terms = effects[~effects["term"].isin(["block", "residual", "whole_plot", "strip"])]
    of_terms = of_terms[of_terms[["effect", "variation_share"]].notna().any(axis=1)]
    for _, group in of_terms.groupby("response", sort=False):
        largest = group.sort_values("variation_share", ascending=False).head(terms)
        columns = [
            "response",
            "term",
            "effect",
            "effect_ci_low",
            "effect_ci_high",
            "variation_share",
            "scale",
        ]
        rows += largest[columns].to_dict("records")
    return without_nan(rows)


def _part(result: Analysis, name: str, make: Callable[[], None]) -> None:
    try:
        make()
    except PenstockError as error:
        result.notes.append(f"no {name}: {error}")
    except Exception as error:
        if name in (*ANALYSIS_STEPS.own, "findings", "report"):
            raise
        result.notes.append(f"no {name}: {type(error).__name__}: {error}")


def _findings(result: Analysis) -> None:
    from penstock.analyse.findings.answer import answer
    from penstock.analyse.findings.answer_plot import plot_lines, table_lines

    outcome = result.tables
    result.findings, result.outcome = write_findings(outcome), outcome
    result.conclusion = answer(outcome, result.findings)
    result.plot = plot_lines(outcome)
    result.ranked = table_lines(outcome)


def _report(result: Analysis) -> None:
    from penstock.report.html import write_report

    assert result.outcome is not None
    result.report = write_report(result.outcome, result.findings)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
