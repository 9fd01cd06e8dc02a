"""Selection of a study's results, of one of its treatments or runs, or of a trace's bundle, by a user's
argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles
from penstock.errors import BadInput

#: commands whose output directory has no run, and a file that identifies it
_OTHERS = {"predict": "prediction.json", "explore": "exploration.json"}

EXPECTED = (
    "expected a bundle, as `penstock trace -o` writes it, or a study's results: OUT/runs/r001, "
    "OUT:r001, OUT:t01"
)
#: files that only the directory of a study's results has
_OF_STUDY = ("plan.json", "campaign.json", "runs.parquet", "runs")


@dataclass(frozen=True)
class Selection:
    """A study's results, one of its treatments, or one bundle; `path` is the directory of OUT or of the
    bundle.

    `runs` are the selected bundles: for a study and a treatment the valid ones in the order of the plan.
    """

    name: str
    kind: Literal["study", "treatment", "run"]
    path: Path
    runs: list[Path] = field(default_factory=list)

    @property
    def replicates(self) -> list[Path]:
        """Its runs, all of one treatment. Raises BadInput for a study."""
        if self.kind == "study":
            runs = f"of {_counted(len(self.runs))}" if self.runs else "without a valid run"
            raise BadInput(
                f"{self.name}: found a study's results, {runs}; expected one of "
                f"them: {self.name}:r001 or {self.name}:t01"
            )
        return self.runs

    @property
    def traced(self) -> list[Path]:
        """Replicates of the selection with a trace."""
        return [run for run in self.replicates if (run / "files.parquet").is_file()]

    @property
    def is_trace(self) -> bool:
        """True for one bundle of a traced run."""
        return self.kind == "run" and bool(self.traced)

    @property
    def one(self) -> Path:
        """Its bundle; for a treatment that of its first valid traced run.

        Raises BadInput for a study, and for a treatment without a trace.
        """
        if self.kind == "run":
            return self.path
        if not self.traced:
            raise BadInput(
                f"{self.name}: found {_counted(len(self.runs))}, none of them traced; expected "
                "`observers: {trace: {mode: trace}}` in the study"
            )
        return self.traced[0]


def select(named: Path | str) -> Selection:
    """Selection of `named`: OUT, OUT:t01, OUT:r001, or the directory of a bundle.

    Raises BadInput for other names, and for a treatment without a valid run.
    """
    path, name = Path(named), str(named)
    if path.is_dir() and (path / "manifest.json").is_file():
        return Selection(name, "run", path, [path])
    if is_study(path):
        return Selection(name, "study", path, [b.path for b in bundles(path) if _valid(b)])
    part = _parted(path)
    if part is not None:
        return _part(name, *part)
    actual = "neither of them" if path.is_dir() else "a file" if path.exists() else "nothing"
    for verb, result_file in _OTHERS.items():
        if (path / result_file).is_file():
            actual = f"what `penstock {verb}` wrote"
    raise BadInput(f"{name}: found {actual}; {EXPECTED}")


def is_study(path: Path) -> bool:
    """True for a directory with results of a study."""
    if not path.is_dir() or (path / "manifest.json").is_file():
        return False
    return any((path / name).exists() for name in _OF_STUDY)


def names_runs(named: Path | str) -> bool:
    """True for a directory, or a treatment or run of a study's results."""
    return Path(named).is_dir() or _parted(Path(named)) is not None


def _parted(named: Path) -> tuple[Path, str] | None:
    """OUT and the part after its colon."""
    out, colon, part = str(named).rpartition(":")
    return (Path(out), part) if colon and is_study(Path(out)) and not named.exists() else None


def _part(name: str, out: Path, part: str) -> Selection:
    run = out / "runs" / part
    if part and Path(part).name == part and (run / "manifest.json").is_file():
        return Selection(name, "run", run, [run])
    completed = bundles(out)
    treated = [b for b in completed if b.manifest.get("treatment_id") == part]
    if not treated:
        treatments = sorted({str(b.manifest.get("treatment_id") or "") for b in completed} - {""})
        expected = f"{', '.join(treatments)}, or a run" if treatments else "a study with runs"
        raise BadInput(f"{name}: found no treatment or run {part!r}; expected {expected}")
    valid = [b.path for b in treated if _valid(b)]
    if not valid:
        first = treated[0].manifest
        reason = str(first.get("reason") or first.get("state") or "").split(";")[0]
        raise BadInput(
            f"{name}: found {_counted(len(treated))}, none valid ({first['run_id']}: {reason}); "
            f"expected a valid one; {out}:{first['run_id']} names that one all the same"
        )
    return Selection(name, "treatment", out, valid)


def _valid(bundle: Bundle) -> bool:
    return bool(bundle.manifest.get("valid", True))


def _counted(runs: int) -> str:
    return f"{runs} run{'' if runs == 1 else 's'}"
