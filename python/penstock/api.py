"""Python interface: the functions of the command line, with tables as DataFrames.

    import penstock

    study = penstock.Study.load("disks.study.yaml")
    study.plan()                          # a row for each run
    campaign = study.run("out")           # or penstock.run("disks.study.yaml", "out")
    print(*campaign.answer, sep="\\n")
    campaign.effects, campaign.runs       # DataFrames; columns as in docs/formats.md

    penstock.Campaign("out").findings     # of a completed study
    penstock.trace(["sqlite3", "t.db", "vacuum"], "bundle").patterns
    penstock.predict_workflow("flow.json", "platform.yaml").makespan_s
    with penstock.experiment("x") as x: x.record("queue", 3)
    with penstock.Disk("hdd-7200", "files", "mnt", time_scale=2): ...

Errors are `penstock.errors.BadInput` for errors in a file or an argument, else PenstockError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from penstock.campaign.campaign import CampaignResult
    from penstock.design.planned import Plan
    from penstock.spec.study import Study as CheckedStudy

PathLike = str | Path


class Study:
    """A validated study file."""

    def __init__(self, checked: CheckedStudy, overrides: Sequence[str] = ()) -> None:
        #: the validated study: factors, design, platform, workload, responses
        self.checked = checked
        self._overrides = list(overrides)

    @classmethod
    def load(cls, path: PathLike, overrides: Sequence[str] = (), *, quick: bool = False) -> Study:
        """The study in `path`; `overrides` such as `design.replicates=3`, `quick` as `--quick`.

        Raises BadInput with file, line, actual and expected value.
        """
        from penstock.study.load import load_study

        return cls(load_study(Path(path), list(overrides), quick), overrides)

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.checked.name

    @property
    def question(self) -> str:
        """Question of the study."""
        return self.checked.question

    @cached_property
    def design(self) -> Plan:
        """Complete plan: aliases, power, cautions, estimated time."""
        from penstock.design.plan import make_plan

        return make_plan(self.checked)

    def plan(self) -> pd.DataFrame:
        """Runs in order: a row each, with a column for each factor."""
        import pandas as pd

        rows = []
        for run in self.design.rows:
            facts = {k: v for k, v in vars(run).items() if k not in ("levels", "coded")}
            rows.append(facts | run.levels)
        return pd.DataFrame(rows)

    def run(
        self,
        out: PathLike | None = None,
        *,
        resume: bool = False,
        quiet: bool = False,
        keep_going: bool = False,
    ) -> Campaign:
        """Run the remaining runs, analyse them and write the report, in `out` (`./NAME`).

        Needs root for emulated disks and observers. Raises BadInput for invalid requests, PenstockError if
        the host cannot run the study. `campaign.result` shows if the study was stopped.
        """
        from penstock.campaign.campaign import run_loaded

        result = run_loaded(
            self.checked,
            Path(out) if out is not None else None,
            resume=resume,
            overrides=self._overrides,
            quiet=quiet,
            keep_going=keep_going,
        )
        return Campaign(result.out, result)


def run(
    study: PathLike, out: PathLike | None = None, overrides: Sequence[str] = (), **options: Any
) -> Campaign:
    """Load a study and run it; `quick`, and the options of `Study.run`."""
    quick = bool(options.pop("quick", False))
    return Study.load(study, overrides, quick=quick).run(out, **options)


class Campaign:
    """Results of a study in its directory.

    Tables are DataFrames whose columns `docs/formats.md` describes; missing ones are empty. Raises BadInput
    for a directory without a study's results.
    """

    def __init__(self, out: PathLike, result: CampaignResult | None = None) -> None:
        from penstock.campaign.frozen import read_campaign

        self.out = Path(out)
        #: result of `run`; None if the campaign was opened
        self.result = result
        if read_campaign(self.out) is None:
            raise BadInput(
                f"{self.out}: found no campaign; expected the directory of `penstock run -o`"
            )

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run: levels, responses, validity and its reason."""
        return self._table("runs")

    @cached_property
    def means(self) -> pd.DataFrame:
        """Treatments ranked by each response, and means of levels, with intervals."""
        return self._table("means")

    @cached_property
    def effects(self) -> pd.DataFrame:
        """Effects of factors and their interactions on each response, with intervals."""
        return self._table("effects")

    @cached_property
    def fidelity(self) -> pd.DataFrame:
        """Delivered and specified rates and times of each emulated disk."""
        return self._table("fidelity")

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """Predictions of every treatment from the trace of another one."""
        return self._table("predictions")

    @cached_property
    def findings(self) -> pd.DataFrame:
        """Statements with code, severity, evidence and remedy."""
        return self._table("findings")

    @property
    def answer(self) -> list[str]:
        """The answer in sentences, the recommendation first."""
        from penstock.analyse.findings.answer import answer
        from penstock.analyse.outcome import Outcome

        conclusion = answer(Outcome.read(self.out))
        return [] if conclusion is None else conclusion.sentences

    @property
    def report(self) -> Path:
        """Path of the report."""
        return self.out / "report.html"

    def analyse(self) -> Campaign:
        """Recompute tables, answer and report from the runs' bundles; returns the campaign."""
        from penstock.campaign.analysis import analyse

        analyse(self.out)
        return Campaign(self.out)

    def trace(self, run_id: str) -> Trace:
        """Trace of a traced run."""
        return Trace(self.out / "runs" / run_id)

    def _table(self, name: str) -> pd.DataFrame:
        return _read(self.out / f"{name}.parquet")

    def __repr__(self) -> str:
        return f"Campaign({str(self.out)!r}, {len(self.runs)} runs)"


class Trace:
    """A traced run: the directory of `penstock trace -o`, or of a study's run."""

    def __init__(self, bundle: PathLike) -> None:
        from penstock.archive.bundle import Bundle

        self.path = Path(bundle)
        #: manifest of the run: command, host, receipts, times
        self.manifest: dict[str, Any] = Bundle.open(self.path).manifest

    @cached_property
    def files(self) -> pd.DataFrame:
        """Files that were used."""
        return _read(self.path / "files.parquet")

    @cached_property
    def patterns(self) -> pd.DataFrame:
        """Order of accesses to each file, by thread, and the time they took."""
        return _read(self.path / "patterns.parquet")

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every call, in mode `trace`: many rows."""
        return _read(self.path / "io_events.parquet")

    @property
    def closing(self) -> str:
        """Closing sentence of the trace: the operations that took most time."""
        return str(self.manifest.get("closing", ""))

    @cached_property
    def findings(self) -> pd.DataFrame:
        """Findings: cost, cause and advice."""
        from dataclasses import asdict

        import pandas as pd

        from penstock.analyse.traces.traced_run import TracedRun

        return pd.DataFrame([asdict(f) for f in TracedRun(self.path).findings])


def trace(
    command: Sequence[str],
    output: PathLike,
    *,
    mode: Literal["count", "pattern", "trace"] = "pattern",
    quiet: bool = False,
) -> Trace:
    """Run a command under the tracer; writes the bundle to `output`, a new path. Needs root.

    With `quiet` the command's stdout goes to stderr. Raises PenstockError if tracing is not possible.
    """
    from penstock.observe.trace import RING_BYTES
    from penstock.observe.trace.capture.session import Session, trace_command

    path = Path(output)
    if path.exists():
        raise BadInput(f"{path} exists already; expected a path that does not")
    session = Session(mode, RING_BYTES, 0, path, quiet, layers=mode == "trace")
    trace_command(list(command), session)
    return Trace(path)


class Disk:
    """An emulated disk as a context manager: files in `backing`, visible at `mount`. Needs FUSE.

    `profile` is the name of a built-in one, a file, or `none`; `changes` as of `penstock disk set`.
    """

    def __init__(self, profile: str, backing: PathLike, mount: PathLike, **options: Any) -> None:
        self.profile = profile
        self.backing = Path(backing)
        self.mount = Path(mount)
        self._options = options
        self.described: dict[str, Any] = {}

    def __enter__(self) -> Disk:
        from penstock.emulate.disks import persistent

        self.described = persistent.up(self.profile, self.backing, self.mount, **self._options)
        return self

    def __exit__(self, *_: object) -> None:
        from penstock.emulate.disks import persistent

        persistent.down(self.mount)

    def set(self, **patch: Any) -> dict[str, Any]:
        """Change the disk while it is in use."""
        from penstock.emulate.disks import persistent

        return persistent.change(self.mount, patch)

    def stats(self) -> dict[str, Any]:
        """Counters of the disk."""
        from penstock.emulate.disks import persistent

        (disk,) = persistent.status(self.mount)
        return dict(disk["stats"])


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path) if path.exists() else pd.DataFrame()


def __getattr__(name: str) -> Any:
    """Functions of parts."""
    from penstock.plugins import API

    return API.attribute(__name__, name)
