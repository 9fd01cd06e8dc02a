"""Contents of an OUT directory, read only through its published tables."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from penstock.errors import BadInput
from penstock.spec.units import parse_share
from penstock.study.disk_speeds import DiskSpeeds, disk_speeds
from penstock.text import at_speed

#: prefix of the reason of a run that the user excluded from the analysis
EXCLUDED = "left out: "
#: units of times and rates
_TIME = re.compile(r"(^|/)(ns|us|µs|ms|s|min|h)$")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?", re.IGNORECASE)
#: names that end in an s without being a plural: units, `status`, `access`, `iops`
_SINGULAR = re.compile(r"(\b[a-zµ]?s|ss|is|\bi?ops|\b[kmg]?bps|\b[tqr]ps|status|radius|bus)$", re.I)
#: levels that are ambiguous without their factor
_SAYS_LITTLE = frozenset(
    "on off yes no true false none all full normal extra default auto low medium high small large big any "
    "always never sync async enabled disabled old new a b before after with without".split()
)


@dataclass(frozen=True)
class FactorLevels:
    """A factor as planned: its level names in order (low first), its unit, and the time scales of levels
    with slowed disks. `ambiguous`: another factor has a level with the same text."""

    name: str
    levels: list[str]
    unit: str | None = None
    scales: dict[str, float] = field(default_factory=dict)
    ambiguous: bool = False

    def label(self, level: str) -> str:
        """A level in a table of its factor, with its speed: `sata-ssd at ¼ speed`."""
        return at_speed(level, self.scales.get(level, 1.0))

    def phrase(self, level: str) -> str:
        """A level in a sentence: `sata-ssd at ¼ speed`, `8 jobs`, `4KiB block size`, `n = 600`; with the
        factor's name from the study, `log_disk ssd`, if the level alone is ambiguous."""
        if self.ambiguous:
            return f"{self.name} {self.label(level)}"
        return at_speed(self._phrase(level), self.scales.get(level, 1.0))

    def shown(self, level: str) -> str:
        """A level as named in the study, with the factor's name if the level alone is ambiguous."""
        return f"{self.name} {level}" if self.ambiguous else level

    def _phrase(self, level: str) -> str:
        name = self.name.replace("_", " ")
        if _NUMBER.fullmatch(level):
            if len(name) < 3:
                return f"{name} = {level}"
            counted, _, per = name.partition(" per ")
            if not counted.endswith("s"):
                return f"{name} {level}"
            counted = counted[:-1] if level == "1" and not _SINGULAR.search(counted) else counted
            return f"{level} {counted}{' per ' * bool(per)}{per}"
        if level.lower() in _SAYS_LITTLE:
            return f"{name} {level}"
        return f"{level} {name}" if level[:1].isdigit() else level


@dataclass(frozen=True)
class ResponseUnit:
    """A response: its unit and which direction is better (`higher` or `lower`)."""

    name: str
    unit: str
    better: str = "higher"

    @property
    def is_of_time(self) -> bool:
        """True if the unit is a time or a rate."""
        return bool(_TIME.search(self.unit))


@dataclass
class Outcome:
    """The tables of one study's OUT directory; a missing table is `None`.

    `read` raises BadInput if the directory has neither a runs table nor a plan.
    """

    path: Path
    plan: dict[str, Any]
    study: dict[str, Any]
    runs: pd.DataFrame | None
    effects: pd.DataFrame | None
    fidelity: pd.DataFrame | None
    predictions: pd.DataFrame | None
    _manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: cache of results from these tables; a copy with other tables starts empty
    memory: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def read(cls, out_dir: Path | str) -> Outcome:
        """Read OUT; tables other than the summary are loaded on demand."""
        path = Path(out_dir)
        if not path.is_dir():
            raise BadInput(
                f"{path}: no such directory; expected the directory of a study's results"
            )
        if not (path / "runs.parquet").exists() and not (path / "plan.json").exists():
            raise BadInput(
                f"{path}: neither runs.parquet nor plan.json; expected a study's results"
            )
        return cls(
            path=path,
            plan=_json(path / "plan.json"),
            study=_yaml(path / "study.yaml"),
            runs=_parquet(path / "runs.parquet"),
            effects=_parquet(path / "effects.parquet"),
            fidelity=_parquet(path / "fidelity.parquet"),
            predictions=_parquet(path / "predictions.parquet"),
        )

    @property
    def name(self) -> str:
        """The study's name, else the directory's."""
        return str(self.study.get("name") or self.path.resolve().name)

    @property
    def question(self) -> str:
        """The study's question, or an empty string."""
        return " ".join(str(self.study.get("question") or "").split())

    @property
    def detect(self) -> float | None:
        """The smallest relative difference that matters (`design.detect`); None if it is not declared."""
        design = self.study.get("design")
        detect = design.get("detect") if isinstance(design, dict) else None
        return None if detect is None else parse_share(str(detect))

    @cached_property
    def quick(self) -> bool:
        """True if the study was run in its quick size."""
        return bool(_json(self.path / "campaign.json").get("quick"))

    @property
    def study_id(self) -> str:
        """The study's identity in its runs."""
        if self.runs is not None and "study_id" in self.runs and len(self.runs):
            return str(self.runs["study_id"].iloc[0])
        return str(self.plan.get("study_id") or self.name)

    @cached_property
    def factors(self) -> list[FactorLevels]:
        """The factors in the plan's order."""
        factors = []
        for raw in self.plan.get("factors") or []:
            if isinstance(raw, str):
                raw = {"name": raw, "levels": self._levels_of(raw)}
            levels = [
                str(level["name"] if isinstance(level, dict) else level)
                for level in raw.get("levels") or self._levels_of(raw["name"])
            ]
            factors.append(self._factor(str(raw["name"]), levels, raw.get("unit")))
        if not factors:
            for name, raw in (self.study.get("factors") or {}).items():
                levels = (raw or {}).get("levels", []) if isinstance(raw, dict) else raw
                factors.append(self._factor(str(name), [str(level) for level in levels]))
        return _with_ambiguity(factors)

    def _factor(self, name: str, levels: list[str], unit: str | None = None) -> FactorLevels:
        scales = {level: self.speeds.label(name, level) for level in levels}
        return FactorLevels(name, levels, unit, {v: s for v, s in scales.items() if s != 1})

    @cached_property
    def speeds(self) -> DiskSpeeds:
        """Speed of the disks according to the runs' manifests."""
        manifests = [self.manifest(run_id) for run_id in self.run_ids]
        rows = [(m.get("levels") or {}, m.get("disks") or {}) for m in manifests]
        return disk_speeds(self.study, [r for r in rows if all(isinstance(x, dict) for x in r)])

    def factor(self, name: str) -> FactorLevels:
        """The factor of that name. KeyError if there is none."""
        return next((f for f in self.factors if f.name == name), None) or _missing(name)

    def is_effect(self, terms: pd.Series) -> pd.Series:
        """Mask of terms that are a factor or an interaction of factors (not `residual`, not a block)."""
        names = {f.name for f in self.factors}
        flags = [set(str(term).split(":")) <= names for term in terms.tolist()]
        return pd.Series(flags, index=terms.index, dtype=bool)

    def _levels_of(self, name: str) -> list[str]:
        coded: dict[str, float] = {}
        for row in self.plan.get("rows") or []:
            level = str(row.get("levels", {}).get(name))
            coded[level] = float(row.get("coded", {}).get(name, len(coded)))
        return sorted(coded, key=lambda level: coded[level])

    @cached_property
    def responses(self) -> list[ResponseUnit]:
        """The declared responses in the runs table; the first is the study's main one."""
        columns = set(self.runs.columns) if self.runs is not None else set()
        declared = self.study.get("responses") or {}
        responses = []
        for name, raw in declared.items():
            raw = raw if isinstance(raw, dict) else {}
            if not columns or name in columns:
                unit = str(raw.get("unit") or self._unit_measured(str(name)))
                responses.append(ResponseUnit(str(name), unit, str(raw.get("better") or "higher")))
        if not responses and self.effects is not None:
            for name in self.effects["response"].drop_duplicates():
                responses.append(ResponseUnit(str(name), self._unit_measured(str(name))))
        return responses

    def _unit_measured(self, response: str) -> str:
        for run_id in self.run_ids:
            measured = (self.manifest(run_id).get("responses") or {}).get(response)
            if isinstance(measured, dict) and measured.get("unit"):
                return str(measured["unit"])
        return ""

    @cached_property
    def windows_again(self) -> pd.DataFrame | None:
        """`fidelity_windows` of the runs with certificates re-evaluated by the analysis, or `None`."""
        return _parquet(self.path / "fidelity_windows.parquet")

    @cached_property
    def run_ids(self) -> list[str]:
        """Runs with a bundle, in execution order."""
        folder = self.path / "runs"
        if not folder.is_dir():
            return []
        return sorted(
            p.name for p in folder.iterdir() if "." not in p.name and (p / "manifest.json").exists()
        )

    def manifest(self, run_id: str) -> dict[str, Any]:
        """The run's manifest, or an empty mapping."""
        if run_id not in self._manifests:
            self._manifests[run_id] = _json(self.path / "runs" / run_id / "manifest.json")
        return self._manifests[run_id]

    def has_table(self, run_id: str, table: str, columns: Collection[str] = ()) -> bool:
        """True if the run has the table with these columns; its rows are not read."""
        again = self._windows_again(run_id, table)
        if again is not None:
            return set(columns) <= set(again.columns)
        path = self.path / "runs" / run_id / f"{table}.parquet"
        return path.exists() and (not columns or set(columns) <= _columns(path))

    def table(
        self, run_id: str, table: str, columns: list[str] | None = None
    ) -> pd.DataFrame | None:
        """A table of the run's bundle (only the columns that exist), or `None`.

        Windows of a re-evaluated certificate follow the current rules.
        """
        again = self._windows_again(run_id, table)
        if again is not None:
            return again if columns is None else again[[c for c in columns if c in again]]
        return _parquet(self.path / "runs" / run_id / f"{table}.parquet", columns)

    def _windows_again(self, run_id: str, table: str) -> pd.DataFrame | None:
        """The re-evaluated windows of a run, in place of its table; None for other tables and runs."""
        if table != "fidelity_windows" or self.windows_again is None:
            return None
        of_run = self.windows_again[self.windows_again["run_id"].astype(str) == run_id]
        return of_run if len(of_run) else None

    @cached_property
    def measured(self) -> pd.DataFrame:
        """Runs that enter the analysis: finished and valid; empty without a runs table."""
        if self.runs is None:
            return pd.DataFrame()
        if "valid" not in self.runs:
            return self.runs
        return self.runs[self.runs["valid"].fillna(False).astype(bool)]

    def levels(self, treatment_or_run: str) -> dict[str, str]:
        """Level names of a treatment or run, by factor."""
        for row in self.plan.get("rows") or []:
            if treatment_or_run in (row.get("treatment_id"), row.get("run_id")):
                return {f.name: str(row["levels"][f.name]) for f in self.factors}
        if self.runs is not None:
            for key in ("run_id", "treatment_id"):
                if key not in self.runs:
                    continue
                rows = self.runs[self.runs[key] == treatment_or_run]
                if len(rows):
                    return {f.name: str(rows.iloc[0][f.name]) for f in self.factors}
        return {}

    def phrase(self, levels: dict[str, str], separator: str = ", ") -> str:
        """Levels as text, in the factors' order: `hdd-7200, random, 4KiB block, 8 jobs`."""
        return separator.join(
            f.phrase(str(levels[f.name])) for f in self.factors if f.name in levels
        )


def _with_ambiguity(factors: list[FactorLevels]) -> list[FactorLevels]:
    """The factors, `ambiguous` if a level of another factor has the same text."""
    phrases = [{f.phrase(level).lower() for level in f.levels} for f in factors]
    return [
        replace(f, ambiguous=any(own & other for j, other in enumerate(phrases) if j != i))
        for i, (f, own) in enumerate(zip(factors, phrases, strict=True))
    ]


def _missing(name: str) -> FactorLevels:
    raise KeyError(name)


def _json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from error
    return loaded if isinstance(loaded, dict) else {}


def _yaml(path: Path) -> dict[str, Any]:
    try:
        loaded = YAML(typ="safe").load(path)
    except (FileNotFoundError, YAMLError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _columns(path: Path) -> set[str]:
    """Names of the columns of a table."""
    try:
        return set(pq.read_schema(path).names)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not a readable Parquet table ({error})") from error


def _parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame | None:
    if not path.exists():
        return None
    try:
        if columns is not None:
            present = _columns(path)
            columns = [c for c in columns if c in present]
        frame: pd.DataFrame = pq.read_table(path, columns=columns, partitioning=None).to_pandas()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not a readable Parquet table ({error})") from error
    return frame
