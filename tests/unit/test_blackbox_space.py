"""Points of Table I: their names, files and options, and their fio jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.black_box.space import (
    DEFAULT,
    MIB,
    QUICK,
    TABLE_I,
    Point,
    Space,
    read_space,
    with_dimensions,
)
from penstock.parts.prediction.learning.measure_points import (
    Computing,
    fio_options,
    learn_study,
    run_of,
)
from penstock.parts.prediction.workloads.generator import read_and_compute
from penstock.study.resolve import resolve
from penstock.workload.parsers.fio import operations
from tests.support.simulated_storage import offsets

SKEWED = Point("read", "skew-90-10", "buffered", 2, 4096, 64 * MIB)


def test_the_published_dimensions() -> None:
    assert TABLE_I.operation == ("read", "write")
    assert TABLE_I.pattern == ("sequential", "skew-50-50", "skew-90-10")
    assert TABLE_I.clients == (0, 1, 2, 3, 4)
    assert (TABLE_I.data_bytes[0], TABLE_I.data_bytes[-1]) == (64 * MIB, 4096 * MIB)


@pytest.mark.parametrize("space", [DEFAULT, QUICK, TABLE_I])
def test_points_are_restored_from_their_names(space: Space) -> None:
    grid = space.grid()
    names = [p.name for p in grid]
    assert len(set(names)) == len(grid)
    assert max(map(len, names)) <= 64
    assert [run_of(n) for n in names] == grid
    assert Space.from_dict(json.loads(json.dumps(space.to_dict()))) == space
    unusual = Point("read", "sequential", "direct", 0, 512 * 3, 100_000_256)
    assert run_of(unusual.name) == unusual
    computing = Computing(grid[0], 4.7943)
    assert run_of(computing.name) == computing
    with pytest.raises(BadInput, match="expected a point"):
        run_of("r001")


def test_requests_larger_than_the_data_are_no_points() -> None:
    space = DEFAULT.with_values(request_bytes=(4096, 4 * MIB), data_bytes=(MIB, 8 * MIB))
    assert {(p.request_bytes, p.data_bytes) for p in space.grid()} == {
        (4096, MIB),
        (4096, 8 * MIB),
        (4 * MIB, 8 * MIB),
    }


def test_options_of_fio_for_a_point() -> None:
    (job,) = operations(f"fio {fio_options(SKEWED, 1.5)}") or []
    assert (job.rw, job.bs_bytes, job.numjobs) == ("randread", 4096, 3)
    assert (job.size_bytes, job.runtime_s, job.direct) == (64 * MIB, 1.5, False)
    text = fio_options(SKEWED, 1.5)
    assert "--random_distribution=zoned:90/10:10/90" in text
    assert "--fadvise_hint=0" in text
    write = fio_options(Point("write", "sequential", "buffered", 0, MIB, 64 * MIB), 1)
    assert "--end_fsync=1" in write
    assert "--sync_file_range=wait_before,write:4" in write
    assert "sync_file_range" not in fio_options(
        Point("write", "sequential", "direct", 0, MIB, 64 * MIB), 1
    )


def test_skewed_offsets_are_skewed() -> None:
    positions = offsets(SKEWED, 20_000, seed=1)
    hot = SKEWED.data_bytes // 10
    assert (positions < hot).mean() == pytest.approx(0.9, abs=0.01)
    assert positions.max() < SKEWED.data_bytes
    uniform = offsets(Point(**{**vars(SKEWED), "pattern": "skew-50-50"}), 20_000, seed=1)
    assert (uniform < hot).mean() == pytest.approx(0.1, abs=0.01)


def test_the_study_has_disks_of_sufficient_size(tmp_path: Path) -> None:
    runs = [SKEWED, Computing(Point("read", "sequential", "buffered", 0, 65536, 128 * MIB), 2.5)]
    study = learn_study(tmp_path, runs, 1.0)
    first = resolve(study, {"point": SKEWED.name})
    assert first.disks[0].size_bytes == 128 * MIB * 3
    assert "zoned:90/10:10/90" in first.command
    assert "--cpu-ns-per-byte 2.5" in resolve(study, {"point": runs[1].name}).command
    # more levels at the end leave the earlier ones unchanged
    extended = learn_study(tmp_path, [*runs, DEFAULT.grid()[0]], 1.0)
    assert extended.document["factors"]["point"]["levels"].items() >= (
        study.document["factors"]["point"]["levels"].items()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=red", "expected NAME=value"),
        ("clients", "expected NAME=value"),
        ("clients=-1", "0 to 256"),
        ("clients=1,two", "found 'two'"),
        ("request=4k", "4KiB"),
        ("request=100B", "multiple of 512 B"),
        ("size=1kB", "at least 1 MiB"),
        ("pattern=skew-100-0", "skew-X-Y"),
        ("operation=trim", "read or write"),
        ("size=nan", "at least 1 MiB"),
    ],
)
def test_invalid_dimensions_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        with_dimensions(DEFAULT, [text])


def test_dimensions_from_the_command_line() -> None:
    space = with_dimensions(DEFAULT, ["clients=4,0,4", "size=64MB", "pattern=skew-70-30"])
    assert space.clients == (0, 4)
    assert space.data_bytes == (64_000_000,)
    assert {p.pattern for p in space.grid()} == {"skew-70-30"}
    with pytest.raises(BadInput, match="fits into its data"):
        with_dimensions(DEFAULT, ["request=8MiB", "size=1MiB"])


def test_a_space_file_and_its_mistakes_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("penstock_space: 1\ndimensions:\n  clients: [0, 3]\n  size: [64MB]\n")
    space = read_space(file)
    assert (space.clients, space.data_bytes) == ((0, 3), (64_000_000,))
    assert space.request_bytes == DEFAULT.request_bytes
    file.write_text(
        "penstock_space: 2\ndimensions:\n  clients: [0, x]\n  colour: [red]\n  size: 5\n"
    )
    with pytest.raises(BadInput) as error:
        read_space(file)
    mistakes = [(m.line, m.found) for m in error.value.mistakes]
    assert [line for line, _ in mistakes] == [1, 3, 4, 5]
    assert mistakes[1][1] == "'x'"
    with pytest.raises(BadInput, match="expected a space file"):
        read_space(tmp_path / "none.yaml")


def test_the_generator_reads_all_and_computes_as_requested(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(3 * MIB + 17))
    stats = read_and_compute(str(file), 1 << 40, 65536, 10.0)
    assert stats["bytes"] == 3 * MIB + 17
    assert stats["computing_s"] >= 10e-9 * stats["bytes"] * 0.95
    assert stats["cpu_s"] >= stats["computing_s"]
    without_computing = read_and_compute(str(file), MIB, 65536, 0.0)
    assert (without_computing["bytes"], without_computing["computing_s"]) == (
        MIB,
        pytest.approx(0.0, abs=1e-3),
    )
