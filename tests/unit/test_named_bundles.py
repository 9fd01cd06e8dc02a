"""Every verb that takes a trace or a run, on every kind of bundle, however it is named."""

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

#: treatment, replicate and validity of each run; the last one is made without the tracer
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
    """What the conductor says in a manifest besides what the tracer says."""
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
    """The directory that `penstock run -o` leaves, as far as these verbs look at it."""
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
    """Bundles of no study."""
    folder = tmp_path_factory.mktemp("others")
    made = {"traced": write_bundle(folder / "traced", events(300))}
    made["counted"] = write_bundle(folder / "counted", events(300))
    (made["counted"] / "io_events.parquet").unlink()
    (folder / "blk").mkdir()
    blktrace(folder / "blk", 200)
    import_trace([folder / "blk" / "sda.blktrace.0"], folder / "imported", "blktrace")
    made["imported"] = folder / "imported"
    return made


def verbs(named: object, out: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Each verb that reads a bundle; those that need the single calls begin with `calls`."""
    yield "report", ("report", named)
    yield "analyse", ("analyse", named)
    yield "compare", ("compare", named, named)
    yield "serve", ("serve", named, "--port", "0", "--cache", out)
    yield "calls: plot in the terminal", ("plot", named, "offsets")
    yield "calls: plot", ("plot", named, "offsets-time", "-o", out / "figure.svg")
    yield "calls: plot beside", ("plot", named, "clock", "--beside", named, "-o", out / "b.svg")
    for form in ("json", "jsonl", "perfetto", "paraver", "fio"):
        yield f"calls: export {form}", ("export", named, form, "-o", out / form)
    yield "calls: workload trace", ("workload", "trace", named, "-o", out / "workload.yaml")
    yield "calls: workload show", ("workload", "show", named)
    yield (
        "calls: workload convert",
        ("workload", "convert", named, "-o", out / "w.json", "--to", "wfformat"),
    )


def outcomes(named: object, out: Path) -> dict[str, tuple[int | str, str]]:
    """Status and stderr of each verb."""
    out.mkdir(exist_ok=True)
    return {verb: run(*words) for verb, words in verbs(named, out)}


def refused(found: dict[str, tuple[int | str, str]]) -> dict[str, str]:
    """Verbs that refused, and in which line."""
    for verb, (status, said) in found.items():
        assert status == 0 or (status, said.count("\n")) == (2, 1), (verb, status, said)
    return {verb: said for verb, (status, said) in found.items() if status}


@pytest.mark.parametrize("name", ["/runs/r001", ":t01", ":r001.attempt1"])
def test_every_verb_takes_runs_and_treatments_of_a_study(
    study: Path, tmp_path: Path, name: str
) -> None:
    assert refused(outcomes(f"{study}{name}", tmp_path / "made")) == {}


def test_every_verb_takes_a_trace(others: dict[str, Path], tmp_path: Path) -> None:
    assert refused(outcomes(others["traced"], tmp_path / "made")) == {}


def test_verbs_that_need_the_calls_say_so_where_they_were_only_counted(
    others: dict[str, Path], tmp_path: Path
) -> None:
    found = refused(outcomes(others["counted"], tmp_path / "made"))
    assert set(found) == {verb for verb, _ in verbs("", tmp_path) if verb.startswith("calls")}
    assert all("--mode trace" in said for said in found.values()), found


def test_every_verb_takes_what_another_tool_traced(others: dict[str, Path], tmp_path: Path) -> None:
    assert refused(outcomes(others["imported"], tmp_path / "made")) == {}


def test_a_treatment_is_its_valid_replicates(study: Path) -> None:
    named = select(f"{study}:t01")
    assert [path.name for path in named.runs] == ["r001", "r005"]
    assert named.one == study / "runs" / "r001"
    # planted: a run that is named itself is taken though it is not valid
    assert select(f"{study}:r003").one == study / "runs" / "r003"


def test_a_directory_goes_before_what_stands_behind_a_colon(study: Path, tmp_path: Path) -> None:
    odd = write_bundle(tmp_path / "a:t01", events(50))
    assert select(odd).runs == [odd]
    inside = shutil.copytree(study, tmp_path / "with:colon")
    assert select(f"{inside}:t02").one == inside / "runs" / "r002"


NAMED_WRONG: dict[str, tuple[str, ...]] = {
    ":t09": ("found no treatment or run 't09'", "expected t01, t02, t03, t04, or a run"),
    ":": ("found no treatment or run ''",),
    ":../runs/r001": ("found no treatment or run",),
    ":t03": ("found 1 run, none of them traced", "observers"),
    ":t04": ("found 1 run, none valid (r007: data: rate is -9 % off (limit 2 %))", ":r007 names"),
    ":r006": ("files.parquet: found no such file (the run was not traced)",),
    "/runs/r099": ("found nothing", "OUT:t01"),
    "/plan.json": ("found a file", "OUT:t01"),
}


@pytest.mark.parametrize("name", NAMED_WRONG)
def test_what_is_named_wrongly_is_told_in_one_line(study: Path, tmp_path: Path, name: str) -> None:
    for verb, (status, said) in outcomes(f"{study}{name}", tmp_path / "made").items():
        if verb == "compare" and name in (":t03", ":r006"):
            continue  # not traced: their responses are compared
        assert (status, said.count("\n")) == (2, 1), (verb, status, said)
        if "workload show" in verb or "workload convert" in verb:
            continue  # these also take files, and say what they expect of them
        assert all(words in said for words in NAMED_WRONG[name]), (verb, said)


@pytest.mark.long
def test_verbs_for_one_trace_ask_which_of_a_study(study: Path, tmp_path: Path) -> None:
    found = outcomes(study, tmp_path / "made")
    for verb in ("calls: export json", "calls: workload trace"):
        status, said = found[verb]
        assert (status, said.count("\n")) == (2, 1), (verb, said)
        assert f"expected one of them: {study}:r001 or {study}:t01" in said
    with pytest.raises(BadInput, match="found a study's results, of 5 runs"):
        _ = select(study).one


ARCHIVED = [
    (archive, path.name)
    for archive in ("access-patterns-archive", "postgres-archive", "postgres-later")
    for path in sorted((GOLDEN / archive / "runs").iterdir())
]


@pytest.mark.parametrize(("archive", "run_id"), ARCHIVED)
def test_runs_of_old_archives(tmp_path: Path, archive: str, run_id: str) -> None:
    """They were not traced, or kept without what these verbs need: one line says which."""
    out = shutil.copytree(GOLDEN / archive, tmp_path / "out")
    traced = (out / "runs" / run_id / "files.parquet").is_file()
    expected = "expected 'op' among them" if traced else "the run was not traced"
    for verb, said in refused(outcomes(f"{out}:{run_id}", tmp_path / "made")).items():
        if not verb.startswith("calls: workload"):
            assert expected in said, (verb, said)
            assert traced or verb != "compare"  # their responses can be compared


def test_what_a_manifest_says_of_times(study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(study / "runs" / "r001", tmp_path / "r001")
    manifest: dict[str, Any] = json.loads((copy / "manifest.json").read_text())
    for name, value, unit in (("start_ns", 0.5, "ns"), ("wall_s", "0.1 s", "seconds")):
        changed = manifest | {"times": manifest["times"] | {name: value}}
        (copy / "manifest.json").write_text(json.dumps(changed))
        status, said = run("report", copy)
        assert (status, f"found times.{name} {value!r}; expected a number of {unit}" in said) == (
            2,
            True,
        )
