"""Archives: exported runs, series, expressions over them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.archive.selection import select
from penstock.archive.series.expression import derived
from penstock.archive.series.series import Recorded, Series
from penstock.archive.series.series_tables import of_csv
from penstock.errors import BadInput
from penstock.parts.interchange.share import pack, unpack
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target, plain
from tests.fuzz.samples import texts

_RECORDED = Recorded(
    [
        Series(f"{name} {node}", np.arange(5.0), np.arange(5.0) ** 2, "B", node, name)
        for name in ("a", "b", "disk busy")
        for node in ("n1", "n2")
    ]
)


def _exported_runs() -> list[bytes]:
    """Export a small run; return the compressed file and its content."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        with Bundle.create(run, {"run_id": "r001"}) as bundle:
            (bundle.path / "stdout.txt").write_text("1\n")
        target = Path(directory) / "x.tar.zst"
        pack(select(run), target)
        packed = target.read_bytes()
        with pa.CompressedInputStream(pa.OSFile(str(target)), "zstd") as content:
            return [packed, content.read()]


@contextlib.contextmanager
def _unpack_inputs(directory: Path) -> Iterator[Feed]:
    """The input as an archive, or compressed as its content, so that the content is invalid as well."""
    archive, output = directory / "given.tar.zst", directory / "output"

    def feed(data: bytes) -> None:
        if not data.startswith(b"\x28\xb5\x2f\xfd"):
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "zstd") as out:
                out.write(data)
            data = sink.getvalue().to_pybytes()
        archive.write_bytes(data)
        try:
            unpack(archive, output)
        finally:
            files = {p.name for p in directory.iterdir()}
            assert files <= {"given.tar.zst", "output"}, files
            shutil.rmtree(output, ignore_errors=True)

    yield feed


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        Target(
            "exported-runs",
            of.of_bytes(*_exported_runs()),
            _unpack_inputs,
            (BadInput,),
            cost=20,
        ),
        plain(
            "series-csv",
            of.of_text(
                texts("tests/golden/metrics/pg-database.csv")[0], b"time,a (B),b\n0,1,\n1,2,3\n"
            ),
            lambda d: bool(of_csv(d, "fuzzed").series),
            BadInput,
            cost=4,
        ),
        plain(
            "expression",
            of.of_text(
                b'sum("disk * busy") / 2 - moving_mean(a{n1}, 3.5)',
                b"join(rate(a), ratio(a, b), last)",
            ),
            lambda d: bool(derived(_RECORDED, "n", d.decode("utf-8", "replace")).series),
            BadInput,
        ),
    ]
