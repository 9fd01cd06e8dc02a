"""The catalogue of a team in PostgreSQL, started as user postgres in a private directory."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.archive.catalogue import Catalogue
from penstock.archive.catalogue_tables import METADATA, REVISION, WAIT_S, opened
from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.experiments.experiment import Taken
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, points

BINARIES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
T0 = 1_700_000_000_000_000_000

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts a server as another user"),
    pytest.mark.skipif(BINARIES is None, reason="needs the package postgresql"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """URL of a server with a socket in a directory of user postgres, without a network port."""
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir="/tmp"))
    shutil.chown(directory, "postgres", "postgres")

    def as_postgres(*argv: str) -> None:
        result = subprocess.run(
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *argv],
            cwd=directory,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr

    try:
        as_postgres(f"{BINARIES}/initdb", "-D", f"{directory}/d", "-A", "trust", "-U", "team")
        options = f"-k {directory} -c listen_addresses='' -c fsync=off"
        as_postgres(
            f"{BINARIES}/pg_ctl",
            "-w",
            "-D",
            f"{directory}/d",
            "-l",
            f"{directory}/log",
            "-o",
            options,
            "start",
        )
        yield f"postgresql+pg8000://team@/postgres?unix_sock={directory}/.s.PGSQL.5432"
        as_postgres(f"{BINARIES}/pg_ctl", "-w", "-D", f"{directory}/d", "-m", "fast", "stop")
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def url(cluster: str) -> str:
    """An empty database."""
    drop_tables(cluster)
    return cluster


def drop_tables(url: str) -> None:
    """Empty a database."""
    from penstock.archive.catalogue_tables import _server

    engine = _server(url)
    with engine.begin() as connection:
        for table in sa.inspect(connection).get_table_names():
            connection.execute(sa.schema.DropTable(sa.Table(table, sa.MetaData())))
    engine.dispose()


def test_experiments_are_stored_and_rebuilt(url: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with Catalogue(url) as catalogue:
        store = Experiments(catalogue, tmp_path / "home")
        experiment = store.start(
            "x", "ada", at_ns=T0, tags=["b", "a"], params={"disk": "fast"}, shared=True
        )
        store.sink(experiment).write(Batch("s", 0, points(metric="m", utc_ns=[T0], float=[1.0])))
        with pytest.raises(Taken):
            store.start("x", "ada")
        store.stop(experiment, at_ns=T0 + 10)
        store.start("x", "ada", at_ns=T0 + 20)
        rows = [(e.name, e.repeat, e.state, e.tags) for e in store.listed("bob", tag="a")]
        assert rows == [("x", 1, "ended", ("a", "b"))]
        secret = catalogue.add_token("ada", "reader")
        token = catalogue.token(secret)
        assert token is not None
        assert (token.owner, token.role) == ("ada", "reader")
        before = store.listed(None)
        catalogue.rebuild([])
        assert store.adopt() == 2
        assert store.listed(None) == before
        assert catalogue.token(secret) == token
        assert catalogue.revoke(token.token_id)
        assert catalogue.token(secret) is None


def test_one_of_many_concurrent_starts_succeeds(url: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with Catalogue(url) as catalogue:
        store = Experiments(catalogue, tmp_path / "home")

        def start(_: int) -> bool:
            try:
                store.start("x", "ada", repeat=False)
            except Taken:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(start, range(16))) == 1
        assert len(list((tmp_path / "home" / "ada").iterdir())) == 1


def create_old(address: Path | str) -> None:
    """Create a catalogue with one run as it was before there were migrations."""
    from alembic import command
    from alembic.config import Config

    from penstock.archive.catalogue_tables import _server, _sqlite

    engine = _sqlite(address, WAIT_S) if isinstance(address, Path) else _server(address)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "penstock.archive:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(sa.text("insert into studies values ('o', 's-1', 'why', 'finished', 1)"))
        connection.execute(
            sa.text(
                "insert into runs (out, run_id, attempt, study_id, state, valid, path) "
                "values ('o', 'r001', 1, 's-1', 'finished', true, 'p')"
            )
        )
        # such a catalogue has no version table
        connection.execute(sa.text("drop table alembic_version"))
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migrations_create_the_current_tables(kind: str, url: str, tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from penstock.archive.catalogue_tables import revision_of

    address = tmp_path / "old.sqlite" if kind == "sqlite" else url
    create_old(address)
    with Catalogue(address) as catalogue:
        (study,) = catalogue.studies()
        assert (study.question, study.runs, study.valid_runs) == ("why", 1, 1)
    engine = opened(address)
    with engine.connect() as connection:
        assert revision_of(connection) == REVISION
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_processes_that_start_together_share_a_catalogue(
    kind: str, old: bool, url: str, tmp_path: Path
) -> None:
    """Each process can use it. Without a lock: "table studies already exists" or "database is locked"."""
    fork = multiprocessing.get_context("fork")
    for repeat in range(3):
        address = tmp_path / f"{repeat}.sqlite" if kind == "sqlite" else url
        drop_tables(url)
        if old:
            create_old(address)
        start, errors = fork.Barrier(6), fork.SimpleQueue()

        def use(address: Path | str, start: Any, errors: Any) -> None:
            start.wait()
            try:
                opened(address).dispose()
                errors.put("")
            except Exception as error:
                errors.put(str(error))

        processes = [fork.Process(target=use, args=(address, start, errors)) for _ in range(6)]
        for process in processes:
            process.start()
        results = [errors.get() for _ in processes]
        for process in processes:
            process.join()
        assert results == [""] * 6


def test_bad_addresses_of_a_catalogue_are_refused(tmp_path: Path) -> None:
    for wrong in ("mysql://x/y", "nothing", "postgresql+nodriver://x/y"):
        with pytest.raises((BadInput, PenstockError), match=r"catalogue|expected"):
            Catalogue(wrong)
    with pytest.raises(PenstockError, match="is the server up") as raised:
        Catalogue("postgresql+pg8000://u:secret@127.0.0.1:1/x")
    assert "secret" not in str(raised.value)


def test_a_catalogue_is_used_again_after_an_outage(cluster: str, url: str, tmp_path: Path) -> None:
    """Answers are 503 with Retry-After while the database is down.

    Afterwards requests succeed with a new connection, and acknowledged points are stored.
    """
    from fastapi.testclient import TestClient

    from penstock.parts.server.app import application
    from penstock.parts.server.traces import Served

    directory = Path(cluster.partition("unix_sock=")[2]).parent

    def pg_ctl(*options: str) -> None:
        argv = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        argv += [
            f"{BINARIES}/pg_ctl",
            "-w",
            "-D",
            f"{directory}/d",
            "-l",
            f"{directory}/log",
            *options,
        ]
        subprocess.run(argv, cwd=directory, check=True, capture_output=True)

    (tmp_path / "home").mkdir()
    store = Experiments(Catalogue(url), tmp_path / "home")
    app = application(Served([]), "token", store=lambda: store, own_token="own")
    headers = {"Authorization": "Bearer own"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as http:
        assert http.post("/exp/x", json={}).status_code == 201
        point = {"source": "s", "number": 0, "metric": "m", "utc_ns": [T0], "float": [1.0]}
        assert http.post("/api/v1/experiments/x/points", json=point).status_code == 201
        pg_ctl("-m", "immediate", "stop")
        try:
            for answer in (
                http.get("/exp"),
                # the catalogue stores the tokens
                http.get("/exp", headers={"Authorization": "Bearer another"}),
                http.post("/exp/y", json={}),
                http.post("/api/v1/experiments/x/points", json=point | {"number": 1}),
                http.put("/exp/x"),
            ):
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
                assert "is its server up" in answer.json()["detail"]
        finally:
            pg_ctl("-o", f"-k {directory} -c listen_addresses='' -c fsync=off", "start")
        assert http.post("/api/v1/experiments/x/points", json=point).json()["duplicate"]
        assert http.post("/exp/y", json={}).status_code == 201
        assert http.put("/exp/x").status_code == 201
    assert not list((tmp_path / "home").glob("*/.*.new"))
