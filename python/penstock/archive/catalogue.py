"""The catalogue of studies and runs, which are experiments: an index of the bundles, and tokens.

`OUT/catalogue.sqlite` has one study, the index all executed ones: `$PENSTOCK_CATALOGUE` (a PostgreSQL of a
team), else SQLite in `$PENSTOCK_ARCHIVE` or the state directory. Rows of runs can be rebuilt from the
bundles, tokens cannot.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import sqlalchemy as sa

from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.catalogue_tables import WAIT_S, opened, runs, studies, tags, tokens
from penstock.archive.runs import attempts
from penstock.errors import BadInput, PenstockError
from penstock.state import state_dir


@dataclass(frozen=True)
class StudyRow:
    """A study in the catalogue; `state` is 'running', 'stopped' or 'finished'."""

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
    folder = os.environ.get("PENSTOCK_ARCHIVE")
    if folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PenstockError(f"PENSTOCK_ARCHIVE {folder}: {error.strerror}") from error
        return Path(folder) / "archive.sqlite"
    return state_dir() / "archive.sqlite"


def open_index(wait_s: float = WAIT_S) -> Catalogue:
    """The index of all runs: `$PENSTOCK_CATALOGUE`, else the per-user file; `wait_s` as in `opened`."""
    return Catalogue(os.environ.get("PENSTOCK_CATALOGUE") or index_path(), wait_s)


Role = Literal["owner", "reader"]


@dataclass(frozen=True)
class Token:
    """Owner of a token and its role: to start and stop the owner's experiments, or only to read."""

    token_id: str
    owner: str
    role: Role
    made_realtime_ns: int


class Catalogue:
    """One catalogue, created if absent: SQLite for a path, PostgreSQL for a URL. Supports concurrent
    processes."""

    def __init__(self, place: Path | str, wait_s: float = WAIT_S) -> None:
        self.place = place
        self._engine = opened(place, wait_s)

    def put_study(
        self, out: Path, study_id: str, question: str, state: str, planned_runs: int
    ) -> None:
        """Add or update a study."""
        row = {
            "out": str(out),
            "study_id": study_id,
            "question": question,
            "state": state,
            "planned_runs": planned_runs,
        }
        self._replace(studies, [row])

    def put_runs(self, out: Path, bundles: Iterable[Bundle]) -> None:
        """Add or update bundles of a study."""
        self._replace(runs, [_run_row(out, bundle) for bundle in bundles])

    def forget(self, out: Path, run_ids: list[str] | None = None) -> None:
        """Remove a study, or some of its runs, from the catalogue (not from the disk)."""
        with self._engine.begin() as connection:
            if run_ids is None:
                connection.execute(studies.delete().where(studies.c.out == str(out)))
                connection.execute(runs.delete().where(runs.c.out == str(out)))
            else:
                selected = (runs.c.out == str(out)) & runs.c.run_id.in_(run_ids)
                connection.execute(runs.delete().where(selected))

    def rebuild(self, outs: Iterable[Path]) -> int:
        """Rebuild the catalogue from the bundles of these studies; returns the number of runs."""
        with self._engine.begin() as connection:
            for table in (runs, studies, tags):
                connection.execute(table.delete())
        return sum(self.adopt(out) for out in dict.fromkeys(o.resolve() for o in outs))

    def adopt(self, out: Path) -> int:
        """Add the study of one OUT directory; returns its number of attempts."""
        about = campaign_of(out)
        if about is None:
            return 0
        bundles = attempts(out)
        self.forget(out)
        done = {b.manifest["run_id"] for b in bundles}
        planned = int(about.get("planned_runs", len(done)))
        state = "finished" if len(done) >= planned else "stopped"
        self.put_study(out, about["study_id"], about.get("question", ""), state, planned)
        self.put_runs(out, as_analysed(out, bundles))
        return len(bundles)

    def studies(self) -> list[StudyRow]:
        """All studies, last run at the end."""
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
            rows = [dict(r) for r in connection.execute(query).mappings().all()]
        for row in rows:
            row["levels"] = json.loads(row["levels"] or "{}")
        return rows

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, row: dict[str, Any], tagged: Iterable[str]) -> bool:
        """Add a starting run; False if its name and attempt exist."""
        try:
            with self._engine.begin() as connection:
                connection.execute(runs.insert().values(row))
                _put_tags(connection, row, tagged)
        except sa.exc.IntegrityError:
            return False
        return True

    def put_run(self, row: dict[str, Any], tagged: Iterable[str]) -> None:
        """Add or update a run with its tags."""
        self._replace(runs, [row])
        with self._engine.begin() as connection:
            _put_tags(connection, row, tagged)

    def forget_run(self, out: str, run_id: str, attempt: int) -> None:
        """Remove one attempt and its tags."""
        with self._engine.begin() as connection:
            for table in (runs, tags):
                selected = (table.c.out == out) & (table.c.run_id == run_id)
                connection.execute(table.delete().where(selected & (table.c.attempt == attempt)))

    def search(
        self,
        *,
        name: str | None = None,
        attempt: int | None = None,
        seen_by: str | None = None,
        owner: str | None = None,
        tag: str | None = None,
        state: str | None = None,
        out: str | None = None,
        most: int = 100_000,
    ) -> list[dict[str, Any]]:
        """Runs that match all filters, latest start at the end, at most `most` of the newest.

        `seen_by`: those of this user and shared ones. Each has `tags` and `levels` as values.
        """
        query = sa.select(runs)
        equal = {"name": name, "attempt": attempt, "owner": owner, "state": state, "out": out}
        for column, value in equal.items():
            if value is not None:
                query = query.where(runs.c[column] == value)
        if seen_by is not None:
            query = query.where(sa.or_(runs.c.owner == seen_by, runs.c.shared))
        if tag is not None:
            same = (tags.c.out == runs.c.out) & (tags.c.run_id == runs.c.run_id)
            query = query.where(
                sa.exists().where(same & (tags.c.attempt == runs.c.attempt) & (tags.c.tag == tag))
            )
        begun = sa.func.coalesce(runs.c.start_realtime_ns, 0)
        query = query.order_by(begun.desc(), runs.c.name.desc(), runs.c.attempt.desc()).limit(most)
        with self._engine.connect() as connection:
            rows = [dict(r) for r in connection.execute(query).mappings().all()][::-1]
            tagged: dict[tuple[str, str, int], list[str]] = {}
            for t in connection.execute(sa.select(tags).order_by(tags.c.tag)).all():
                tagged.setdefault((t.out, t.run_id, t.attempt), []).append(t.tag)
        for row in rows:
            row["tags"] = tagged.get((row["out"], row["run_id"], row["attempt"]), [])
            row["levels"] = json.loads(row["levels"] or "{}")
        return rows

    def latest_attempt(self, out: str, run_id: str) -> int:
        """Latest attempt at a run, 0 if there is none."""
        query = sa.select(sa.func.max(runs.c.attempt)).where(
            (runs.c.out == out) & (runs.c.run_id == run_id)
        )
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar() or 0)

    def add_token(self, owner: str, role: Role) -> str:
        """A new token of a user; only its digest is stored, so it is shown only once."""
        if not 0 < len(owner) <= 100 or not owner.isprintable():
            raise BadInput(f"found user {owner[:80]!r}; expected 1 to 100 printable characters")
        secret = secrets.token_urlsafe(24)
        row = {
            "token_id": secrets.token_hex(4),
            "owner": owner,
            "role": role,
            "digest": _digest(secret),
            "made_realtime_ns": time.time_ns(),
        }
        with self._engine.begin() as connection:
            connection.execute(tokens.insert().values(row))
        return secret

    def token(self, secret: str) -> Token | None:
        """The token with this secret, None for an unknown one."""
        query = sa.select(tokens).where(tokens.c.digest == _digest(secret))
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _token(row)

    def tokens(self) -> list[Token]:
        """All tokens, by user."""
        query = sa.select(tokens).order_by(tokens.c.owner, tokens.c.made_realtime_ns)
        with self._engine.connect() as connection:
            return [_token(row) for row in connection.execute(query).mappings()]

    def revoke(self, token_id: str) -> bool:
        """Revoke a token; False for an unknown one."""
        with self._engine.begin() as connection:
            done = connection.execute(tokens.delete().where(tokens.c.token_id == token_id))
        return bool(done.rowcount)

    def _replace(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        """Replace rows with the same key, in one transaction and portable SQL."""
        keys = [c.name for c in table.primary_key.columns]
        with self._engine.begin() as connection:
            for row in {tuple(r[k] for k in keys): r for r in rows}.values():
                same = sa.and_(*(table.c[k] == row[k] for k in keys))
                if not connection.execute(table.update().where(same).values(row)).rowcount:
                    connection.execute(table.insert().values(row))


def _put_tags(connection: sa.Connection, row: Mapping[str, Any], tagged: Iterable[str]) -> None:
    key = {k: row[k] for k in ("out", "run_id", "attempt")}
    selected = sa.and_(*(tags.c[k] == v for k, v in key.items()))
    connection.execute(tags.delete().where(selected))
    rows = [{**key, "tag": tag} for tag in dict.fromkeys(tagged)]
    if rows:
        connection.execute(tags.insert(), rows)


def _digest(secret: str) -> str:
    """A token has 192 random bits, so no salt and no slow function are needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Any) -> Token:
    return Token(row["token_id"], row["owner"], row["role"], row["made_realtime_ns"])


def local_user() -> str:
    """Name of the user that runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def campaign_of(out: Path) -> dict[str, Any] | None:
    """Content of `OUT/campaign.json`, None if the directory is not one of penstock's studies."""
    try:
        about = json.loads((out / "campaign.json").read_text())
    except (OSError, ValueError):
        return None
    valid = isinstance(about, dict) and str(about.get("schema", "")).startswith(
        "penstock/campaign/"
    )
    return about if valid else None


def studies_below(root: Path, depth: int = 4) -> list[Path]:
    """Directories of studies at or under `root`, to `depth` levels, not inside each other."""
    if campaign_of(root) is not None:
        return [root]
    folders: list[Path] = []
    if depth > 0:
        try:
            children = sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink())
        except OSError:
            return []
        for child in children:
            if not child.name.startswith("."):
                folders += studies_below(child, depth - 1)
    return folders


def as_analysed(out: Path, bundles: list[Bundle]) -> list[Bundle]:
    """The bundles with the validity of the last analysis, whose rules may be newer than their own."""
    try:
        table = pq.read_table(
            out / "runs.parquet", columns=["run_id", "attempt", "valid", "reason"]
        )
    except (OSError, ValueError, KeyError):  # no analysis yet, or another program's file
        return bundles
    verdicts = {
        (str(row["run_id"]), row["attempt"]): {
            "valid": bool(row["valid"]),
            "reason": row["reason"] or "",
        }
        for row in table.to_pylist()
    }
    return [
        Bundle(
            b.path,
            {**b.manifest, **verdicts.get((b.manifest["run_id"], b.manifest["attempt"]), {})},
        )
        for b in bundles
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
        "name": f"{manifest['study_id']}/{manifest['run_id']}",
        "owner": manifest.get("owner") or local_user(),
        "shared": bool(manifest.get("shared", False)),
        "end_realtime_ns": times.get("end_realtime_ns"),
        "until_realtime_ns": None,
    }
