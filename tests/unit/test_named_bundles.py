"""Every verb that reads a trace or a run, on each kind of bundle and with each form of its name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.selection import select
from penstock.errors import BadInput
from penstock.observe.trace.recordings.importers import import_trace
from tests.examples.trace_page import START_NS, events, write_bundle
from tests.unit.test_trace_broken_bundles import no_waiting, run  # noqa: F401
from tests.unit.test_trace_import import blktrace

GOLDEN = Path(__file__).parents[1] / "golden"

#: treatment, replicate and validity of each run; r006 has no trace
PLANNED = {
    "r001": ("t01", 1, True),
    "r002": ("t02", 1, True),
    "r003": ("t01", 2, False),
    "r004": ("t02", 2, True),
    "r005": ("t01", 3, True),
    "r006": ("t03", 1, True),
    "r007": ("t04", 1, False),
}


def _as_run(bundle: Path, run_id: str, *, attempt: int = 1) -> None:
    """Add the conductor's entries to the tracer's manifest."""
    treatment, replicate, valid = PLANNED[run_id]
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest |= {
        "study_id": "example-12345678",
        "run_id": run_id,
        "treatment_id": treatment,
        "attempt": attempt,
        "command": "fio --name=a --filename={data}/f | cat",
        "run_order": int(run_id[1:]),
        "replicate": replicate,
        "levels": {"disk": "hdd-7200" if treatment == "t01" else "sata-ssd"},
        "valid": valid,
        "reason": "" if valid else "data: rate is -9 % off (limit 2 %); and more",
        "responses": {"rate": {"value": 100.0 * int(treatment[1:]) + replicate, "unit": "1/s"}},
        "times": {
            "start_realtime_ns": 1_700_000_000 * 10**9,
            "start_ns": START_NS,
            "end_ns": START_NS + 10**8,
            "wall_s": 0.1,
            "own_s": 0.708674878,
        },
    }
    path.write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a `penstock run -o` directory that these verbs read."""
    out = tmp_path_factory.mktemp("study") / "out"
    for number, run_id in enumerate(PLANNED):
        if run_id == "r006":
            Bundle.create(out / "runs" / run_id, {"run_id": run_id}).finish()
        else:
            write_bundle(out / "runs" / run_id, events(300, seed=number))
        _as_run(out / "runs" / run_id, run_id)
    shutil.copytree(out / "runs" / "r001", out / "runs" / "r001.attempt1")
    _as_run(out / "runs" / "r001.attempt1", "r001")
    _as_run(out / "runs" / "r001", "r001", attempt=2)
    (out / "plan.json").write_text(json.dumps({"rows": []}))
    return out


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles outside a study."""
    folder = tmp_path_factory.mktemp("others")
    bundles = {"traced": write_bundle(folder / "traced", events(300))}
    bundles["counted"] = write_bundle(folder / "counted", events(300))
    (bundles["counted"] / "io_events.parquet").unlink()
    (folder / "blk").mkdir()
    blktrace(folder / "blk", 200)
    import_trace([folder / "blk" / "sda.blktrace.0"], folder / "imported", "blktrace")
    bundles["imported"] = folder / "imported"
    return bundles


def verbs(bundle: object, out: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the verbs that read a bundle. Names begin with `calls` if a verb needs single calls."""
    yield "report", ("report", bundle)
    yield "analyse", ("analyse", bundle)
    yield "compare", ("compare", bundle, bundle)
    yield "serve", ("serve", bundle, "--port", "0", "--cache", out)
    yield "calls: plot in the terminal", ("plot", bundle, "offsets")
    yield "calls: plot", ("plot", bundle, "offsets-time", "-o", out / "figure.svg")
    yield "calls: plot beside", ("plot", bundle, "clock", "--beside", bundle, "-o", out / "b.svg")
    for form in ("json", "jsonl", "perfetto", "paraver", "fio"):
        yield f"calls: export {form}", ("export", bundle, form, "-o", out / form)
    yield "calls: workload trace", ("workload", "trace", bundle, "-o", out / "workload.yaml")
    yield "calls: workload show", ("workload", "show", bundle)
    yield (
        "calls: workload convert",
        ("workload", "convert", bundle, "-o", out / "w.json", "--to", "wfformat"),
    )


def outcomes(bundle: object, out: Path) -> dict[str, tuple[int | str, str]]:
    """Status and stderr of each verb."""
    out.mkdir(exist_ok=True)
    return {verb: run(*argv) for verb, argv in verbs(bundle, out)}


def refused(results: dict[str, tuple[int | str, str]]) -> dict[str, str]:
    """Message of each verb that failed."""
    for verb, (status, message) in results.items():
        assert status == 0 or (status, message.count("\n")) == (2, 1), (verb, status, message)
    return {verb: message for verb, (status, message) in results.items() if status}


@pytest.mark.parametrize("name", ["/runs/r001", ":t01", ":r001.attempt1"])
def test_every_verb_accepts_runs_and_treatments_of_a_study(
    study: Path, tmp_path: Path, name: str
) -> None:
    assert refused(outcomes(f"{study}{name}", tmp_path / "made")) == {}


def test_every_verb_accepts_a_trace(others: dict[str, Path], tmp_path: Path) -> None:
    assert refused(outcomes(others["traced"], tmp_path / "made")) == {}


def test_verbs_of_single_calls_name_the_missing_trace_mode(
    others: dict[str, Path], tmp_path: Path
) -> None:
    messages = refused(outcomes(others["counted"], tmp_path / "made"))
    assert set(messages) == {verb for verb, _ in verbs("", tmp_path) if verb.startswith("calls")}
    assert all("--mode trace" in message for message in messages.values()), messages


def test_every_verb_accepts_an_imported_trace(others: dict[str, Path], tmp_path: Path) -> None:
    assert refused(outcomes(others["imported"], tmp_path / "made")) == {}


def test_treatment_selects_its_valid_replicates(study: Path) -> None:
    selection = select(f"{study}:t01")
    assert [path.name for path in selection.runs] == ["r001", "r005"]
    assert selection.one == study / "runs" / "r001"
    # a run that is named itself is selected although it is invalid
    assert select(f"{study}:r003").one == study / "runs" / "r003"


def test_existing_directory_precedes_a_name_after_a_colon(study: Path, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "a:t01", events(50))
    assert select(bundle).runs == [bundle]
    inside = shutil.copytree(study, tmp_path / "with:colon")
    assert select(f"{inside}:t02").one == inside / "runs" / "r002"


BAD_NAMES: dict[str, tuple[str, ...]] = {
    ":t09": ("found no treatment or run 't09'", "expected t01, t02, t03, t04, or a run"),
    ":": ("found no treatment or run ''",),
    ":../runs/r001": ("found no treatment or run",),
    ":t03": ("found 1 run, none of them traced", "observers"),
    ":t04": ("found 1 run, none valid (r007: data: rate is -9 % off (limit 2 %))", ":r007 names"),
    ":r006": ("files.parquet: found no such file (the run was not traced)",),
    "/runs/r099": ("found nothing", "OUT:t01"),
    "/plan.json": ("found a file", "OUT:t01"),
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_give_one_line(study: Path, tmp_path: Path, name: str) -> None:
    for verb, (status, message) in outcomes(f"{study}{name}", tmp_path / "made").items():
        if verb == "compare" and name in (":t03", ":r006"):
            continue  # compare needs only responses, not a trace
        assert (status, message.count("\n")) == (2, 1), (verb, status, message)
        if "workload show" in verb or "workload convert" in verb:
            continue  # these also accept files and have other messages
        assert all(phrase in message for phrase in BAD_NAMES[name]), (verb, message)


@pytest.mark.long
def test_verbs_of_one_trace_need_a_run_of_a_study(study: Path, tmp_path: Path) -> None:
    results = outcomes(study, tmp_path / "made")
    for verb in ("calls: export json", "calls: workload trace"):
        status, message = results[verb]
        assert (status, message.count("\n")) == (2, 1), (verb, message)
        assert f"expected one of them: {study}:r001 or {study}:t01" in message
    with pytest.raises(BadInput, match="found a study's results, of 5 runs"):
        _ = select(study).one


ARCHIVED = [
    (archive, path.name)
    for archive in ("access-patterns-archive", "postgres-archive", "postgres-later")
    for path in sorted((GOLDEN / archive / "runs").iterdir())
]


@pytest.mark.parametrize(("archive", "run_id"), ARCHIVED)
def test_runs_of_old_archives(tmp_path: Path, archive: str, run_id: str) -> None:
    """Archived runs without a trace, or with an old one, give a message of one line."""
    out = shutil.copytree(GOLDEN / archive, tmp_path / "out")
    traced = (out / "runs" / run_id / "files.parquet").is_file()
    expected = "expected 'op' among them" if traced else "the run was not traced"
    messages = refused(outcomes(f"{out}:{run_id}", tmp_path / "made"))
    messages = {v: text for v, text in messages.items() if not v.startswith("calls: workload")}
    assert messages
    for verb, message in messages.items():
        assert expected in message, (verb, message)
        assert traced or verb != "compare"  # compare needs only responses


def test_bad_times_of_a_manifest(study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(study / "runs" / "r001", tmp_path / "r001")
    manifest: dict[str, Any] = json.loads((copy / "manifest.json").read_text())
    for name, value, unit in (("start_ns", 0.5, "ns"), ("wall_s", "0.1 s", "seconds")):
        changed = manifest | {"times": manifest["times"] | {name: value}}
        (copy / "manifest.json").write_text(json.dumps(changed))
        status, message = run("report", copy)
        assert (
            status,
            f"found times.{name} {value!r}; expected a number of {unit}" in message,
        ) == (
            2,
            True,
        )
