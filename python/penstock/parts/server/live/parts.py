"""What a live page shows, part by part; each is looked at again no sooner than it is worth."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.bundle import Bundle
from penstock.emulate.cluster.cluster import Cluster, registered
from penstock.emulate.disks import persistent
from penstock.errors import PenstockError
from penstock.host.journal.announce import Announced
from penstock.host.journal.journal import new_token
from penstock.observe.trace.show.live import Look
from penstock.observe.trace.verdicts.patterns import sentence
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.server.live.use import Document, Use
from penstock.state import runtime_dir

#: of what a process has, what one part may take
_SHARE = 0.015
#: what ended, and what was found, that a page is given
_MOST_FOUND = 100
_MOST_EXPERIMENTS = 50
#: an experiment that recorded more is not judged while it runs
_MOST_JUDGED_BYTES = 16 << 20
Event = tuple[str, Any]


def state() -> Document:
    """Everything that is up: clusters with their nodes, disks without one. What is just going is left out."""
    clusters = []
    for name in registered():
        try:
            clusters.append(Cluster.find(name).whole_status())
        except PenstockError:
            continue
    try:
        disks = persistent.status()
    except PenstockError:
        disks = []
    return {"t_ns": time.monotonic_ns(), "clusters": clusters, "disks": disks}


class Paced:
    """Something that is made again every `every_s` seconds, and less often where it takes long."""

    def __init__(self, make: Callable[[], Any], every_s: float) -> None:
        self._make = make
        self._every_s = every_s
        self._due = 0.0
        self.value: Any = None

    def fresh(self) -> bool:
        """Makes it again if it is due; whether it did."""
        now = time.monotonic()
        if now < self._due:
            return False
        before = time.thread_time()
        self.value = self._make()
        self._due = now + max(self._every_s, (time.thread_time() - before) / _SHARE)
        return True

    def at_once(self) -> None:
        """It is due."""
        self._due = 0.0


class Parts:
    """The parts of the page. Each of `looks` gives what changed since the last, `snapshot` all there is.

    Samples are looked at apart: they do not wait for a supervisor, a tracer or a catalogue that is slow.
    """

    def __init__(self, store: Callable[[], Experiments]) -> None:
        self._store = store
        #: of samples and announcements; of all else
        self._lock, self._slow = threading.Lock(), threading.Lock()
        #: somebody looks; a look that comes too late begins nothing
        self.awake = False
        self._announced = Announced()
        self._use = Use()
        self._said: list[Document] = []
        #: events of announcements that the slow look has not taken yet
        self._logged: list[Document] = []
        self._state = Paced(state, 0.2)
        self._running = Paced(self._experiments, 1.0)
        self._patterns = Paced(self._looks, 1.0)
        #: by announcement and what it traces now: a study has a trace for each of its runs
        self._looking: dict[tuple[str, str], Look] = {}
        self._completeness: dict[Path, Paced] = {}
        self._last: dict[str, Any] = {}
        #: studies that were seen, by id of what announced them
        self._studies: dict[str, _Watched] = {}
        self._ended: list[Document] = []
        self._found: list[Document] = []

    @property
    def looks(self) -> Sequence[Callable[[], list[Event]]]:
        """The looks, which may be made at the same time."""
        return self._quick_look, self._slow_look

    def _quick_look(self) -> list[Event]:
        with self._lock:
            if not self.awake:
                return []
            self._said = self._announced.look()
            logged = self._announced.events()
            self._logged += logged
            made: list[Event] = [("phase", _phase(e)) for e in logged if e["event"] == "phase"]
            made += [("use", told) for told in self._use.look(self._said)]
            return made + self._changed("now", [_shown(said) for said in self._said])

    def _slow_look(self) -> list[Event]:
        with self._slow:
            if not self.awake:
                return []
            made: list[Event] = []
            if self._state.fresh():
                made += self._changed("state", self._state.value, without="t_ns")
            if self._running.fresh():
                made += self._changed("experiments", self._running.value)
            if self._patterns.fresh():
                made += self._changed("patterns", self._patterns.value)
            made += self._of_studies()
            return made

    def snapshot(self) -> list[Event]:
        """All that there is to see."""
        with self._lock:
            now, history = [_shown(said) for said in self._said], self._use.history()
        nothing = {"t_ns": time.monotonic_ns(), "clusters": [], "disks": []}
        return [
            ("state", self._state.value or nothing),
            ("now", now),
            ("experiments", self._running.value or []),
            ("patterns", self._patterns.value or []),
            ("history", history),
            ("ended", self._ended),
            ("found", self._found),
        ]

    def rest(self) -> None:
        """Nobody looks: nothing of ours goes on."""
        with self._lock:
            self._use.close()
            self._announced.close()
            self._logged = []
        with self._slow:
            for look in self._looking.values():
                look.close()
            self._looking = {}

    def _changed(self, name: str, value: Any, without: str = "") -> list[Event]:
        told = {k: v for k, v in value.items() if k != without} if without else value
        moving = name == "state" and bool(value["clusters"] or value["disks"])
        if not moving and self._last.get(name) == told:
            return []
        self._last[name] = told
        return [(name, value)]

    # --- experiments ----------------------------------------------------------------------------

    def _experiments(self) -> list[Document]:
        try:
            store = self._store()
            found = store.listed(None, state="running")[-_MOST_EXPERIMENTS:]
            rows = []
            for experiment in found:
                with contextlib.suppress(PenstockError):
                    rows.append(self._experiment(store, experiment))
        except (PenstockError, OSError) as error:
            return [{"name": "", "trouble": str(error)}]
        living = {e.path for e in found}
        self._completeness = {p: c for p, c in self._completeness.items() if p in living}
        return rows

    def _experiment(self, store: Experiments, experiment: Experiment) -> Document:
        whole = store.find(f"{experiment.name}#{experiment.repeat}", experiment.owner)
        paced = self._completeness.setdefault(
            experiment.path, Paced(lambda: _completeness(store, whole), 5.0)
        )
        paced.fresh()
        lasting = [p for p in whole.phases if p.end_ns is None]
        return {
            "name": whole.name,
            "repeat": whole.repeat,
            "user": whole.owner,
            "shared": whole.shared,
            "start_ms": whole.start_ns / 1e6,
            "tags": list(whole.tags),
            "phase": lasting[-1].name if lasting else "",
            "phases": len(whole.phases),
            "notes": [text for _, text in whole.notes[-3:]],
            "recorded": paced.value,
        }

    # --- patterns -------------------------------------------------------------------------------

    def _looks(self) -> list[Document]:
        tracers = {
            (said["id"], str(said["sources"]["trace"])): said
            for said in list(self._said)
            if isinstance(said.get("sources"), dict) and said["sources"].get("trace")
        }
        for gone in self._looking.keys() - tracers.keys():
            self._looking.pop(gone).close()
        found = []
        for key, said in tracers.items():
            with contextlib.suppress(PenstockError, OSError, ValueError, KeyError):
                if key not in self._looking:
                    sample = runtime_dir() / f"live-sample-{new_token()}"
                    named = not said.get("anonymous")
                    self._looking[key] = Look(said["sources"]["trace"], sample, named=named)
                status, rows = self._looking[key].look()
                found.append(
                    {
                        "source": said["id"],
                        "name": said["name"],
                        **{k: status.get(k) for k in ("seen", "kept", "lost", "bytes")},
                        "files": [_pattern(row) for row in rows],
                    }
                )
        return found

    # --- studies --------------------------------------------------------------------------------

    def _of_studies(self) -> list[Event]:
        """Runs that ended since the last look, alerts that fired, findings once there are any."""
        made: list[Event] = []
        with self._lock:
            logged, self._logged = self._logged, []
            announced = list(self._said)
        told = [{**event, event["event"]: [event["item"]]} for event in logged if "item" in event]
        begun = [event for event in logged if event["event"] == "begun"]
        for said in [*begun, *told, *announced]:
            watched = self._studies.get(said["id"])
            if watched is None:
                watched = self._studies[said["id"]] = _Watched(said)
            for ended in watched.ended(said):
                self._ended = [*self._ended, ended][-_MOST_FOUND:]
                made.append(("ended", [ended]))
            for found in watched.alerts(said):
                self._found = [*self._found, found][-_MOST_FOUND:]
                made.append(("found", [found]))
        present = {said["id"] for said in announced}
        for key in [k for k in self._studies if k not in present]:
            for found in self._studies.pop(key).findings():
                self._found = [*self._found, found][-_MOST_FOUND:]
                made.append(("found", [found]))
        return made


class _Watched:
    """What was told of one announcement already."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._id = str(said["id"])
        self._name = str(said.get("name", ""))
        self._out = Path(said["out"]) if isinstance(said.get("out"), str) else None
        self._runs: set[tuple[str, int]] = set()
        self._alerts: set[str] = set()
        # findings of an earlier time are not those of this one
        mark = self._mark()
        self._before = mark if mark and mark[0] < _ns(said.get("began_utc_ns")) else None

    def ended(self, said: Mapping[str, Any]) -> list[Document]:
        """Runs that ended since this was asked, as their bundles tell."""
        made = []
        for one in said.get("ended") or []:
            key = (Path(str(one.get("run_id"))).name, int(one.get("attempt", 1)))
            if key not in self._runs and self._out is not None:
                self._runs.add(key)
                with contextlib.suppress(PenstockError, OSError, ValueError, KeyError):
                    made.append(self._ended(self._out / "runs" / key[0]))
        return made

    def _ended(self, path: Path) -> Document:
        manifest = Bundle.open(path).manifest
        responses = manifest.get("responses") or {}
        return {
            "id": f"{self._id}:{manifest['run_id']}:{manifest['attempt']}",
            "study": self._name,
            **{k: manifest.get(k) for k in ("run_id", "attempt", "levels", "state", "valid")},
            "reason": str(manifest.get("reason") or "")[:300],
            "wall_s": (manifest.get("times") or {}).get("wall_s"),
            "responses": dict(list(responses.items())[:4]),
            "utc_ms": time.time() * 1e3,
            "disks": certificates(path),
        }

    def alerts(self, said: Mapping[str, Any]) -> list[Document]:
        """Alert rules that fired since this was asked."""
        made = []
        for row in said.get("alerts") or []:
            key = json.dumps([row.get(k) for k in ("run_id", "rule", "entity", "since_ns")])
            if key not in self._alerts:
                self._alerts.add(key)
                aborts = row.get("action") == "abort"
                made.append(
                    {
                        "id": f"{self._id}:{key}",
                        "study": " ".join(filter(None, (self._name, row.get("run_id")))),
                        "code": "alert-fired",
                        "severity": "error" if aborts else "warning",
                        "text": str(row.get("words", ""))[:500],
                        "utc_ms": _ns(row.get("utc_ns")) / 1e6,
                    }
                )
        return made

    def _mark(self) -> tuple[int, int] | None:
        if self._out is None:
            return None
        with contextlib.suppress(OSError):
            status = (self._out / "findings.parquet").stat()
            return status.st_mtime_ns, status.st_ino
        return None

    def findings(self) -> list[Document]:
        """Those of the analysis, which ended it."""
        if self._out is None or self._mark() in (None, self._before):
            return []
        with contextlib.suppress(OSError, ValueError, KeyError):
            rows = pq.read_table(self._out / "findings.parquet").to_pylist()
            return [
                {
                    "id": f"{self._id}:{number}",
                    "study": self._name,
                    "code": row["code"],
                    "severity": row["severity"],
                    "text": row["statement"][:1000],
                    "utc_ms": time.time() * 1e3,
                }
                for number, row in enumerate(rows[:_MOST_FOUND])
            ]
        return []


def certificates(path: Path) -> list[Document]:
    """The verdict on each emulated disk of a bundle: the worst of its metrics, and why."""
    try:
        rows = pq.read_table(path / "fidelity.parquet").to_pylist()
    except (OSError, ValueError):
        return []
    found: dict[str, Document] = {}
    for row in rows:
        disk = str(row.get("disk_id") or "")
        one = found.setdefault(disk, {"disk": disk, "valid": True, "reason": "", "metrics": 0})
        one["metrics"] += 1
        if row.get("valid") is False:
            one["valid"] = False
            one["reason"] = one["reason"] or str(row.get("reason") or "")[:200]
    return list(found.values())


def _completeness(store: Experiments, experiment: Experiment) -> Document:
    """What it recorded so far, and how completely; of what is much only how many bytes."""
    live = experiment.live
    size = sum(f.stat().st_size for f in live.iterdir()) if live.is_dir() else 0
    if size > _MOST_JUDGED_BYTES:
        return {"bytes": size}
    made = store.recorded(experiment)
    return {
        "verdict": made.verdict,
        "series": made.series.num_rows,
        "points": int(pc.sum(made.series["stored"]).as_py() or 0),
        "lost": made.lost,
    }


def _pattern(row: Mapping[str, Any]) -> Document:
    verdict = row["verdict"]
    return {
        **{k: row.get(k) for k in ("path", "direction", "calls", "time_ns", "bytes")},
        "class": verdict["class"] if verdict else "",
        "sentence": sentence(verdict) if verdict else "",
    }


def _phase(event: Mapping[str, Any]) -> Document:
    """The begin of a phase: of a run, or of the study where `run_id` is empty."""
    return {
        "id": event["id"],
        "study": str(event.get("name") or ""),
        **{key: event.get(key) for key in ("run_id", "attempt", "levels", "phase")},
        "utc_ms": _ns(event.get("utc_ns")) / 1e6,
    }


#: of what a process announces, what a page is given
_SHOWN = (
    *("id", "kind", "name", "began_utc_ns", "study_id", "question", "planned", "done_before"),
    *("left", "left_s", "made", "failed", "invalid", "runs", "host", "analysing"),
)


def _shown(said: Mapping[str, Any]) -> Document:
    told = {k: said[k] for k in _SHOWN if said.get(k) is not None}
    told["began_ms"] = told.pop("began_utc_ns", 0) / 1e6
    told["runs"] = [
        {**{k: v for k, v in run.items() if k != "began_utc_ns"}, "began_ms": _ms(run)}
        for run in _dicts(said.get("runs"))
    ]
    return told


def _ns(said: Any) -> int:
    return said if isinstance(said, int) else time.time_ns()


def _ms(run: Mapping[str, Any]) -> float:
    return float(run.get("began_utc_ns") or 0) / 1e6


def _dicts(said: Any) -> Sequence[dict[str, Any]]:
    return [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
