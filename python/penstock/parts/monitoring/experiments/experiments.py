"""Experiments: begun, marked, fed with points, ended; each leaves an ordinary one-run bundle.

    store = Experiments(catalogue, home)
    running = store.start("x", "ada", tags=["nightly"])
    store.mark(running, "begin", "load")
    store.sink(running).write(batch)
    store.stop(running)

While it runs, an experiment is a directory `.ID.live`: what it is (`head.json`), its marks (`marks.jsonl`)
and its points (`spool.Spool`); all of it is on the disk before it is acknowledged. At its end the points
become tables of the bundle `ID` beside it, and the directory goes. The catalogue is an index of both: after a
crash `resume` ends what was being ended, and all else goes on. Several processes may use one store.
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

#: what is removed is kept so long [s]
TRASH_S = 7 * 86_400
MOST_MARKS = 100_000
_MOST_WORDS = 4_000

Lines = list[dict[str, Any]]
MarkKind = Literal["begin", "end", "note"]
State = Literal["running", "ended", "aborted", "closed-by-timeout"]


def experiments_home() -> Path:
    """Where experiments lie: beside the index of studies. Private."""
    home = index_path().parent / "experiments"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PenstockError(f"{home}: {error.strerror}") from error
    return home


class Experiments:
    """A store of experiments in a directory, with the catalogue that knows them."""

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
        """Begins an experiment, or its next repeat. It is durable when this returns.

        `params` are levels of factors by name, `timeout_s` ends it where nobody does, `through` is the server
        that it is begun through. Raises Taken for a name
        that runs, and without `repeat` for one that has ended; BadInput for what cannot be.
        """
        name, asked = name_and_repeat(text)
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
        if asked is not None and asked != number:
            raise Taken(f"{text}: found {last} of that name; expected {name}#{number}")
        if last and asked is None and not repeat:
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
            # held until it has its name: `resume` of others knows then that it is being made
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
        """What a name means to a user: of their own the latest, else of what others share.

        A user of None may see all. Raises Unknown where there is none, Refused where it is not theirs
        `to_change`.
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
        """What a user may see, by any of these, the newest at the end. Phases and notes are left out."""
        rows = self.catalogue.search(seen_by=user, owner=owner, name=name, tag=tag, state=state)
        return [of_row(row) for row in rows]

    def begun_through(self, experiment: Experiment) -> str:
        """The server that one which runs was begun through; empty where that was none, or it has ended."""
        try:
            head, _ = _read_live(experiment.live)
        except FileNotFoundError:
            return ""
        return str(head.get("through", ""))

    def mark(
        self, experiment: Experiment, kind: MarkKind, words: str, at_ns: int | None = None
    ) -> Experiment:
        """Begins or ends a phase, or notes something; durable when this returns.

        A phase begun while another lasts is inside of it; ending one ends those inside. Raises Taken where
        the experiment has ended, or no such phase lasts.
        """
        most = 200 if kind != "note" else _MOST_WORDS
        if (
            not 0 < len(words) <= most
            or not words.isprintable()
            or (kind != "note" and "/" in words)
        ):
            raise BadInput(
                f"found {printable(words[:80])!r}; expected 1 to {most} printable characters"
                + ("" if kind == "note" else ", none of them a /")
            )
        said = {"kind": kind, "name": words, "utc_ns": time.time_ns() if at_ns is None else at_ns}

        def right(lines: Lines) -> None:
            if len(lines) >= MOST_MARKS:
                raise Taken(
                    f"{experiment.name} has {len(lines)} marks; expected {MOST_MARKS} at most"
                )
            lasting = [
                p.name.rpartition("/")[2] for p in phases_of(lines, None) if p.end_ns is None
            ]
            if kind == "end" and words not in lasting:
                raise Taken(
                    f"no phase {words} lasts; expected one of {', '.join(lasting) or 'none'}"
                )

        self._append_mark(experiment, said, right)
        return self._full(self._row_of(experiment))

    def sink(self, experiment: Experiment) -> Spool:
        """Where its points go."""
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
        """Ends it: its points become tables of its bundle. Raises Taken where it does not run.

        Where there is no room for the bundle PenstockError says so; the experiment has ended then, and
        `resume` makes the bundle.
        """
        at = time.time_ns() if at_ns is None else at_ns
        if at < experiment.start_ns:
            raise BadInput(
                f"found an end {experiment.start_ns - at} ns before the start; expected one after it"
            )
        said = {
            "kind": "stop",
            "name": state,
            "utc_ns": at,
            "exit_status": exit_status,
            "clocks": clock_row(),
            "facts": dict(facts or {}),
        }
        try:
            with self.sink(experiment).closing():
                append_line(experiment.live / "marks.jsonl", said)
        except (Closed, FileNotFoundError):
            raise Taken(f"{experiment.name}#{experiment.repeat} is not running") from None
        except OSError as error:
            raise PenstockError(f"{self.home}: {error.strerror}; it was not ended") from error
        return self._complete(experiment.live)

    def recorded(self, experiment: Experiment, metric: str | None = None) -> Recorded:
        """What it recorded, so far or in all.

        With `metric` of series of that name alone; while it runs, no other tells then of a restart.
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
        """Tells the catalogue of an experiment's bundle as it is now."""
        self._put(bundle)

    def remove(self, experiment: Experiment) -> Path:
        """Puts it into the trash, where it is kept for seven days. One that runs is ended before."""
        if not experiment.by_hand:
            raise Taken(f"{experiment.name} is a run of a study; expected penstock rm")
        if experiment.running:
            with contextlib.suppress(Taken):
                experiment = self.stop(experiment, state="aborted")
        trash = self.home / ".trash"
        trash.mkdir(mode=0o700, exist_ok=True)
        kept = trash / experiment.path.name
        with contextlib.suppress(FileNotFoundError):
            os.rename(experiment.path, kept)
            os.utime(kept)
        self.catalogue.forget_run(experiment.out, experiment.run_id, experiment.repeat)
        return kept

    def resume(
        self, ending: Callable[[Experiment, int], Mapping[str, Any]] = lambda _, __: {}
    ) -> list[Experiment]:
        """After a crash, and now and then: ends what was being ended or is over its time, empties the trash.

        `ending` is told before one is ended that is over its time, and when that was, and gives facts for
        `stop`. Gives the experiments that go on.
        """
        self._empty_trash()
        for live in self.home.glob("*/.*.live"):
            if not (live / "lock").exists():
                with contextlib.suppress(PenstockError):  # still no room: the next time
                    self._complete(live)
        going_on = []
        for row in self.catalogue.search(state="running"):
            if not row["out"].startswith(f"{self.home}{os.sep}"):
                continue
            experiment = of_row(row)
            until = row["until_realtime_ns"]
            draft = experiment.path.with_name(f".{experiment.path.name}.new")
            if _being_made(draft):
                continue
            # in this order: a draft that has its name by now is there
            if not experiment.live.is_dir() and not experiment.path.is_dir():
                # begun by a process that was killed before it was acknowledged
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
        """Adds to the catalogue what lies in the directory; gives how many there are."""
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
        """From the directory of one that has ended to its bundle; may be begun anew at any point."""
        path = live.with_name(live.name.removeprefix(".").removesuffix(".live"))
        if not path.is_dir():
            head, lines = _read_live(live)
            ended = of_head(head, lines, live)
            assert ended.end_ns is not None
            made = recorded(Spool(live).batches(), ended.start_ns, ended.end_ns)
            try:
                with _one_at_a_time(live):
                    if not path.is_dir():
                        write_bundle(path, ended, head, lines, made)
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
        """With its phases and notes."""
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
        said: dict[str, Any],
        right: Callable[[Lines], None],
    ) -> None:
        live = experiment.live
        try:
            with Spool(live)._held(fcntl.LOCK_SH), _one_at_a_time(live):
                right(read_lines(live / "marks.jsonl"))
                append_line(live / "marks.jsonl", said)
        except (Closed, FileNotFoundError):
            raise Taken(f"{experiment.name}#{experiment.repeat} is not running") from None
        except OSError as error:
            raise PenstockError(f"{self.home}: {error.strerror}; the mark was not kept") from error

    def _empty_trash(self) -> None:
        for kept in (self.home / ".trash").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - kept.lstat().st_mtime > TRASH_S:
                    shutil.rmtree(kept)


def _read_live(live: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return json.loads((live / "head.json").read_bytes()), read_lines(live / "marks.jsonl")


@contextlib.contextmanager
def _one_at_a_time(live: Path) -> Iterator[None]:
    """Held by who appends marks, or makes the bundle."""
    with open(live / "head.json", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _being_made(draft: Path) -> bool:
    """Whether a process is just now beginning the experiment of this directory."""
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
