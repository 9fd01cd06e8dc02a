"""The catalogue over studies and runs: SQLite, beside a study and per user. All of it is in the bundles.

`OUT/catalogue.sqlite` knows one study, the per-user index (`$PENSTOCK_ARCHIVE`, or the state directory)
all that were run. A catalogue of another schema number is dropped and filled from the bundles again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy as sa

from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.runs import attempts
from penstock.errors import PenstockError
from penstock.state import state_dir

SCHEMA_NUMBER = 1

_metadata = sa.MetaData()

studies = sa.Table(
    "studies",
    _metadata,
    sa.Column("out", sa.Text, primary_key=True),
    sa.Column("study_id", sa.Text, nullable=False),
    sa.Column("question", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("planned_runs", sa.Integer),
)
runs = sa.Table(
    "runs",
    _metadata,
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
)


@dataclass(frozen=True)
class StudyRow:
    """A study as the catalogue knows it; `state` is 'running', 'stopped' or 'finished'."""

    out: str
    study_id: str
    question: str
    state: str
    planned_runs: int
    runs: int
    valid_runs: int
    size_bytes: int
    last_realtime_ns: int | None


def index_path() -> Path:
    """The per-user catalogue: `$PENSTOCK_ARCHIVE/archive.sqlite`, else in the state directory."""
    asked = os.environ.get("PENSTOCK_ARCHIVE")
    if asked:
        Path(asked).mkdir(parents=True, exist_ok=True)
        return Path(asked) / "archive.sqlite"
    return state_dir() / "archive.sqlite"


class Catalogue:
    """One catalogue file, made if absent. Several processes may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 20})
        sa.event.listen(self._engine, "connect", _pragmas)
        self.was_reset = False
        # made here: it and what SQLite puts beside it are no more open than their directory, ever
        with contextlib.suppress(OSError):
            mode = 0o600 | (path.parent.stat().st_mode & 0o644)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        try:
            with self._engine.begin() as connection:
                number = connection.execute(sa.text("pragma user_version")).scalar()
                if number != SCHEMA_NUMBER:
                    self.was_reset = number != 0
                    _metadata.drop_all(connection)
                    _metadata.create_all(connection)
                    connection.execute(sa.text(f"pragma user_version = {SCHEMA_NUMBER}"))
        except sa.exc.DatabaseError as error:
            full = "full" in str(error.orig)
            advice = "make room" if full else "remove it and run penstock ls --rebuild"
            raise PenstockError(
                f"{path} cannot be used as a catalogue ({error.orig}); {advice}"
            ) from error

    def put_study(
        self, out: Path, study_id: str, question: str, state: str, planned_runs: int
    ) -> None:
        """Adds a study or says anew what it is."""
        row = {
            "out": str(out),
            "study_id": study_id,
            "question": question,
            "state": state,
            "planned_runs": planned_runs,
        }
        self._replace(studies, [row])

    def put_runs(self, out: Path, found: Iterable[Bundle]) -> None:
        """Adds bundles of a study or says anew what they are."""
        self._replace(runs, [_run_row(out, bundle) for bundle in found])

    def set_aside(self, out: Path, run_id: str, attempt: int, path: Path) -> None:
        """Notes that an earlier attempt has moved."""
        where = (runs.c.out == str(out)) & (runs.c.run_id == run_id) & (runs.c.attempt == attempt)
        with self._engine.begin() as connection:
            connection.execute(runs.update().where(where).values(path=str(path)))

    def forget(self, out: Path, run_ids: list[str] | None = None) -> None:
        """Drops a study, or some of its runs, from the catalogue (not from the disk)."""
        with self._engine.begin() as connection:
            if run_ids is None:
                connection.execute(studies.delete().where(studies.c.out == str(out)))
                connection.execute(runs.delete().where(runs.c.out == str(out)))
            else:
                mine = (runs.c.out == str(out)) & runs.c.run_id.in_(run_ids)
                connection.execute(runs.delete().where(mine))

    def rebuild(self, outs: Iterable[Path]) -> int:
        """Empties the catalogue and fills it from the bundles of these studies; gives the runs found."""
        with self._engine.begin() as connection:
            connection.execute(runs.delete())
            connection.execute(studies.delete())
        return sum(self.adopt(out) for out in dict.fromkeys(o.resolve() for o in outs))

    def adopt(self, out: Path) -> int:
        """Adds what lies in one OUT directory; gives the number of attempts found."""
        about = campaign_of(out)
        if about is None:
            return 0
        found = attempts(out)
        self.forget(out)
        done = {b.manifest["run_id"] for b in found}
        planned = int(about.get("planned_runs", len(done)))
        state = "finished" if len(done) >= planned else "stopped"
        self.put_study(out, about["study_id"], about.get("question", ""), state, planned)
        self.put_runs(out, as_analysed(out, found))
        return len(found)

    def studies(self) -> list[StudyRow]:
        """All studies, the one last run at the end."""
        last = sa.func.max(runs.c.start_realtime_ns).label("last")
        newest = runs.c.run_id.distinct()
        query = (
            sa.select(
                studies,
                sa.func.count(newest).label("runs"),
                sa.func.count(sa.case((runs.c.valid, runs.c.run_id)).distinct()).label(
                    "valid_runs"
                ),
                sa.func.coalesce(sa.func.sum(runs.c.size_bytes), 0).label("size_bytes"),
                last,
            )
            .select_from(studies.outerjoin(runs, runs.c.out == studies.c.out))
            .group_by(studies.c.out)
            .order_by(sa.func.coalesce(last, 0), studies.c.out)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            StudyRow(
                out=r["out"],
                study_id=r["study_id"],
                question=r["question"] or "",
                state=r["state"],
                planned_runs=r["planned_runs"] or 0,
                runs=r["runs"],
                valid_runs=r["valid_runs"],
                size_bytes=r["size_bytes"],
                last_realtime_ns=r["last"],
            )
            for r in rows
        ]

    def runs(self, out: Path) -> list[dict[str, Any]]:
        """The runs of a study in order, all attempts."""
        query = (
            sa.select(runs).where(runs.c.out == str(out)).order_by(runs.c.run_id, runs.c.attempt)
        )
        with self._engine.connect() as connection:
            found = [dict(r) for r in connection.execute(query).mappings().all()]
        for row in found:
            row["levels"] = json.loads(row["levels"] or "{}")
        return found

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            with self._engine.begin() as connection:
                connection.execute(table.insert().prefix_with("or replace"), rows)


def campaign_of(out: Path) -> dict[str, Any] | None:
    """What `OUT/campaign.json` says, None if the directory is not one of penstock's studies."""
    try:
        about = json.loads((out / "campaign.json").read_text())
    except (OSError, ValueError):
        return None
    known = isinstance(about, dict) and str(about.get("schema", "")).startswith(
        "penstock/campaign/"
    )
    return about if known else None


def studies_below(root: Path, depth: int = 4) -> list[Path]:
    """Directories of studies at or under `root`, to `depth` levels, not inside each other."""
    if campaign_of(root) is not None:
        return [root]
    found: list[Path] = []
    if depth > 0:
        try:
            children = sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink())
        except OSError:
            return []
        for child in children:
            if not child.name.startswith("."):
                found += studies_below(child, depth - 1)
    return found


def as_analysed(out: Path, found: list[Bundle]) -> list[Bundle]:
    """The bundles with the validity that the last analysis gave them, by later rules than their own maybe."""
    try:
        table = pq.read_table(
            out / "runs.parquet", columns=["run_id", "attempt", "valid", "reason"]
        )
    except (OSError, ValueError, KeyError):  # none yet, or not one of ours
        return found
    said = {
        (str(row["run_id"]), row["attempt"]): {
            "valid": bool(row["valid"]),
            "reason": row["reason"] or "",
        }
        for row in table.to_pylist()
    }
    return [
        Bundle(
            b.path, {**b.manifest, **said.get((b.manifest["run_id"], b.manifest["attempt"]), {})}
        )
        for b in found
    ]


def _run_row(out: Path, bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    times = manifest.get("times", {})
    return {
        "out": str(out),
        "run_id": manifest["run_id"],
        "attempt": int(manifest["attempt"]),
        "study_id": manifest["study_id"],
        "treatment_id": manifest["treatment_id"],
        "levels": json.dumps(manifest["levels"]),
        "state": manifest["state"],
        "valid": bool(manifest["valid"]),
        "reason": manifest["reason"],
        "start_realtime_ns": times.get("start_realtime_ns"),
        "wall_s": times.get("wall_s"),
        "size_bytes": directory_bytes(bundle.path),
        "path": str(bundle.path),
    }


def _pragmas(connection: Any, _record: Any) -> None:
    """A catalogue can be rebuilt, so it need not wait for the disk at every commit (sqlite pragmas)."""
    cursor = connection.cursor()
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = normal")
    cursor.close()
