"""Old archives judged again by the rules of today, their bundles left as they are.

tests/golden/access-patterns-archive is an archive of the demonstration by version 1 of the rules, on a host
that others used as well, cut: logs of two runs, the certificate of a third, the manifests of all.
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


def test_an_old_archive_is_judged_again_and_says_what_changed(archive: Path):
    before = contents(archive / "runs")
    result = analyse(archive, full=False)
    assert contents(archive / "runs") == before
    words = "\n".join(result.notes)
    assert "r006 keeps its verdict: its bundle has no device_requests" in words
    assert f"2 runs were evaluated again by the current rules (version {RULES}), 1 with" in words
    assert (
        "r003: node1.data was host-saturated and is not-honoured (p99_read is +24.4 % off" in words
    )
    assert "no record of the host was stored" in words
    verdicts = pq.read_table(archive / "fidelity.parquet").to_pandas()
    assert {
        run: set(mine["verdict"]) for run, mine in verdicts.groupby(verdicts["run_id"].astype(str))
    } == {"r002": {"honoured"}, "r003": {"not-honoured"}, "r006": {"host-saturated"}}
    runs = result.runs.set_index("run_id")
    assert runs.loc["r002", "valid"]
    assert not runs.loc["r003", "valid"]
    assert runs.loc["r003", "reason"].startswith("node1.data: p99_read is +24.4 % off")


def test_catalogue_and_windows_go_by_the_rules_of_today(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PENSTOCK_ARCHIVE", str(tmp_path / "index"))
    # r003 as a run that was valid by the rules of its time
    place = archive / "runs" / "r003" / "manifest.json"
    manifest = json.loads(place.read_text()) | {"valid": True, "reason": ""}
    place.write_text(json.dumps(manifest))
    told = pa.table({"disk_id": ["node1.data"], "direction": ["read"], "verdict": ["burst"]})
    Bundle.open(archive / "runs" / "r003").write_table("fidelity_windows", told)

    def verdict(catalogue: Catalogue) -> tuple[bool, str]:
        (row,) = (r for r in catalogue.runs(archive.resolve()) if r["run_id"] == "r003")
        return row["valid"], row["reason"][:20]

    now = (False, "node1.data: p99_read")
    with Catalogue(index_path()) as index, Catalogue(archive / "catalogue.sqlite") as own:
        for catalogue in (index, own):
            catalogue.adopt(archive.resolve())
            assert verdict(catalogue) == (True, "")
        analyse(archive, full=False)
        assert verdict(index) == verdict(own) == now
        index.rebuild([archive])
        assert verdict(index) == now
    outcome = Outcome.read(archive)
    windows = outcome.table("r003", "fidelity_windows")
    assert windows is not None
    assert {"t_ns", "delivered_bps"} <= set(windows)
    assert "burst" not in set(windows["verdict"].astype(str))
    assert (
        outcome.table("r006", "fidelity_windows") is None
    )  # not judged again: what its bundle says


def test_what_does_not_depend_on_the_rules_comes_out_as_it_was(archive: Path):
    for run_id in ("r002", "r003"):
        bundle = Bundle.open(archive / "runs" / run_id)
        found = rejudged_certificates(bundle).fidelity
        assert found is not None
        old = {row["metric"]: row for row in bundle.table("fidelity").to_pylist()}
        new = {row["metric"]: row for row in found.to_pylist()}
        assert set(new) == {*old, "overdue"}
        for metric, row in old.items():
            # the calibrated lateness is found again to a nanosecond or so
            assert new[metric]["delivered"] == pytest.approx(row["delivered"], rel=1e-6)
            assert (new[metric]["asked"] or 0) == pytest.approx(row["asked"] or 0, rel=1e-6)
        assert found["run_id"].to_pylist() == [run_id] * found.num_rows


def test_a_witness_in_the_bundle_is_heard(archive: Path):
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


def test_runs_of_today_s_rules_and_runs_without_certificates_are_left_alone(archive: Path):
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
    other = "the tracer lost 3 of 9 events"
    found = rejudged_certificates(
        Bundle(bundle.path, {**bundle.manifest, "valid": False, "reason": other})
    )
    assert found.rejudged
    assert (found.bundle.manifest["valid"], found.bundle.manifest["reason"]) == (False, other)


def on_a_node(bundle: Bundle, **kept: object) -> Bundle:
    """The bundle as a cluster's: of its disks the manifest says what the nodes' stage writes."""
    disks = {"node1.data": {"backend": "fuse", "reason": "", "facts": {}, **kept}}
    return Bundle(bundle.path, {**bundle.manifest, "disks": {}, "place": {"disks": disks}})


def test_a_disk_of_a_node_is_judged_again_by_what_it_was_put_up_with(archive: Path):
    bundle = Bundle.open(archive / "runs" / "r003")
    emulated = bundle.manifest["disks"]["node1.data"]["emulated"]
    as_kept = rejudged_certificates(on_a_node(bundle, emulated=emulated, changed_before=[]))
    assert as_kept.rejudged
    assert as_kept.fidelity == rejudged_certificates(bundle).fidelity
    # the same disk, had it been slowed down before the run
    slowed = [{"applied_ns": 1, "asked": {"slow": {"factor": 4}}, "error": ""}]
    other = rejudged_certificates(on_a_node(bundle, emulated=emulated, changed_before=slowed))
    assert other.fidelity is not None
    assert other.fidelity != as_kept.fidelity
    older = rejudged_certificates(on_a_node(bundle))
    assert older.unchanged == (
        "r003 keeps its verdict: the settings of node1.data are not in its bundle"
    )
