"""penstock from Python: what the command line does, with tables as DataFrames.

    import penstock

    study = penstock.Study.load("disks.study.yaml")
    study.plan()                          # a row for each run
    campaign = study.run("out")           # or penstock.run("disks.study.yaml", "out")
    print(*campaign.answer, sep="\\n")
    campaign.effects, campaign.runs       # DataFrames; columns as in docs/formats.md

    penstock.Campaign("out").findings     # of a study that was run before
    penstock.trace(["sqlite3", "t.db", "vacuum"], "bundle").patterns
    penstock.predict_workflow("flow.json", "platform.yaml").makespan_s
    with penstock.experiment("x") as x: x.record("queue", 3)
    with penstock.Disk("hdd-7200", "files", "mnt", time_scale=2): ...

Errors are `penstock.errors.BadInput` for what can be mended in a file or an argument, else PenstockError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import BadInput, PenstockError

if TYPE_CHECKING:
    import pandas as pd

    from penstock.campaign.campaign import CampaignResult
    from penstock.design.planned import Plan
    from penstock.parts.monitoring.outbox.buffered import Buffered
    from penstock.spec.study import Study as CheckedStudy

PathLike = str | Path


class Study:
    """A study file, checked."""

    def __init__(self, checked: CheckedStudy, overrides: Sequence[str] = ()) -> None:
        #: the checked study: factors, design, platform, workload, responses
        self.checked = checked
        self._overrides = list(overrides)

    @classmethod
    def load(cls, path: PathLike, overrides: Sequence[str] = (), *, quick: bool = False) -> Study:
        """The study in `path`; `overrides` such as `design.replicates=3`, `quick` as `--quick`.

        Raises BadInput with file, line, what was found and what was expected.
        """
        from penstock.study.load import load_study

        return cls(load_study(Path(path), list(overrides), quick), overrides)

    @property
    def name(self) -> str:
        """Its name."""
        return self.checked.name

    @property
    def question(self) -> str:
        """What it asks."""
        return self.checked.question

    @cached_property
    def design(self) -> Plan:
        """The plan with all that it knows: aliases, power, cautions, estimated time."""
        from penstock.design.plan import make_plan

        return make_plan(self.checked)

    def plan(self) -> pd.DataFrame:
        """The runs in their order: a row each, with a column for each factor."""
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
        """Makes the runs that are still to be made, then analysis and report, in `out` (`./NAME`).

        Needs root for emulated disks and observers. As `penstock run`: raises BadInput for what cannot be
        run, PenstockError where the host refuses; what was stopped says so in `campaign.result`.
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
    """Loads a study and runs it; `quick`, and the options of `Study.run`."""
    quick = bool(options.pop("quick", False))
    return Study.load(study, overrides, quick=quick).run(out, **options)


class Campaign:
    """A study that was run: what lies in its directory.

    Tables are DataFrames whose columns `docs/formats.md` describes; one that was not made is empty. Raises
    BadInput for a directory that holds no study's results.
    """

    def __init__(self, out: PathLike, result: CampaignResult | None = None) -> None:
        from penstock.campaign.frozen import read_campaign

        self.out = Path(out)
        #: what `run` came to; None of a campaign that was opened
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
        """What each emulated disk delivered beside what was asked."""
        return self._table("fidelity")

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """Every treatment as predicted from the trace of one."""
        return self._table("predictions")

    @cached_property
    def findings(self) -> pd.DataFrame:
        """Statements with code, severity, evidence and what to do."""
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
        """The page."""
        return self.out / "report.html"

    def analyse(self) -> Campaign:
        """Computes tables, answer and report anew from the runs' bundles; gives what it is then."""
        from penstock.campaign.analysis import analyse

        analyse(self.out)
        return Campaign(self.out)

    def trace(self, run_id: str) -> Trace:
        """The trace of a run that was traced."""
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
        #: what the run was: command, host, receipts, times
        self.manifest: dict[str, Any] = Bundle.open(self.path).manifest

    @cached_property
    def files(self) -> pd.DataFrame:
        """The files that were used."""
        return _read(self.path / "files.parquet")

    @cached_property
    def patterns(self) -> pd.DataFrame:
        """In which order each file was read and written, by whom, and what it took."""
        return _read(self.path / "patterns.parquet")

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every call, of mode `trace`: many rows."""
        return _read(self.path / "io_events.parquet")

    @property
    def closing(self) -> str:
        """Where the time of reads and writes went, and what to try."""
        return str(self.manifest.get("closing", ""))

    @cached_property
    def findings(self) -> pd.DataFrame:
        """What it costs, why, and what to try."""
        from dataclasses import asdict

        import pandas as pd

        from penstock.analyse.traces.traced_run import TracedRun

        return pd.DataFrame([asdict(f) for f in TracedRun(self.path).findings])


class Recording:
    """An experiment while it runs, as `experiment` gives it."""

    def __init__(self, door: Any, name: str, source: str, buffered: Buffered | None = None) -> None:
        self._door = door
        #: its name and repeat, `NAME#n`
        self.name = name
        self._source = source
        self._number = 0
        self._buffered = buffered

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase, as long as the block lasts; inside of another it is a part of that."""
        self._door.mark(self.name, "begin", name)
        try:
            yield
        finally:
            self._door.mark(self.name, "end", name)

    def note(self, text: str) -> None:
        """Notes some words with the time."""
        self._door.mark(self.name, "note", text)

    def record(
        self,
        metric: str,
        values: Any,
        utc_ns: Any = None,
        *,
        index: Any = None,
        labels: Mapping[str, str] | None = None,
        unit: str = "",
    ) -> None:
        """Keeps values of a metric: one now, or many with their times [ns since 1970 UTC].

        `index`: their places in a sequence, from 0, instead of times or beside them. It is on the disk when
        this returns, where the server is up; of an experiment with `every_s` it is only gathered.
        """
        import time

        import numpy as np

        from penstock.parts.monitoring.experiments.points import Batch, canonical_labels
        from penstock.parts.monitoring.outbox.buffered import Series, table_of

        # a copy: whose values are changed after this is the caller's affair
        many = np.atleast_1d(np.array(values))
        kinds = {"f": "float", "i": "integer", "u": "integer", "b": "boolean", "U": "text"}
        if many.dtype.kind not in kinds:
            raise BadInput(f"found values of {many.dtype}; expected numbers, texts or truth values")
        if many.dtype.kind == "u":
            if many.size and int(many.max()) >= 1 << 63:
                raise BadInput(f"found {many.max()}; expected whole numbers below 2^63")
            many = many.astype(np.int64)
        if utc_ns is None and index is None:
            utc_ns = time.time_ns()
        said = {"utc_ns": utc_ns, "index": index}
        places = {k: np.atleast_1d(np.array(v, np.int64)) for k, v in said.items() if v is not None}
        if {len(p) for p in places.values()} != {len(many)}:
            lengths = ", ".join(f"{len(p)} of {k}" for k, p in places.items())
            raise BadInput(f"found {len(many)} values and {lengths}; expected as many")
        kind = kinds[many.dtype.kind]
        series = Series(metric, canonical_labels(labels or {}), unit, kind, tuple(places))
        if self._buffered is not None:
            self._buffered.add(series, many, *places.values())
            return
        table = table_of(series, [(many, *places.values())])
        self._door.write(self.name, Batch(self._source, self._number, table))
        self._number += 1


@contextlib.contextmanager
def experiment(
    name: str,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    shared: bool = False,
    server: str | None = None,
    every_s: float | None = None,
) -> Iterator[Recording]:
    """An experiment, as long as the block lasts, or the next repeat of one of that name.

    It lies in this user's archive, or with `server` (`$PENSTOCK_SERVER`). Where that is down, or the archive
    cannot be used, stderr says so, and the block runs all the same. An exception makes it `aborted`, and
    goes on.

    `every_s`: what is recorded is gathered, and written every so many seconds (`math.inf`: not before the
    end) by a thread of its own, so that `record` waits for nobody; a server that is away meanwhile gets it
    when it is back, at the end for ten seconds. A kill loses what was gathered since. BadInput for 0 or less.
    """
    from functools import partial
    from secrets import token_hex

    from penstock.parts.monitoring.outbox.buffered import Buffered
    from penstock.parts.monitoring.outbox.client import Patient

    if every_s is not None and not every_s > 0:
        raise BadInput(f"found every_s {every_s:g}; expected more than 0")
    door = Patient.leniently(server)
    door.lenient = False  # what is wrong from here on is raised
    begun = door.start(name, params=dict(params or {}), tags=list(tags), shared=shared)
    source, buffered = f"python-{token_hex(4)}", None
    # where it could not be begun there is nothing to write to, whoever comes back
    store = door.door
    if every_s is not None and store is not None:
        buffered = Buffered(partial(store.write, begun), source, every_s)
    # a server that was away for a mark may be there again for the end
    ending = door if buffered is None or store is None else Patient(store)
    try:
        yield Recording(door, begun, source, buffered)
    except BaseException:
        if buffered is not None:
            with contextlib.suppress(PenstockError):
                buffered.close()
        ending.stop(begun, aborted=True)
        raise
    try:
        if buffered is not None:
            buffered.close()
    finally:
        ending.stop(begun)


def series(
    name: str,
    metric: str,
    *,
    phase: str | None = None,
    labels: Sequence[str] = (),
    axis: Literal["timestamp", "duration", "sample"] | None = None,
    partial: bool = False,
    server: str | None = None,
) -> pd.DataFrame:
    """A metric of an experiment: a column for each series, rows by time, or by number where it is a sequence.

    `labels` are those whose values name the columns. The experiment is of this user's archive, or with
    `server` (`$PENSTOCK_SERVER`) of that one. A warning PartialData names the series that are not complete,
    unless `partial` data will do. Raises BadInput for what there is not.
    """
    import io
    import warnings

    import pandas as pd

    from penstock.archive.series.incomplete import PartialData
    from penstock.parts.monitoring.outbox.client import opened

    said = {"metric": metric, "format": "parquet", "phase": phase, "type": axis}
    options: dict[str, Any] = {k: v for k, v in said.items() if v is not None}
    if labels:
        options["labels"] = list(labels)
    found = opened(server).get(name, options)
    if found.verdict.lines and not partial:
        warnings.warn("; ".join(found.verdict.lines), PartialData, stacklevel=2)
    content = b"".join(found.parts)
    frame = pd.read_parquet(io.BytesIO(content))
    return frame.set_index(str(frame.columns[0]))


def trace(
    command: Sequence[str],
    output: PathLike,
    *,
    mode: Literal["count", "pattern", "trace"] = "pattern",
    quiet: bool = False,
) -> Trace:
    """Runs a command under the tracer; the bundle is left at `output`, which is not there yet. Needs root.

    With `quiet` the command's stdout goes to stderr. Raises PenstockError where tracing is not possible.
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
    """An emulated disk for the length of a `with`: files in `backing`, seen at `mount`. Needs FUSE.

    `profile` is the name of a ready one, a file, or `none`; `changes` as of `penstock disk set`.
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
        """Changes it while it is used."""
        from penstock.emulate.disks import persistent

        return persistent.change(self.mount, patch)

    def stats(self) -> dict[str, Any]:
        """Its counters."""
        from penstock.emulate.disks import persistent

        (disk,) = persistent.status(self.mount)
        return dict(disk["stats"])


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path) if path.exists() else pd.DataFrame()


def __getattr__(name: str) -> Any:
    """A function that a part adds."""
    from penstock.plugins import API

    if name not in API.own:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return API.load(name)
