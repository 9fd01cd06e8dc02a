"""The tables of a catalogue, and its opening and migration: SQLite, or PostgreSQL for a team.

Each change of a table needs a step in `penstock.archive.migrations`; a test compares both.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.errors import Away, BadInput, PenstockError

METADATA = sa.MetaData()
#: the step of `penstock.archive.migrations` that produces the tables below
REVISION = "0002"
#: longest wait for a catalogue locked by another process [s]
WAIT_S = 20.0

studies = sa.Table(
    "studies",
    METADATA,
    sa.Column("out", sa.Text, primary_key=True),
    sa.Column("study_id", sa.Text, nullable=False),
    sa.Column("question", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("planned_runs", sa.Integer),
)
#: runs of studies are experiments. For an experiment started manually, `run_id` is its name, `attempt` its
#: repeat and `out` the directory of its owner's experiments
runs = sa.Table(
    "runs",
    METADATA,
    sa.Column("out", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("study_id", sa.Text, nullable=False),
    sa.Column("treatment_id", sa.Text),
    sa.Column("levels", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("valid", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("start_realtime_ns", sa.BigInteger),
    sa.Column("wall_s", sa.Float),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False, server_default="", index=False),
    sa.Column("owner", sa.Text, nullable=False, server_default=""),
    sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("end_realtime_ns", sa.BigInteger),
    sa.Column("until_realtime_ns", sa.BigInteger),
    sa.Index("runs_by_name", "name"),
)
tags = sa.Table(
    "tags",
    METADATA,
    sa.Column("out", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
)
tokens = sa.Table(
    "tokens",
    METADATA,
    sa.Column("token_id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("made_realtime_ns", sa.BigInteger, nullable=False),
)
_versions = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), primary_key=True),
)


def opened(place: Path | str, wait_s: float = WAIT_S) -> sa.Engine:
    """An engine for the catalogue at a path (SQLite) or URL (`postgresql+pg8000://…`), created or migrated.

    `wait_s`: longest wait for a file locked by another process. Raises Away after that time, PenstockError
    for an unusable catalogue, BadInput for an invalid URL.
    """
    engine = _sqlite(place, wait_s) if isinstance(place, Path) else _server(place)
    try:
        _bring_up_to_date(engine)
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        reason = getattr(error, "orig", None) or error
        if isinstance(place, Path) and _LOCKED.search(str(reason)):
            raise Away(_lock_message(place, reason)) from error
        advice = "remove it and run penstock ls --rebuild"
        if _UNWRITABLE.search(str(reason)):
            advice = "expected a writable file system with free space"
        if not isinstance(place, Path):
            advice = "is the server up, and may this user make tables?"
        raise PenstockError(
            f"{shown(place)} cannot be used as a catalogue ({reason}); {advice}"
        ) from error
    except PenstockError:
        engine.dispose()
        raise

    def translate(context: sa.engine.ExceptionContext) -> None:
        translated = _translated(context)
        if translated is not None:
            raise translated from context.original_exception

    sa.event.listen(engine, "handle_error", translate)
    return engine


#: SQLite's messages about a file locked by another process
#: errors of SQLite that say nothing about the file's content
_UNWRITABLE = re.compile("full|disk I/O error|unable to open|readonly")
_LOCKED = re.compile(r"database (?:table )?is locked|database schema is locked")


def _lock_message(place: Path | str, reason: object) -> str:
    return f"{place}: the catalogue does not answer ({reason}); another process has locked it"


#: messages of SQLite and PostgreSQL (SQLSTATE) about a missing table or column
_LACKING = re.compile(r"no such (?:table|column)|has no column|\b42P01\b|\b42703\b")


def _translated(context: sa.engine.ExceptionContext) -> PenstockError | None:
    """Error of a database in use as a message for the user; None for an error that the caller handles."""
    if isinstance(context.original_exception, sa.exc.IntegrityError) or isinstance(
        context.sqlalchemy_exception, sa.exc.IntegrityError
    ):
        return None
    text = " ".join(str(context.original_exception).split())[:300]
    engine = context.engine
    place = "the catalogue"
    if engine is not None:
        url = engine.url
        place = url.database or place
        if url.get_backend_name() != "sqlite":
            place = url.render_as_string(hide_password=True)
    if _LACKING.search(text):
        advice = "expected those that penstock makes; remove it and run penstock ls --rebuild"
        return PenstockError(f"{place}: it lacks a table or column ({text}); {advice}")
    gone = (
        isinstance(context.original_exception, OSError)
        or "InterfaceError" in type(context.original_exception).__name__
    )
    # 57P: the server is shutting down or starting
    if context.is_disconnect or gone or "57P0" in text:
        return Away(f"{place}: the catalogue does not answer ({text}); is its server up?")
    if engine is not None and engine.url.get_backend_name() == "sqlite":
        if _LOCKED.search(text):
            return Away(_lock_message(place, text))
        if "disk is full" in text:
            return PenstockError(f"{place}: No space left for the catalogue ({text}); make room")
        if isinstance(context.original_exception, sqlite3.OperationalError | sqlite3.DatabaseError):
            return Away(f"{place}: the catalogue cannot be used ({text})")
    return None


def shown(place: Path | str) -> str:
    """The place without its password."""
    if isinstance(place, Path):
        return str(place)
    return sa.make_url(place).render_as_string(hide_password=True)


def _sqlite(path: Path, wait_s: float) -> sa.Engine:
    # created here: never more accessible than its directory, with SQLite's auxiliary files
    with contextlib.suppress(OSError):
        mode = 0o600 | (path.parent.stat().st_mode & 0o644)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, connect_args={"timeout": wait_s})
    sa.event.listen(engine, "connect", lambda connection, _record: _set_pragmas(connection, wait_s))
    return engine


def _server(text: str) -> sa.Engine:
    try:
        url = sa.make_url(text)
        if url.get_backend_name() != "postgresql":
            raise BadInput(
                f"found a catalogue of {url.get_backend_name()}; expected postgresql+pg8000://USER@HOST/DATABASE"
            )
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+pg8000")
        arguments: dict[str, Any] = {"timeout": 10} if "pg8000" in url.drivername else {}
        if "unix_sock" in url.query:
            arguments["unix_sock"] = url.query["unix_sock"]
            url = url.difference_update_query(["unix_sock"])
        return sa.create_engine(url, pool_pre_ping=True, connect_args=arguments)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as error:
        raise BadInput(
            f"found a catalogue that cannot be one ({error}); expected postgresql+pg8000://USER@HOST/DATABASE"
        ) from None
    except ModuleNotFoundError as error:
        raise PenstockError(f"this needs {error.name}: pip install 'penstock[monitor]'") from None


def _set_pragmas(connection: Any, wait_s: float) -> None:
    """Set up a connection. A catalogue can be rebuilt, so commits need not wait for the disk."""
    end = time.monotonic() + wait_s
    cursor = connection.cursor()
    while True:
        try:
            cursor.execute("pragma journal_mode = wal")
            break
        except sqlite3.OperationalError as error:
            # SQLite does not wait for a process that changes the mode concurrently
            if not _LOCKED.search(str(error)) or time.monotonic() > end:
                raise
            time.sleep(0.005)
    cursor.execute("pragma synchronous = normal")
    cursor.close()


def _bring_up_to_date(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        if revision_of(connection) == REVISION:
            return
    with engine.begin() as connection:
        # one process creates the tables; concurrent ones wait
        connection.exec_driver_sql(_EXCLUDE_OTHERS[engine.url.get_backend_name()])
        at = revision_of(connection)
        if at == REVISION:
            return
        there = set(sa.inspect(connection).get_table_names())
        if at is None and not there & {"studies", "runs"}:
            METADATA.create_all(connection)
            _versions.create(connection, checkfirst=True)
            connection.execute(_versions.insert().values(version_num=REVISION))
            return
        migrate(connection, at)


#: by back end: statement that waits for concurrent migrations. PostgreSQL releases its lock at the end of the
#: transaction; its number is arbitrary
_EXCLUDE_OTHERS = {
    "sqlite": "begin immediate",
    "postgresql": "select pg_advisory_xact_lock(7251634)",
}


def revision_of(connection: sa.Connection) -> str | None:
    """Step of a catalogue, None without one."""
    if not sa.inspect(connection).has_table(_versions.name):
        return None
    revision: str | None = connection.execute(sa.select(_versions.c.version_num)).scalar()
    return revision


def migrate(connection: sa.Connection, at: str | None) -> None:
    """Apply the missing steps. Raises PenstockError for a catalogue of a later penstock."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "penstock.archive:migrations")
    config.attributes["connection"] = connection
    steps = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    if at is not None and at not in steps:
        raise PenstockError(
            f"the catalogue is at step {at}, of a later penstock; expected at most {REVISION}"
        )
    if at is None:
        # predates migrations: the tables are those of the first step
        command.stamp(config, "0001")
    command.upgrade(config, REVISION)
