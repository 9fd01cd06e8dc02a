"""Old archives evaluated by the current rules, with their bundles unchanged.

tests/golden/access-patterns-archive is a reduced archive of the demonstration by version 1 of the
rules, on a shared host: logs of two runs, the certificate of a third, the manifests of all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.fidelity.fidelity import RULES
from penstock.analyse.outcome import Outcome
from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import Catalogue, index_path
from penstock.campaign.analysis import analyse
from penstock.campaign.evidence.rejudge import rejudged_certificates

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "access-patterns-archive", tmp_path / "out"))


def contents(runs: Path) -> dict[str, str]:
    return {
        str(path.relative_to(runs)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(runs.rglob("*"))
        if path.is_file()
    }


def test_an_old_archive_is_evaluated_again_with_notes(archive: Path):
    before = contents(archive / "runs")
    result = analyse(archive, full=False)
    assert contents(archive / "runs") == before
    notes = "\n".join(result.notes)
    assert "r006 keeps its verdict: its bundle has no device_requests" in notes
    assert f"2 runs were evaluated again by the current rules (version {RULES}), 1 with" in notes
    assert (
        "r003: node1.data was host-saturated and is not-honoured (p99_read is +24.4 % off" in notes
    )
    assert "no record of the host was stored" in notes
    verdicts = pq.read_table(archive / "fidelity.parquet").to_pandas()
    assert {
        run: set(rows["verdict"]) for run, rows in verdicts.groupby(verdicts["run_id"].astype(str))
    } == {"r002": {"honoured"}, "r003": {"not-honoured"}, "r006": {"host-saturated"}}
    runs = result.runs.set_index("run_id")
    assert runs.loc["r002", "valid"]
    assert not runs.loc["r003", "valid"]
    assert runs.loc["r003", "reason"].startswith("node1.data: p99_read is +24.4 % off")


def test_catalogue_and_windows_follow_the_current_rules(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PENSTOCK_ARCHIVE", str(tmp_path / "index"))
    # r003 as a run that was valid by the rules of its time
    path = archive / "runs" / "r003" / "manifest.json"
    manifest = json.loads(path.read_text()) | {"valid": True, "reason": ""}
    path.write_text(json.dumps(manifest))
    windows_then = pa.table(
        {"disk_id": ["node1.data"], "direction": ["read"], "verdict": ["burst"]}
    )
    Bundle.open(archive / "runs" / "r003").write_table("fidelity_windows", windows_then)

    def verdict(catalogue: Catalogue) -> tuple[bool, str]:
        (row,) = (r for r in catalogue.runs(archive.resolve()) if r["run_id"] == "r003")
        return row["valid"], row["reason"][:20]

    current = (False, "node1.data: p99_read")
    with Catalogue(index_path()) as index, Catalogue(archive / "catalogue.sqlite") as own:
        for catalogue in (index, own):
            catalogue.adopt(archive.resolve())
            assert verdict(catalogue) == (True, "")
        analyse(archive, full=False)
        assert verdict(index) == verdict(own) == current
        index.rebuild([archive])
        assert verdict(index) == current
    outcome = Outcome.read(archive)
    windows = outcome.table("r003", "fidelity_windows")
    assert windows is not None
    assert {"t_ns", "delivered_bps"} <= set(windows)
    assert "burst" not in set(windows["verdict"].astype(str))
    assert (
        outcome.table("r006", "fidelity_windows") is None
    )  # not evaluated again: as in its bundle


def test_values_that_do_not_depend_on_the_rules_are_unchanged(archive: Path):
    for run_id in ("r002", "r003"):
        bundle = Bundle.open(archive / "runs" / run_id)
        fidelity = rejudged_certificates(bundle).fidelity
        assert fidelity is not None
        old = {row["metric"]: row for row in bundle.table("fidelity").to_pylist()}
        new = {row["metric"]: row for row in fidelity.to_pylist()}
        assert set(new) == {*old, "overdue"}
        for metric, row in old.items():
            # recomputing the calibrated lateness agrees to about a nanosecond
            assert new[metric]["delivered"] == pytest.approx(row["delivered"], rel=1e-6)
            assert (new[metric]["asked"] or 0) == pytest.approx(row["asked"] or 0, rel=1e-6)
        assert fidelity["run_id"].to_pylist() == [run_id] * fidelity.num_rows


def test_host_waits_in_the_bundle_are_used(archive: Path):
    bundle = Bundle.open(archive / "runs" / "r003")
    log = bundle.table("device_requests").to_pandas()
    span = range(int(log["t_ns"].min()), int(log["done_ns"].max()) + 200_000_000, 100_000_000)
    rows = [
        {"disk_id": "node1.data", "t_ns": t_ns, "window_ns": 100_000_000, "waited_ns": 60_000_000,
         "stolen_ns": 0, "pressure_ns": 0, "overslept_ns": 0}
        for t_ns in span
    ]  # fmt: skip
    bundle.write_table("host_waits", pa.Table.from_pylist(rows))
    rejudged = rejudged_certificates(bundle)
    assert rejudged.fidelity is not None
    assert set(rejudged.fidelity["verdict"].to_pylist()) == {"host-saturated"}
    assert (rejudged.rejudged, rejudged.changed) == (True, "")


def test_current_and_uncertified_runs_are_unchanged(archive: Path):
    bundle = Bundle.open(archive / "runs" / "r003")
    table = bundle.table("fidelity")
    table = table.append_column("rules", pa.array([RULES] * table.num_rows, pa.int64()))
    bundle.write_table("fidelity", table)
    rejudged = rejudged_certificates(bundle)
    assert rejudged.bundle is bundle
    assert (rejudged.rejudged, rejudged.changed, rejudged.unchanged) == (False, "", "")
    plain = Bundle.open(GOLDEN / "postgres-archive" / "runs" / "r001")
    assert rejudged_certificates(plain).fidelity is None


def test_other_faults_of_a_run_remain(archive: Path):
    bundle = Bundle.open(archive / "runs" / "r002")
    fault = "the tracer lost 3 of 9 events"
    rejudged = rejudged_certificates(
        Bundle(bundle.path, {**bundle.manifest, "valid": False, "reason": fault})
    )
    assert rejudged.rejudged
    assert (rejudged.bundle.manifest["valid"], rejudged.bundle.manifest["reason"]) == (False, fault)


def on_a_node(bundle: Bundle, **stored: object) -> Bundle:
    """The bundle as of a cluster: the nodes' stage wrote the keys of its disks."""
    disks = {"node1.data": {"backend": "fuse", "reason": "", "facts": {}, **stored}}
    return Bundle(bundle.path, {**bundle.manifest, "disks": {}, "place": {"disks": disks}})


def test_a_disk_of_a_node_is_evaluated_with_its_settings(archive: Path):
    bundle = Bundle.open(archive / "runs" / "r003")
    emulated = bundle.manifest["disks"]["node1.data"]["emulated"]
    as_stored = rejudged_certificates(on_a_node(bundle, emulated=emulated, changed_before=[]))
    assert as_stored.rejudged
    assert as_stored.fidelity == rejudged_certificates(bundle).fidelity
    # the same disk, slowed down before the run
    slowed = [{"applied_ns": 1, "asked": {"slow": {"factor": 4}}, "error": ""}]
    with_change = rejudged_certificates(on_a_node(bundle, emulated=emulated, changed_before=slowed))
    assert with_change.fidelity is not None
    assert with_change.fidelity != as_stored.fidelity
    without_settings = rejudged_certificates(on_a_node(bundle))
    assert without_settings.unchanged == (
        "r003 keeps its verdict: the settings of node1.data are not in its bundle"
    )
