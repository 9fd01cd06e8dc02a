"""Truncated, foreign and damaged trace bundles: each verb says in one line what is wrong, and ends with 2."""

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
    """`serve` up to where it would wait for requests."""

    def run(_: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        assert sockets

    monkeypatch.setattr(uvicorn.Server, "run", run)


def run(*words: object) -> tuple[int | str, str]:
    """Status and stderr of the command line, in this process; a traceback has a status of its own."""
    said = io.StringIO()
    kept, sys.argv = sys.argv, ["penstock", *map(str, words)]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            cli.main()
    except SystemExit as end:
        return end.code or 0, said.getvalue()
    except BaseException:
        return "traceback", said.getvalue() + traceback.format_exc()
    finally:
        sys.argv = kept
    return 0, said.getvalue()


def readers(bundle: Path, good: Path, out: Path) -> Iterator[tuple[object, ...]]:
    """Each verb that reads a bundle; replay only reads it in the way in which export to fio does."""
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


def broken(tmp_path: Path, good: Path, how: Breaks) -> Path:
    bundle = tmp_path / "bundle"
    for made in (bundle, tmp_path / "jobs"):
        shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(good, bundle)
    how(bundle)
    return bundle


def outcomes(tmp_path: Path, good: Path, how: Breaks) -> list[tuple[str, int | str, str]]:
    bundle = broken(tmp_path, good, how)
    found = []
    for number, words in enumerate(readers(bundle, good, tmp_path)):
        status, said = run(*words)
        found.append((f"{number} {words[0]}", status, said))
    return found


def all_refuse(found: list[tuple[str, int | str, str]], *words: str) -> None:
    """Every verb ended with 2, and one line that holds these words."""
    for verb, status, said in found:
        lines = said.splitlines()
        assert (status, len(lines)) == (2, 1), (verb, status, said)
        assert all(word in said for word in ("expected", *words)), (verb, said)


def test_a_good_bundle_is_read_by_every_verb(tmp_path: Path, good: Path) -> None:
    found = outcomes(tmp_path, good, lambda _: None)
    assert [verb for verb, status, _ in found if status != 0] == [], found


def _foreign(table: str) -> Breaks:
    return lambda b: pq.write_table(pa.table({"a": [1], "b": ["x"]}), b / f"{table}.parquet")


def _as_texts(table: str) -> Breaks:
    def how(bundle: Path) -> None:
        path = bundle / f"{table}.parquet"
        before = pq.read_table(path)
        text = pa.array(["x"] * before.num_rows)
        pq.write_table(pa.table(dict.fromkeys(before.column_names, text)), path)

    return how


@pytest.mark.parametrize("table", CORE)
def test_tables_of_another_tool(tmp_path: Path, good: Path, table: str) -> None:
    all_refuse(outcomes(tmp_path, good, _foreign(table)), f"{table}.parquet", "found columns a, b")


@pytest.mark.parametrize("table", CORE)
def test_columns_of_another_type(tmp_path: Path, good: Path, table: str) -> None:
    all_refuse(outcomes(tmp_path, good, _as_texts(table)), f"{table}.parquet", "of type string")


def _manifest(change: Callable[[dict[str, object]], object]) -> Breaks:
    def how(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        change(manifest)
        (bundle / "manifest.json").write_text(json.dumps(manifest))

    return how


def test_another_schema(tmp_path: Path, good: Path) -> None:
    how = _manifest(lambda m: m.update(schema="penstock/bundle/99"))
    all_refuse(
        outcomes(tmp_path, good, how),
        "manifest.json",
        "found schema 'penstock/bundle/99'; expected 'penstock/bundle/1'",
    )


@pytest.mark.parametrize("fact", ["receipts", "times", "losses", "responses"])
def test_facts_of_another_kind(tmp_path: Path, good: Path, fact: str) -> None:
    how = _manifest(lambda m: m.update({fact: "all"}))
    all_refuse(outcomes(tmp_path, good, how), "manifest.json", f"found {fact} 'all'")


@pytest.mark.parametrize("text", [b"", b"[]", b'{"schema":', b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_none(tmp_path: Path, good: Path, text: bytes) -> None:
    how: Breaks = lambda b: (b / "manifest.json").write_bytes(text)  # noqa: E731
    all_refuse(outcomes(tmp_path, good, how), "manifest.json", "found")


def test_a_file_or_nothing_for_a_directory(tmp_path: Path, good: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path / "file"):
        if path.name == "file":
            path.write_text("not a bundle")
        for words in readers(path, good, tmp_path):
            status, said = run(*words)
            assert (status, said.count("\n"), str(path) in said) == (2, 1, True), (words, said)
        for words in (("analyse", path), ("replay", path), ("import", path, "-o", tmp_path / "x")):
            status, said = run(*words)
            assert (status, said.count("\n"), path.name in said) == (2, 1, True), (words, said)


def _cut(name: str, share: float) -> Breaks:
    return lambda b: os.truncate(b / name, int((b / name).stat().st_size * share))


def _damaged(name: str) -> Breaks:
    """The footer is whole, what lies before it is not."""

    def how(bundle: Path) -> None:
        path = bundle / name
        whole = path.read_bytes()
        footer = 8 + int.from_bytes(whole[-8:-4], "little")
        path.write_bytes(whole[:4] + b"\x5a" * (len(whole) - 4 - footer) + whole[-footer:])

    return how


@pytest.mark.long
def test_every_file_missing_cut_or_damaged_in_turn(tmp_path: Path, good: Path) -> None:
    """A verb reads the rest, or says which file is wrong: never a traceback, never two lines."""
    names = sorted(p.name for p in good.iterdir() if p.suffix in (".json", ".parquet"))
    assert len(names) > 4
    for name in names:
        for what, how in (
            ("missing", lambda b, n=name: (b / n).unlink()),
            ("cut", _cut(name, 0.6)),
            ("empty", _cut(name, 0)),
            ("damaged", _damaged(name)),
        ):
            for verb, status, said in outcomes(tmp_path, good, how):
                assert status in (0, 2), (name, what, verb, said)
                if status == 2:
                    assert said.count("\n") == 1, (name, what, verb, said)
                    assert Path(name).stem in said or what == "missing", (name, what, verb, said)
                if what in ("cut", "empty"):
                    assert status == 2, (name, what, verb)


@pytest.mark.parametrize("table", CORE)
def test_empty_tables(tmp_path: Path, good: Path, table: str) -> None:
    def how(bundle: Path) -> None:
        path = bundle / f"{table}.parquet"
        pq.write_table(pq.read_table(path).slice(0, 0), path)

    for verb, status, said in outcomes(tmp_path, good, how):
        assert status == 0 or (status, said.count("\n")) == (2, 1), (verb, said)
