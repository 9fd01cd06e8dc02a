"""Experiments: started, marked, fed with points, stopped; each produces an ordinary one-run bundle.

    store = Experiments(catalogue, home)
    running = store.start("x", "ada", tags=["nightly"])
    store.mark(running, "begin", "load")
    store.sink(running).write(batch)
    store.stop(running)

A running experiment is a directory `.ID.live` with its description (`head.json`), its marks (`marks.jsonl`)
and its points (`spool.Spool`); each is on the disk before it is acknowledged. At the end the points become
tables of the bundle `ID` in the same directory, and `.ID.live` is removed. The catalogue is an index of both:
after a crash `resume` completes interrupted stops; other experiments continue. Several processes may use one
store.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.catalogue import Catalogue, index_path
from penstock.errors import BadInput, PenstockError, Refused, printable
from penstock.host.probe.facts import host_facts
from penstock.parts.monitoring.experiments.experiment import (
    Experiment,
    Taken,
    Unknown,
    checked_params,
    checked_tags,
    of_head,
    of_row,
    phases_of,
    row_of,
)
from penstock.parts.monitoring.experiments.experiment_bundle import (
    clock_row,
    of_bundle,
    run_phases,
    write_bundle,
)
from penstock.parts.monitoring.experiments.points import Closed
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded, recorded_in, span_of
from penstock.parts.monitoring.experiments.spool import Spool
from penstock.parts.monitoring.experiments.timestamps import name_and_repeat
from penstock.parts.monitoring.outbox.lines import append_line, read_lines
from penstock.writing import sync

#: time that removed experiments stay in the trash [s]
TRASH_S = 7 * 86_400
MOST_MARKS = 100_000
_MOST_TEXT = 4_000

Lines = list[dict[str, Any]]
MarkKind = Literal["begin", "end", "note"]
State = Literal["running", "ended", "aborted", "closed-by-timeout"]


def experiments_home() -> Path:
    """Directory of experiments, beside the index of studies; private."""
    home = index_path().parent / "experiments"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PenstockError(f"{home}: {error.strerror}") from error
    return home


class Experiments:
    """A store of experiments in a directory, indexed by a catalogue."""

    def __init__(self, catalogue: Catalogue, home: Path) -> None:
        self.catalogue = catalogue
        self.home = home
        self._spools: dict[Path, Spool] = {}

    def start(
        self,
        text: str,
        owner: str,
        *,
        at_ns: int | None = None,
        params: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        repeat: bool = True,
        shared: bool = False,
        timeout_s: float | None = None,
        facts: Mapping[str, Any] | None = None,
        through: str = "",
    ) -> Experiment:
        """Start an experiment, or its next repeat. It is durable when this returns.

        `params`: levels of factors by name; `timeout_s`: time after which it is ended; `through`: the server
        that started it. Raises Taken for the name of a running experiment, and without `repeat` for that of
        one that has ended; BadInput for invalid values.
        """
        name, requested = name_and_repeat(text)
        tagged = checked_tags(tags)
        levels = checked_params(params or {})
        if timeout_s is not None and not 0 < timeout_s <= 10 * 365 * 86_400:
            raise BadInput(
                f"found timeout {timeout_s:g} s; expected more than 0, ten years at most"
            )
        out = self.home / quote(owner, safe="")
        last = self.catalogue.latest_attempt(str(out), name)
        number = last + 1
        for row in self.catalogue.search(name=name, owner=owner, state="running"):
            raise Taken(
                f"{name}#{row['attempt']} is running; expected that it had ended, as "
                f"`penstock monitor stop {shlex.quote(name)}` ends one that was left so"
            )
        if requested is not None and requested != number:
            raise Taken(f"{text}: found {last} of that name; expected {name}#{number}")
        if last and requested is None and not repeat:
            raise Taken(f"{name} was there before; expected another name, or `repeat`")
        at = time.time_ns() if at_ns is None else at_ns
        path = out / f"{quote(name, safe='')[:100]}.{number}-{secrets.token_hex(4)}"
        begun = Experiment(
            name, number, owner, shared, "running", at, None, levels, tagged, path, str(out), name
        )
        head = {
            **begun.document(),
            "id": path.name,
            "until_ns": None if timeout_s is None else at + round(timeout_s * 1e9),
            "clocks": clock_row(),
            "facts": {"host": host_facts(), **(facts or {})},
            "through": through,
        }
        draft = path.with_name(f".{path.name}.new")
        try:
            out.mkdir(mode=0o700, exist_ok=True)
            Spool.create(draft)
            append_line(draft / "head.json", head)
            (draft / "marks.jsonl").touch(mode=0o600)
            # locked until it is renamed: `resume` of another process sees then that it is being created
            with _one_at_a_time(draft):
                if not self.catalogue.start(row_of(begun, head["until_ns"]), tagged):
                    raise Taken(f"{name}#{number} has just been started; expected another name")
                try:
                    os.rename(draft, begun.live)
                    sync(out)
                except OSError:
                    self.catalogue.forget_run(str(out), name, number)
                    raise
        except OSError as error:
            raise PenstockError(f"{self.home}: {error.strerror}; {name} was not begun") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return begun

    def find(self, text: str, user: str | None, *, to_change: bool = False) -> Experiment:
        """The latest experiment of that name: the user's own, else one that another user shares.

        A user of None may see all. Raises Unknown where there is none, Refused where only its owner may do so
        (`to_change`).
        """
        name, repeat = name_and_repeat(text)
        rows = self.catalogue.search(name=name, attempt=repeat, seen_by=user)
        own = [r for r in rows if r["owner"] == user] or rows
        if not own:
            raise Unknown(f"found no experiment {printable(text)}")
        if len({r["owner"] for r in own}) > 1:
            owners = ", ".join(sorted({r["owner"] for r in own}))
            raise Taken(f"{name} is shared by {owners}; expected one of your own, or another name")
        # the newest by its start, and the highest repeat of it
        row = max(own, key=lambda r: (r["out"] == own[-1]["out"], r["attempt"]))
        if to_change and user is not None and row["owner"] != user:
            raise Refused(f"{name} is of {row['owner']}, who alone may change it")
        return self._full(row)

    def listed(
        self,
        user: str | None,
        *,
        owner: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        state: str | None = None,
    ) -> list[Experiment]:
        """Experiments that a user may see, filtered by these, the newest last; without phases and notes."""
        rows = self.catalogue.search(seen_by=user, owner=owner, name=name, tag=tag, state=state)
        return [of_row(row) for row in rows]

    def begun_through(self, experiment: Experiment) -> str:
        """The server that started a running experiment; empty if there was none, or it has ended."""
        try:
            head, _ = _read_live(experiment.live)
        except FileNotFoundError:
            return ""
        return str(head.get("through", ""))

    def mark(
        self, experiment: Experiment, kind: MarkKind, text: str, at_ns: int | None = None
    ) -> Experiment:
        """Begin or end a phase, or add a note; durable when this returns.

        A phase begun during another is inside of it; ending one ends those inside. Raises Taken where
        the experiment has ended, or no such phase lasts, BadInput for an end before its begin.
        """
        most = 200 if kind != "note" else _MOST_TEXT
        if not 0 < len(text) <= most or not text.isprintable() or (kind != "note" and "/" in text):
            raise BadInput(
                f"found {printable(text[:80])!r}; expected 1 to {most} printable characters"
                + ("" if kind == "note" else ", none of them a /")
            )
        utc_ns = time.time_ns() if at_ns is None else at_ns
        line = {"kind": kind, "name": text, "utc_ns": utc_ns}

        def right(lines: Lines) -> None:
            if len(lines) >= MOST_MARKS:
                raise Taken(
                    f"{experiment.name} has {len(lines)} marks; expected {MOST_MARKS} at most"
                )
            if kind == "end":
                begun_ns = _begun_ns(lines, text)
                if at_ns is not None and at_ns < begun_ns:
                    raise BadInput(
                        f"found an end {begun_ns - at_ns} ns before the begin of {text} or a phase in it; "
                        "expected one after it"
                    )
                line["utc_ns"] = max(utc_ns, begun_ns)

        self._append_mark(experiment, line, right)
        return self._full(self._row_of(experiment))

    def sink(self, experiment: Experiment) -> Spool:
        """The sink of its points."""
        live = experiment.live
        return self._spools.setdefault(live, Spool(live))

    def stop(
        self,
        experiment: Experiment,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        state: State = "ended",
        facts: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """End it: its points become tables of its bundle. Raises Taken if it is not running.

        Raises PenstockError if there is no space for the bundle; the experiment has ended then, and `resume`
        creates the bundle later.
        """
        at = time.time_ns() if at_ns is None else at_ns
        if at < experiment.start_ns:
            raise BadInput(
                f"found an end {experiment.start_ns - at} ns before the start; expected one after it"
            )
        line = {
            "kind": "stop",
            "name": state,
            "utc_ns": at,
            "exit_status": exit_status,
            "clocks": clock_row(),
            "facts": dict(facts or {}),
        }
        try:
            with self.sink(experiment).closing():
                append_line(experiment.live / "marks.jsonl", line)
        except (Closed, FileNotFoundError):
            raise Taken(f"{experiment.name}#{experiment.repeat} is not running") from None
        except OSError as error:
            raise PenstockError(f"{self.home}: {error.strerror}; it was not ended") from error
        return self._complete(experiment.live)

    def recorded(self, experiment: Experiment, metric: str | None = None) -> Recorded:
        """Recorded tables of the experiment, so far or complete.

        With `metric` only series of that name; while it runs, restarts are then detected from these alone.
        """
        if experiment.live.is_dir():
            with contextlib.suppress(FileNotFoundError):
                end_ns = experiment.end_ns or time.time_ns()
                batches = Spool(experiment.live).batches(metric)
                return recorded(batches, experiment.start_ns, end_ns, running=experiment.running)
        try:
            return recorded_in(Bundle.open(experiment.path), metric)
        except FileNotFoundError:
            raise Unknown(f"{experiment.name}: its bundle is gone") from None

    def index(self, bundle: Bundle) -> None:
        """Update the catalogue's row of an experiment's bundle."""
        self._put(bundle)

    def remove(self, experiment: Experiment) -> Path:
        """Move it to the trash, where it stays for seven days. A running experiment is ended first."""
        if not experiment.by_hand:
            raise Taken(f"{experiment.name} is a run of a study; expected penstock rm")
        if experiment.running:
            with contextlib.suppress(Taken):
                experiment = self.stop(experiment, state="aborted")
        trash = self.home / ".trash"
        trash.mkdir(mode=0o700, exist_ok=True)
        trashed = trash / experiment.path.name
        with contextlib.suppress(FileNotFoundError):
            os.rename(experiment.path, trashed)
            os.utime(trashed)
        self.catalogue.forget_run(experiment.out, experiment.run_id, experiment.repeat)
        return trashed

    def resume(
        self, ending: Callable[[Experiment, int], Mapping[str, Any]] = lambda _, __: {}
    ) -> list[Experiment]:
        """Complete interrupted stops, stop experiments that timed out, and empty the trash.

        To be called after a crash and regularly. `ending` is called with an experiment that timed out and the
        time of that, before it is ended; it returns facts for `stop`. Returns the experiments that continue.
        """
        self._empty_trash()
        for live in self.home.glob("*/.*.live"):
            if not (live / "lock").exists():
                with contextlib.suppress(PenstockError):  # still no space: the next time
                    self._complete(live)
        going_on = []
        for row in self.catalogue.search(state="running"):
            if not row["out"].startswith(f"{self.home}{os.sep}"):
                continue
            experiment = of_row(row)
            until = row["until_realtime_ns"]
            draft = experiment.path.with_name(f".{experiment.path.name}.new")
            if _being_created(draft):
                continue
            # in this order: a draft may just have been renamed
            if not experiment.live.is_dir() and not experiment.path.is_dir():
                # its process was killed before the start was acknowledged
                self.catalogue.forget_run(row["out"], row["run_id"], row["attempt"])
                shutil.rmtree(draft, ignore_errors=True)
            elif until is not None and until < time.time_ns():
                facts = ending(experiment, until)
                with contextlib.suppress(Taken):
                    self.stop(experiment, at_ns=until, state="closed-by-timeout", facts=facts)
            else:
                going_on.append(experiment)
        return going_on

    def adopt(self) -> int:
        """Add the experiments of the directory to the catalogue; returns their number."""
        number = 0
        for path in sorted(self.home.glob("*/*/manifest.json")):
            if path.parent.parent.name.startswith("."):
                continue
            self._put(Bundle.open(path.parent))
            number += 1
        for live in sorted(self.home.glob("*/.*.live")):
            head, lines = _read_live(live)
            begun = of_head(head, lines, live)
            self.catalogue.put_run(row_of(begun, head["until_ns"]), begun.tags)
            number += 1
        return number

    def _complete(self, live: Path) -> Experiment:
        """Convert the live directory of an ended experiment to its bundle; repeatable after a crash."""
        path = live.with_name(live.name.removeprefix(".").removesuffix(".live"))
        if not path.is_dir():
            head, lines = _read_live(live)
            ended = of_head(head, lines, live)
            assert ended.end_ns is not None
            tables = recorded(Spool(live).batches(), ended.start_ns, ended.end_ns)
            try:
                with _one_at_a_time(live):
                    if not path.is_dir():
                        write_bundle(path, ended, head, lines, tables)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise PenstockError(
                    f"{self.home}: {reason}; {ended.name} has ended, its bundle is still to be made"
                ) from error
        bundle = Bundle.open(path)
        self._put(bundle)
        self._spools.pop(live, None)
        shutil.rmtree(live, ignore_errors=True)
        return of_bundle(bundle)

    def _put(self, bundle: Bundle) -> None:
        ended = of_bundle(bundle)
        row = row_of(ended, None)
        row["size_bytes"] = directory_bytes(bundle.path)
        row["reason"] = bundle.manifest["reason"]
        self.catalogue.put_run(row, ended.tags)

    def _row_of(self, experiment: Experiment) -> dict[str, Any]:
        rows = self.catalogue.search(
            name=experiment.name, attempt=experiment.repeat, out=experiment.out
        )
        if not rows:
            raise Unknown(f"found no experiment {experiment.name}#{experiment.repeat}")
        return rows[-1]

    def _full(self, row: Mapping[str, Any]) -> Experiment:
        """The experiment of a row, with its phases and notes."""
        experiment = of_row(row)
        if experiment.by_hand:
            with contextlib.suppress(FileNotFoundError):
                return of_head(*_read_live(experiment.live), experiment.live)
        with contextlib.suppress(FileNotFoundError, PenstockError):
            bundle = Bundle.open(experiment.path)
            if experiment.by_hand:
                return of_bundle(bundle)
            start, end = span_of(bundle)
            return Experiment(
                **{
                    **vars(experiment),
                    "start_ns": start,
                    "end_ns": end,
                    "phases": run_phases(bundle),
                }
            )
        return experiment

    def _append_mark(
        self,
        experiment: Experiment,
        line: dict[str, Any],
        right: Callable[[Lines], None],
    ) -> None:
        live = experiment.live
        try:
            with Spool(live)._locked(fcntl.LOCK_SH), _one_at_a_time(live):
                right(read_lines(live / "marks.jsonl"))
                append_line(live / "marks.jsonl", line)
        except (Closed, FileNotFoundError):
            raise Taken(f"{experiment.name}#{experiment.repeat} is not running") from None
        except OSError as error:
            raise PenstockError(
                f"{self.home}: {error.strerror}; the mark was not stored"
            ) from error

    def _empty_trash(self) -> None:
        for path in (self.home / ".trash").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > TRASH_S:
                    shutil.rmtree(path)


def _begun_ns(lines: Lines, name: str) -> int:
    """Begin of a phase that lasts, or of the last phase in it [ns since 1970 UTC].

    Raises Taken if no phase of that name lasts.
    """
    lasting = [p for p in phases_of(lines, None) if p.end_ns is None]
    names = [p.name.rpartition("/")[2] for p in lasting]
    if name not in names:
        raise Taken(f"no phase {name} lasts; expected one of {', '.join(names) or 'none'}")
    inner = lasting[len(names) - 1 - names[::-1].index(name) :]
    return max(p.start_ns for p in inner)


def _read_live(live: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return json.loads((live / "head.json").read_bytes()), read_lines(live / "marks.jsonl")


@contextlib.contextmanager
def _one_at_a_time(live: Path) -> Iterator[None]:
    """Lock of the writer of marks or of the bundle."""
    with open(live / "head.json", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _being_created(draft: Path) -> bool:
    """True while a process is starting the experiment of this directory."""
    try:
        with open(draft / "head.json", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def adopt_experiments(catalogue: Catalogue) -> int:
    """Enter the experiments of this user into a catalogue that was emptied; returns their number."""
    return Experiments(catalogue, experiments_home()).adopt()
