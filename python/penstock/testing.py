"""Conformance checks for rows that other packages add to the tables of `penstock.plugins`.

A check uses a row as penstock does, and raises AssertionError if the row violates its protocol. Call it in
the tests of your package. The rows of penstock pass them, too:

    from penstock import testing
    testing.check_parser(my_parser, stdout="ops 12\\n", gives={"ops"})
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import Bundle
from penstock.archive.packing import ArchiveFormat
from penstock.archive.selection import Selection
from penstock.archive.series.series import Recorded as RecordedSeries
from penstock.archive.traces.trace_tables import TraceTables
from penstock.campaign.analysis import analyse
from penstock.design.claims import check
from penstock.design.kinds.base import Asked
from penstock.emulate.backends.base import Backend, Owner, Place
from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.emulate.cluster.cluster import Cluster
from penstock.emulate.disks.recorded import Recorded
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.journal.journal import Journal
from penstock.host.storage.mounts import mounts_at
from penstock.observe.observer import Observer, Watched, followed
from penstock.observe.trace.recordings.bundle import write_recording
from penstock.observe.trace.recordings.importers import Importer
from penstock.observe.trace.recordings.recording import Recording
from penstock.platform.foreign import Foreign
from penstock.plugins import CHECKS, NODE_RUNTIMES
from penstock.report import render, style
from penstock.report.figures.chart import Chart
from penstock.report.figures.layers import Layout
from penstock.spec.cluster import ClusterSpec, DiskSpec, NodeSpec
from penstock.spec.study import Factor, Level
from penstock.spec.units import convert
from penstock.workload.measured import JobSpec, Measured, ParserModule
from penstock.workload.metrics import COLUMNS, HEAD_BYTES

#: files that no parser may accept as its report
_NOT_A_REPORT = ("", "\0\xff\n", "{", "nan inf -1 1e999\n" * 3)


def check_parser(
    parser: ParserModule | ModuleType,
    *,
    stdout: str = "",
    stderr: str = "",
    run_dir: Path | None = None,
    gives: Collection[str] = (),
) -> dict[str, Measured]:
    """Check a parser on a program's output; `gives` are required responses. Returns all responses."""
    assert parser.RESPONSES, "RESPONSES is empty"
    for unit in parser.RESPONSES.values():
        convert(1.0, unit, unit)
    with tempfile.TemporaryDirectory() as scratch:
        directory = run_dir or Path(scratch)
        parsed: dict[str, Measured] = parser.parse(directory, stdout, stderr, 1.0)
        for name, measured in parsed.items():
            if name == "wall_s":  # common to all parsers
                continue
            assert name in parser.RESPONSES, f"{name} is not in RESPONSES"
            convert(measured.value, measured.unit, parser.RESPONSES[name])
        assert set(gives) <= set(parsed), (
            f"not found: {', '.join(sorted(set(gives) - set(parsed)))}"
        )
        for text in _NOT_A_REPORT:
            try:
                parser.parse(Path(scratch), text, text, 1.0)
            except PenstockError:
                continue
            assert not gives, f"{text[:20]!r} is no report of it; a PenstockError was expected"
    jobs = parser.operations("a-program --with 'some words'")
    assert jobs is None or all(isinstance(job, JobSpec) for job in jobs)
    return parsed


def check_design(kind: Any, options: Mapping[str, Any] | None = None) -> None:
    """Check a kind of design on factors of two, three and mixed levels: it refuses with a reason, or returns
    valid levels, reproducible by seed, with the properties it claims."""
    assert kind.WHAT, "WHAT: expected a description"
    assert set(options or {}) <= set(kind.OPTIONS), "OPTIONS: expected all options"
    level_counts = [[2], [2] * 3, [2] * 11, [3, 2], [3] * 4, [4, 3, 2, 2]]
    factors = [
        tuple(_factor(index, n) for index, n in enumerate(counts)) for counts in level_counts
    ]
    requests = [Asked(each, dict(options or {}), 7) for each in factors]
    possible = [request for request in requests if not kind.fault(request)]
    assert possible, f"it refuses all factors: {kind.fault(requests[0])}"
    for request in possible:
        levels = request.levels
        matrix = np.asarray(kind.treatments(request))
        assert matrix.ndim == 2, f"a matrix of {matrix.ndim} dimensions"
        assert matrix.shape[1] == len(levels), f"{matrix.shape[1]} columns of {len(levels)} factors"
        assert len(matrix), "no treatments"
        assert len(np.unique(matrix, axis=0)) == len(matrix), "a treatment occurs twice"
        for index, count in enumerate(levels):
            used = {int(v) for v in matrix[:, index]}
            assert used <= set(range(count)), f"levels {used} of a factor with {count}"
            assert len(used) > 1, f"factor {index} has one level only"
        again = np.asarray(kind.treatments(request))
        assert np.array_equal(matrix, again), "another matrix from the same seed"
        check(request, matrix, kind.claim(request))


def _factor(index: int, levels: int) -> Factor:
    return Factor(
        name=f"f{index}", levels=tuple(Level(name=str(n), value=n) for n in range(levels))
    )


def check_metric_reader(reader: Any, path: Path) -> None:
    """Check a reader of metrics: it accepts this file, returns samples in UTC, and refuses other files."""
    assert str(reader.WHAT), "WHAT: expected a description, for files that no reader accepts"
    assert reader.matches(path, path.read_bytes()[:HEAD_BYTES]), f"{path}: not accepted"
    metrics = reader.read(path, {})
    assert list(metrics.samples.columns) == list(COLUMNS), f"samples: found {list(metrics.samples)}"
    assert len(metrics.samples) or metrics.tables, "found neither samples nor tables"
    assert metrics.samples["utc_ns"].is_monotonic_increasing, (
        "samples: expected them in order of time"
    )
    for text in _NOT_A_REPORT:
        with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
            other = Path(folder) / "other"
            other.write_text(text)
            assert not reader.matches(other, text.encode()), f"it accepts {text!r}"
            with contextlib.suppress(PenstockError):
                reader.read(other, {})


def check_archive_format(form: ArchiveFormat, selection: Selection, ending: str) -> None:
    """Check that a format returns the runs that it packs, and refuses other files with its ending."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, f"runs.{ending}")
        packed = form.pack(selection, target)
        assert packed.size_bytes == target.stat().st_size, f"{packed.size_bytes} bytes"
        assert form.is_packed(target), f"{target.name} is not recognised"
        place = form.unpack(target, Path(scratch, "runs"))
        manifests = {path.read_bytes() for path in place.rglob("manifest.json")}
        assert manifests == {(run / "manifest.json").read_bytes() for run in selection.runs}
        for text in _NOT_A_REPORT:
            target.write_text(text)
            other = Path(scratch, "other")
            try:
                form.unpack(target, other)
            except PenstockError:
                assert not other.exists(), f"{text[:20]!r} leaves a directory behind"
                continue
            raise AssertionError(f"{text[:20]!r} is unpacked; a PenstockError was expected")


def check_platform_format(read: Callable[[Path, bytes], Foreign], path: Path) -> Foreign:
    """Check that a format of platforms reads this file, and that it refuses other texts."""
    foreign = read(path, path.read_bytes())
    foreign.platform(path.parent)
    for text in _NOT_A_REPORT:
        try:
            read(path, text.encode())
        except PenstockError:
            continue
        raise AssertionError(f"{text[:20]!r} is read as a platform; a PenstockError was expected")
    return foreign


def check_figure(kind: Any, recorded: RecordedSeries) -> None:
    """Check a kind of figures: it draws these series reproducibly, labels its axes and has a description."""
    assert str(kind.WHAT), "WHAT: expected a line of help"
    assert set(kind.AXES) <= {"time", "index", "value"}, f"AXES: found {kind.AXES}"
    images = []
    for _ in range(2):
        with style.look():
            fig = style.figure(7.0, 2.5)
            kind.draw(Layout(fig, 7.0, 2.5, 8.5), Chart("checked", axis=recorded.axis), recorded)
            images.append(render.published(style.settled(fig), "svg"))
    assert images[0] == images[1], "the same series gave different images"
    labels = [text for axes in fig.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    assert any(labels), "no axis has a label"


def check_response_kind(kind: Any, expression: str, text: str, number: float) -> None:
    """Check a kind of response: it extracts the number from the text, and refuses texts without one."""
    assert kind.WHAT, "WHAT: expected a description"
    assert not kind.expected(expression), f"{expression!r}: {kind.expected(expression)}"
    assert kind.number(expression, text, "stdout") == number
    for other in _NOT_A_REPORT:
        try:
            value = kind.number(expression, other, "stdout")
        except PenstockError:
            continue
        raise AssertionError(f"{value} was found in {other[:20]!r}; a PenstockError was expected")


def check_importer(importer: Importer, files: Sequence[Path], events: int) -> Recording:
    """Check an importer on the files of one trace: it accepts only them, and reads all their events."""
    assert importer.what, "what: expected a description"
    assert any(importer.matches(path.read_bytes()[: 1 << 16]) for path in files), "not recognised"
    for text in _NOT_A_REPORT:
        assert not importer.matches(text.encode()), f"{text[:20]!r} is recognised as its trace"
    with tempfile.TemporaryDirectory() as scratch:
        assert importer.parts(Path(scratch) / "nothing") == [], "a missing trace has files"
        recording = importer.read(files, Path(scratch))
        summary = write_recording(None, recording)
        assert summary.events == recording.counts["kept"] == events, f"{summary.events} events"
        numbers = {row["file_id"] for row in recording.files}
        assert {row["file_id"] for row in summary.verdicts} <= numbers, "a file without a name"
        assert recording.basis in ("calls", "device"), recording.basis
        assert {"format", "not_known"} <= recording.source.keys(), "`source` lacks keys"
        damaged = Path(scratch) / "damaged"
        damaged.write_bytes(files[0].read_bytes()[:40] + b"\0\xff not of this format")
        try:
            partial = importer.read([damaged], Path(scratch))
        except PenstockError:
            return recording
        assert partial.counts["kept"] < events, "all events were read from a damaged trace"
    return recording


def check_exporter(export: Any, bundle: Path) -> dict[str, Any]:
    """Check an exporter on a bundle of `penstock trace --mode trace -o`: it writes the files it returns, and
    all events."""
    rows = TraceTables(bundle)
    with tempfile.TemporaryDirectory() as scratch:
        written: dict[str, Any] = export(rows, Path(scratch) / "out", 1 << 30)
        assert written["files"], "no file was written"
        for name in written["files"]:
            path = Path(name)
            assert path.is_relative_to(scratch), f"{path} is outside the output directory"
            assert path.is_file(), f"{path} is missing"
    events = sum(len(batch["t_ns"]) for batch in TraceTables(bundle).event_batches())
    reported = written["events"] + sum(written.get("skipped", {}).values())
    assert reported == events, f"{reported} of {events} events written or reported as skipped"
    return written


def check_study_finding(rule: Any, outs: Sequence[Path]) -> list[Finding]:
    """Check a finding of studies on their OUT directories, as `check_finding`."""
    return _checked([f for out in outs for f in rule(Outcome.read(out))])


def check_analysis_step(step: Any, out: Path) -> None:
    """Check a step of an analysis on an OUT directory: it writes tables and removes none."""
    before = {path.name for path in out.glob("*.parquet")}
    analysis = analyse(out, full=False)
    step(analysis)
    after = {path.name for path in out.glob("*.parquet")}
    assert before <= after, f"removed {', '.join(sorted(before - after))}"
    for name in after - before:
        assert pq.read_table(out / name).num_columns, f"{name} has no column"


def check_finding(rule: Any, bundles: Sequence[Path]) -> list[Finding]:
    """Check a finding of traces on bundles: it returns sentences with code, severity and evidence."""
    return _checked([f for bundle in bundles for f in rule(TracedRun(bundle))])


def _checked(findings: list[Finding]) -> list[Finding]:
    for finding in findings:
        assert finding.severity in ("info", "warning", "error"), finding.severity
        assert finding.code == finding.code.lower(), finding.code
        assert finding.statement.endswith("."), finding.statement
        assert isinstance(finding.evidence, dict), "evidence is a dictionary"
    return findings


def check_observer(make: Any, settings: Mapping[str, Any], group: RunCgroup | None = None) -> None:
    """Check an observer around two runs, the second without a program: Parquet tables, and a receipt."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        journal = Journal(folder / "journal.jsonl")
        observer: Observer = make(journal, folder, settings)
        try:
            for n, run in enumerate(((1, 2), None)):
                bundle = Bundle.create(folder / f"r{n}", {"run_id": f"r{n}"})
                observer.start(Watched(group, group), bundle.path)
                json.dumps(followed(observer))  # a live source, if any, is JSON values
                observation = observer.finish(bundle, run)
                for name, table in observation.tables.items():
                    assert isinstance(table, pa.Table), f"{name} is no table"
                    pq.write_table(table, folder / f"{n}-{name}.parquet")
                assert isinstance(observation.receipt, dict), "the receipt is no dictionary"
                assert observation.lost >= 0
        finally:
            observer.stop()
        assert not journal.open_entries(), "changes to the host were not undone"


def check_backend(make: type[Backend], disk: DiskSpec | None = None) -> None:
    """Check a back end with one disk: written data persist, and the host is restored. Needs root."""
    disk = disk or DiskSpec("d")
    assert not make.missing(), make.missing()
    assert not make.refusal(disk), make.refusal(disk)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        base = Path(scratch)
        for part in ("mount", "files", "home"):
            (base / part).mkdir()
        journal = Journal(base / "journal.jsonl")
        backend = make(Owner(journal, base / "home"))
        try:
            up = backend.up(disk, Place("n1.d", base / "mount", base / "files"))
            assert up.backend == make.name
            assert up.mount == base / "mount"
            up.begin(base / "home")
            (up.mount / "file").write_bytes(b"penstock")
            assert (up.mount / "file").read_bytes() == b"penstock"
            assert {"read_bytes", "written_bytes", "reads", "writes"} <= set(up.stats(closing=True))
            stats, tables = up.stats(closing=True), up.end()
            for name, table in tables.items():
                assert isinstance(table, pa.Table), f"{name} is no table"
            certificate = make.certificate(
                Recorded(
                    "n1.d",
                    make.name,
                    stats,
                    tables,
                    up.facts(),
                    profile=disk.profile or INSTANT_PROFILE,
                ),
                None,
                None,
            )
            assert certificate is None or certificate.overall.num_rows, "the certificate is empty"
            before = up.read_back()
            try:
                up.patch({"no-such-feature": 1})
            except PenstockError:
                pass
            else:
                raise AssertionError("it accepted a patch of an unknown feature")
            assert up.read_back() == before, "a refused patch changed something"
            up.down()
        finally:
            backend.stop()
        assert not mounts_at(base / "mount"), "it is still mounted"
        assert not journal.open_entries(), "changes to the host were not undone"


def check_runtime(name: str) -> None:
    """Check a runtime, by its name in the table, with two nodes: each has its own name, processes and files,
    can be restarted, and leaves nothing on the host. Needs root."""
    runtime = NODE_RUNTIMES.load(name)
    assert not runtime.missing(), runtime.missing()
    journal = Journal()
    before = {entry.token for entry in journal.open_entries()}
    spec = ClusterSpec(f"check-{os.getpid()}", (NodeSpec("one"), NodeSpec("two")), runtime=name)
    cluster = Cluster.up(spec, journal, outlive=False)
    try:
        assert cluster.described["runtime"] == name
        assert _output_of(cluster, "one", "hostname; touch /only-one") == "one\n"
        visible = _output_of(cluster, "two", "ls -d /only-one /proc/[0-9]*").split()
        assert "/only-one" not in visible, "the nodes share a root"
        assert len(visible) < 10, "it sees processes of others"
        for state in ("down", "up"):
            cluster.set(["one"], "node", None, {"state": state})
        cluster.refresh()
        assert _output_of(cluster, "one", "hostname") == "one\n", "it did not restart"
    finally:
        cluster.down()
    remaining = [entry for entry in journal.open_entries() if entry.token not in before]
    assert not remaining, f"changes to the host were not undone: {remaining}"


def _output_of(cluster: Cluster, node: str, command: str) -> str:
    """Output of a shell command in a node."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        cluster.exec(node, ["/bin/sh", "-c", command], stdout=out)
        return out.read_text()


def __getattr__(name: str) -> Any:
    """Checks of parts."""
    return CHECKS.attribute(__name__, name)
