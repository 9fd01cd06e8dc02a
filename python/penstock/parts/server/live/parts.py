"""Live state of clusters, studies, experiments and access patterns, polled at a limited rate."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.archive.bundle import Bundle
from penstock.emulate.cluster.cluster import Cluster, registered
from penstock.emulate.disks import persistent
from penstock.errors import PenstockError
from penstock.host.journal.announce import Announced
from penstock.host.journal.journal import new_token
from penstock.observe.trace.show.live import Look
from penstock.observe.trace.verdicts.patterns import sentence
from penstock.parts.server.live.use import Utilisation
from penstock.routes.server import Document
from penstock.routes.throttled import Throttled
from penstock.state import runtime_dir

#: maximum number of ended runs and of findings
_MOST_FINDINGS = 100
Event = tuple[str, Any]


def state() -> Document:
    """Live clusters with their nodes, and disks without a node; without clusters that are being stopped."""
    clusters = []
    for name in registered():
        try:
            clusters.append(Cluster.find(name).full_status())
        except PenstockError:
            continue
    try:
        disks = persistent.status()
    except PenstockError:
        disks = []
    return {"t_ns": time.monotonic_ns(), "clusters": clusters, "disks": disks}


class LiveState:
    """Sources of the live page.

    Each of `polls` returns changes since its last call, `snapshot` the complete state.

    Samples have a poll of their own, which does not wait for a slow supervisor, tracer or catalogue.
    """

    def __init__(self, running_experiments: Callable[[], list[Document]]) -> None:
        #: lock of samples and announcements; lock of all other sources
        self._lock, self._slow_lock = threading.Lock(), threading.Lock()
        #: False after `suspend`: a late poll starts nothing
        self.active = False
        self._announcement_reader = Announced()
        self._use = Utilisation()
        self._announcements: list[Document] = []
        #: logged events that the slow poll has not processed
        self._logged: list[Document] = []
        self._state = Throttled(state, 0.2)
        self._running = Throttled(running_experiments, 1.0)
        self._patterns = Throttled(self._tracer_patterns, 1.0)
        #: by announcement and traced spool: every run of a study has its own trace
        self._trace_views: dict[tuple[str, str], Look] = {}
        self._last: dict[str, Any] = {}
        #: studies by id of their announcement
        self._studies: dict[str, _StudyEvents] = {}
        self._ended: list[Document] = []
        self._findings: list[Document] = []

    @property
    def polls(self) -> Sequence[Callable[[], list[Event]]]:
        """The polls, which may run concurrently."""
        return self._quick_poll, self._slow_poll

    def _quick_poll(self) -> list[Event]:
        with self._lock:
            if not self.active:
                return []
            self._announcements = self._announcement_reader.look()
            logged = self._announcement_reader.events()
            self._logged += logged
            events: list[Event] = [("phase", _phase(e)) for e in logged if e["event"] == "phase"]
            events += [("use", sample) for sample in self._use.poll(self._announcements)]
            return events + self._changed(
                "now",
                [_announcement_document(a) for a in self._announcements],
            )

    def _slow_poll(self) -> list[Event]:
        with self._slow_lock:
            if not self.active:
                return []
            events: list[Event] = []
            if self._state.refresh():
                events += self._changed("state", self._state.value, without="t_ns")
            if self._running.refresh():
                events += self._changed("experiments", self._running.value)
            if self._patterns.refresh():
                events += self._changed("patterns", self._patterns.value)
            events += self._study_events()
            return events

    def snapshot(self) -> list[Event]:
        """The complete state as events."""
        with self._lock:
            now, history = (
                [_announcement_document(a) for a in self._announcements],
                self._use.history(),
            )
        empty = {"t_ns": time.monotonic_ns(), "clusters": [], "disks": []}
        return [
            ("state", self._state.value or empty),
            ("now", now),
            ("experiments", self._running.value or []),
            ("patterns", self._patterns.value or []),
            ("history", history),
            ("ended", self._ended),
            ("found", self._findings),
        ]

    def suspend(self) -> None:
        """Stop the sampler and the readers of traces."""
        with self._lock:
            self._use.close()
            self._announcement_reader.close()
            self._logged = []
        with self._slow_lock:
            for view in self._trace_views.values():
                view.close()
            self._trace_views = {}

    def _changed(self, name: str, value: Any, without: str = "") -> list[Event]:
        content = {k: v for k, v in value.items() if k != without} if without else value
        has_counters = name == "state" and bool(value["clusters"] or value["disks"])
        if not has_counters and self._last.get(name) == content:
            return []
        self._last[name] = content
        return [(name, value)]

    # --- patterns -------------------------------------------------------------------------------

    def _tracer_patterns(self) -> list[Document]:
        tracers = {
            (announcement["id"], str(announcement["sources"]["trace"])): announcement
            for announcement in list(self._announcements)
            if isinstance(announcement.get("sources"), dict)
            and announcement["sources"].get("trace")
        }
        for ended in self._trace_views.keys() - tracers.keys():
            self._trace_views.pop(ended).close()
        documents = []
        for key, announcement in tracers.items():
            with contextlib.suppress(PenstockError, OSError, ValueError, KeyError):
                if key not in self._trace_views:
                    sample = runtime_dir() / f"live-sample-{new_token()}"
                    named = not announcement.get("anonymous")
                    self._trace_views[key] = Look(
                        announcement["sources"]["trace"], sample, named=named
                    )
                status, rows = self._trace_views[key].look()
                documents.append(
                    {
                        "source": announcement["id"],
                        "name": announcement["name"],
                        **{k: status.get(k) for k in ("seen", "kept", "lost", "bytes")},
                        "files": [_pattern(row) for row in rows],
                    }
                )
        return documents

    # --- studies --------------------------------------------------------------------------------

    def _study_events(self) -> list[Event]:
        """Runs that ended, alerts that fired and new findings since the last poll."""
        events: list[Event] = []
        with self._lock:
            logged, self._logged = self._logged, []
            current = list(self._announcements)
        items = [{**event, event["event"]: [event["item"]]} for event in logged if "item" in event]
        starts = [event for event in logged if event["event"] == "begun"]
        for announcement in [*starts, *items, *current]:
            study = self._studies.get(announcement["id"])
            if study is None:
                study = self._studies[announcement["id"]] = _StudyEvents(announcement)
            for ended in study.ended(announcement):
                self._ended = [*self._ended, ended][-_MOST_FINDINGS:]
                events.append(("ended", [ended]))
            for finding in study.alerts(announcement):
                self._findings = [*self._findings, finding][-_MOST_FINDINGS:]
                events.append(("found", [finding]))
        live_ids = {announcement["id"] for announcement in current}
        for key in [k for k in self._studies if k not in live_ids]:
            for finding in self._studies.pop(key).findings():
                self._findings = [*self._findings, finding][-_MOST_FINDINGS:]
                events.append(("found", [finding]))
        return events


class _StudyEvents:
    """Runs, alerts and findings of one announcement that were not reported yet."""

    def __init__(self, announcement: Mapping[str, Any]) -> None:
        self._id = str(announcement["id"])
        self._name = str(announcement.get("name", ""))
        self._out = Path(announcement["out"]) if isinstance(announcement.get("out"), str) else None
        self._runs: set[tuple[str, int]] = set()
        self._alerts: set[str] = set()
        # findings of an earlier run of the study are not new
        mark = self._mark()
        self._previous_mark = (
            mark if mark and mark[0] < _ns(announcement.get("began_utc_ns")) else None
        )

    def ended(self, announcement: Mapping[str, Any]) -> list[Document]:
        """Runs that ended since the last call, read from their bundles."""
        runs = []
        for run in announcement.get("ended") or []:
            key = (Path(str(run.get("run_id"))).name, int(run.get("attempt", 1)))
            if key not in self._runs and self._out is not None:
                self._runs.add(key)
                with contextlib.suppress(PenstockError, OSError, ValueError, KeyError):
                    runs.append(self._ended(self._out / "runs" / key[0]))
        return runs

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

    def alerts(self, announcement: Mapping[str, Any]) -> list[Document]:
        """Alert rules that fired since the last call."""
        alerts = []
        for row in announcement.get("alerts") or []:
            key = json.dumps([row.get(k) for k in ("run_id", "rule", "entity", "since_ns")])
            if key not in self._alerts:
                self._alerts.add(key)
                aborts = row.get("action") == "abort"
                alerts.append(
                    {
                        "id": f"{self._id}:{key}",
                        "study": " ".join(filter(None, (self._name, row.get("run_id")))),
                        "code": "alert-fired",
                        "severity": "error" if aborts else "warning",
                        "text": str(row.get("words", ""))[:500],
                        "utc_ms": _ns(row.get("utc_ns")) / 1e6,
                    }
                )
        return alerts

    def _mark(self) -> tuple[int, int] | None:
        if self._out is None:
            return None
        with contextlib.suppress(OSError):
            status = (self._out / "findings.parquet").stat()
            return status.st_mtime_ns, status.st_ino
        return None

    def findings(self) -> list[Document]:
        """Findings of the analysis at the end of the study; none if its file did not change."""
        if self._out is None or self._mark() in (None, self._previous_mark):
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
                for number, row in enumerate(rows[:_MOST_FINDINGS])
            ]
        return []


def certificates(path: Path) -> list[Document]:
    """Certificate of each emulated disk of a bundle: invalid, with a reason, if one of its metrics is."""
    try:
        rows = pq.read_table(path / "fidelity.parquet").to_pylist()
    except (OSError, ValueError):
        return []
    by_disk: dict[str, Document] = {}
    for row in rows:
        disk = str(row.get("disk_id") or "")
        certificate = by_disk.setdefault(
            disk, {"disk": disk, "valid": True, "reason": "", "metrics": 0}
        )
        certificate["metrics"] += 1
        if row.get("valid") is False:
            certificate["valid"] = False
            certificate["reason"] = certificate["reason"] or str(row.get("reason") or "")[:200]
    return list(by_disk.values())


def _pattern(row: Mapping[str, Any]) -> Document:
    verdict = row["verdict"]
    return {
        **{k: row.get(k) for k in ("path", "direction", "calls", "time_ns", "bytes")},
        "class": verdict["class"] if verdict else "",
        "sentence": sentence(verdict) if verdict else "",
    }


def _phase(event: Mapping[str, Any]) -> Document:
    """Start of a phase of a run, or of the study if `run_id` is empty."""
    return {
        "id": event["id"],
        "study": str(event.get("name") or ""),
        **{key: event.get(key) for key in ("run_id", "attempt", "levels", "phase")},
        "utc_ms": _ns(event.get("utc_ns")) / 1e6,
    }


#: keys of an announcement that clients get
_SHOWN_KEYS = (
    *("id", "kind", "name", "began_utc_ns", "study_id", "question", "planned", "done_before"),
    *("left", "left_s", "made", "failed", "invalid", "runs", "host", "analysing"),
)


def _announcement_document(announcement: Mapping[str, Any]) -> Document:
    document = {k: announcement[k] for k in _SHOWN_KEYS if announcement.get(k) is not None}
    document["began_ms"] = document.pop("began_utc_ns", 0) / 1e6
    document["runs"] = [
        {**{k: v for k, v in run.items() if k != "began_utc_ns"}, "began_ms": _ms(run)}
        for run in _dicts(announcement.get("runs"))
    ]
    return document


def _ns(value: Any) -> int:
    return value if isinstance(value, int) else time.time_ns()


def _ms(run: Mapping[str, Any]) -> float:
    return float(run.get("began_utc_ns") or 0) / 1e6


def _dicts(value: Any) -> Sequence[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
