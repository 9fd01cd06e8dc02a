"""Truncated, foreign and damaged trace bundles: each verb reports the mistake in one line, with status 2."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn

from penstock import cli
from tests.examples.trace_page import events, write_bundle

Breaks = Callable[[Path], object]
CORE = ("files", "io_events", "patterns", "phases")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("good") / "bundle", events(600))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `serve` return where it would wait for requests."""

    def run(_: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        assert sockets

    monkeypatch.setattr(uvicorn.Server, "run", run)


def run(*argv: object) -> tuple[int | str, str]:
    """Status and stderr of the command line in this process; an exception has the status "traceback"."""
    stderr = io.StringIO()
    saved_argv, sys.argv = sys.argv, ["penstock", *map(str, argv)]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
            cli.main()
    except SystemExit as end:
        return end.code or 0, stderr.getvalue()
    except BaseException:
        return "traceback", stderr.getvalue() + traceback.format_exc()
    finally:
        sys.argv = saved_argv
    return 0, stderr.getvalue()


def readers(bundle: Path, good: Path, out: Path) -> Iterator[tuple[object, ...]]:
    """Each verb that reads a bundle; replay reads it only as export to fio does."""
    yield "report", bundle
    yield "plot", bundle, "offsets", "-o", out / "figure.svg"
    yield "plot", bundle, "offsets"
    yield "plot", good, "offsets", "--beside", bundle, "-o", out / "beside.svg"
    yield "export", bundle, "json", "-o", out / "events.json"
    yield "export", bundle, "fio", "-o", out / "jobs"
    yield "compare", bundle, good
    yield "compare", good, bundle
    yield "serve", bundle, "--port", "0", "--cache", out
    yield "workload", "trace", bundle, "-o", out / "workload.yaml"


def broken(tmp_path: Path, good: Path, damage: Breaks) -> Path:
    bundle = tmp_path / "bundle"
    for path in (bundle, tmp_path / "jobs"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(good, bundle)
    damage(bundle)
    return bundle


def outcomes(tmp_path: Path, good: Path, damage: Breaks) -> list[tuple[str, int | str, str]]:
    bundle = broken(tmp_path, good, damage)
    results = []
    for number, argv in enumerate(readers(bundle, good, tmp_path)):
        status, stderr = run(*argv)
        results.append((f"{number} {argv[0]}", status, stderr))
    return results


def all_refuse(results: list[tuple[str, int | str, str]], *expected: str) -> None:
    """Check that every verb ended with 2 and one line that contains all of `expected`."""
    for verb, status, stderr in results:
        lines = stderr.splitlines()
        assert (status, len(lines)) == (2, 1), (verb, status, stderr)
        assert all(word in stderr for word in ("expected", *expected)), (verb, stderr)


def test_a_good_bundle_is_read_by_every_verb(tmp_path: Path, good: Path) -> None:
    results = outcomes(tmp_path, good, lambda _: None)
    assert [verb for verb, status, _ in results if status != 0] == [], results


def _foreign(table: str) -> Breaks:
    return lambda b: pq.write_table(pa.table({"a": [1], "b": ["x"]}), b / f"{table}.parquet")


def _as_texts(table: str) -> Breaks:
    def damage(bundle: Path) -> None:
        path = bundle / f"{table}.parquet"
        before = pq.read_table(path)
        text = pa.array(["x"] * before.num_rows)
        pq.write_table(pa.table(dict.fromkeys(before.column_names, text)), path)

    return damage


@pytest.mark.parametrize("table", CORE)
def test_tables_of_another_tool(tmp_path: Path, good: Path, table: str) -> None:
    all_refuse(outcomes(tmp_path, good, _foreign(table)), f"{table}.parquet", "found columns a, b")


@pytest.mark.parametrize("table", CORE)
def test_columns_of_another_type(tmp_path: Path, good: Path, table: str) -> None:
    all_refuse(outcomes(tmp_path, good, _as_texts(table)), f"{table}.parquet", "of type string")


def _manifest(change: Callable[[dict[str, object]], object]) -> Breaks:
    def damage(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        change(manifest)
        (bundle / "manifest.json").write_text(json.dumps(manifest))

    return damage


def test_another_schema(tmp_path: Path, good: Path) -> None:
    damage = _manifest(lambda m: m.update(schema="penstock/bundle/99"))
    all_refuse(
        outcomes(tmp_path, good, damage),
        "manifest.json",
        "found schema 'penstock/bundle/99'; expected 'penstock/bundle/1'",
    )


@pytest.mark.parametrize("fact", ["receipts", "times", "losses", "responses"])
def test_facts_of_another_kind(tmp_path: Path, good: Path, fact: str) -> None:
    damage = _manifest(lambda m: m.update({fact: "all"}))
    all_refuse(outcomes(tmp_path, good, damage), "manifest.json", f"found {fact} 'all'")


@pytest.mark.parametrize("text", [b"", b"[]", b'{"schema":', b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_no_manifest(tmp_path: Path, good: Path, text: bytes) -> None:
    damage: Breaks = lambda b: (b / "manifest.json").write_bytes(text)  # noqa: E731
    all_refuse(outcomes(tmp_path, good, damage), "manifest.json", "found")


def test_a_file_or_nothing_for_a_directory(tmp_path: Path, good: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path / "file"):
        if path.name == "file":
            path.write_text("not a bundle")
        for argv in readers(path, good, tmp_path):
            status, stderr = run(*argv)
            assert (status, stderr.count("\n"), str(path) in stderr) == (2, 1, True), (argv, stderr)
        for argv in (("analyse", path), ("replay", path), ("import", path, "-o", tmp_path / "x")):
            status, stderr = run(*argv)
            assert (status, stderr.count("\n"), path.name in stderr) == (2, 1, True), (argv, stderr)


def _cut(name: str, share: float) -> Breaks:
    return lambda b: os.truncate(b / name, int((b / name).stat().st_size * share))


def _damaged(name: str) -> Breaks:
    """Overwrite the file apart from its footer."""

    def damage(bundle: Path) -> None:
        path = bundle / name
        content = path.read_bytes()
        footer = 8 + int.from_bytes(content[-8:-4], "little")
        path.write_bytes(content[:4] + b"\x5a" * (len(content) - 4 - footer) + content[-footer:])

    return damage


@pytest.mark.long
def test_every_file_missing_cut_or_damaged_in_turn(tmp_path: Path, good: Path) -> None:
    """A verb reads the rest or reports the damaged file: no traceback, and at most one line."""
    names = sorted(p.name for p in good.iterdir() if p.suffix in (".json", ".parquet"))
    assert len(names) > 4
    for name in names:
        for kind, damage in (
            ("missing", lambda b, n=name: (b / n).unlink()),
            ("cut", _cut(name, 0.6)),
            ("empty", _cut(name, 0)),
            ("damaged", _damaged(name)),
        ):
            for verb, status, stderr in outcomes(tmp_path, good, damage):
                assert status in (0, 2), (name, kind, verb, stderr)
                if status == 2:
                    assert stderr.count("\n") == 1, (name, kind, verb, stderr)
                    assert Path(name).stem in stderr or kind == "missing", (
                        name,
                        kind,
                        verb,
                        stderr,
                    )
                if kind in ("cut", "empty"):
                    assert status == 2, (name, kind, verb)


@pytest.mark.parametrize("table", CORE)
def test_empty_tables(tmp_path: Path, good: Path, table: str) -> None:
    def damage(bundle: Path) -> None:
        path = bundle / f"{table}.parquet"
        pq.write_table(pq.read_table(path).slice(0, 0), path)

    for verb, status, stderr in outcomes(tmp_path, good, damage):
        assert status == 0 or (status, stderr.count("\n")) == (2, 1), (verb, stderr)
