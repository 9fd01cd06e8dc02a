"""The tracer as an observer of runs, optionally with the layers below the calls."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.observe.observer import Seen, Watched
from penstock.observe.trace.capture.salvage import what_layers_miss
from penstock.observe.trace.capture.scope import read_scope
from penstock.observe.trace.capture.tracer import Tracer, TraceResult
from penstock.state import state_dir

if TYPE_CHECKING:
    from penstock.observe.trace.layers.tables import Layers


def layers_below(journal: Journal) -> Layers:
    """Tracer of the layers below the calls."""
    # loads pandas, which takes 0.3 s
    from penstock.observe.trace.layers.tables import Layers

    return Layers(journal, state_dir())


class TraceObserver:
    """Tracer of the runs of a study. Settings: those of `spec.study.TraceSpec`; all but `mode` are
    optional."""

    #: filters of the recordings, for the manifest
    filters: Mapping[str, Any] = {}

    def __init__(self, journal: Journal, home: Path, settings: Mapping[str, Any]) -> None:
        scope = read_scope(
            files=settings.get("files") or (),
            directories=settings.get("directories") or (),
            endings=settings.get("endings") or (),
            only=settings.get("only"),
        )
        hot = {"by": settings["hot"]} if settings.get("hot") else None
        self.filters = scope.options | ({"hot": hot["by"]} if hot else {})
        # not `home`, which ends with the study: the cost of tracing is known to later ones
        tracer = Tracer(
            journal,
            state_dir(),
            str(settings["mode"]),
            scope=scope.for_programs() if scope.options else None,
            hot=hot,
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(tracer)
            layers = layers_below(journal) if settings.get("layers") else None
            stack.pop_all()
        self._begin(tracer, layers)

    def _begin(
        self,
        tracer: Tracer,
        layers: Layers | None = None,
        target: Mapping[str, Any] | None = None,
        salvage: bool = False,
    ) -> None:
        self.tracer = tracer
        self._layers = layers
        self._salvage = salvage
        #: target of this recording (`Tracer.arm`)
        self.target = dict(target or {})
        self._result: TraceResult | None = None

    @classmethod
    def of(
        cls,
        tracer: Tracer,
        layers: Layers | None = None,
        *,
        target: Mapping[str, Any] | None = None,
        salvage: bool = False,
    ) -> TraceObserver:
        """An observer with loaded programs; `target` and `salvage` as of `Tracer.arm` and `disarm`."""
        observer = cls.__new__(cls)
        observer._begin(tracer, layers, target, salvage)
        return observer

    @property
    def result(self) -> TraceResult:
        """Result of the last recording."""
        assert self._result is not None
        return self._result

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Record the activity of the run's group. PenstockError if nodes have no common parent group."""
        scope = watched.scope
        if scope is None or scope == 0:
            raise PenstockError(
                "several nodes cannot be traced here: their control groups have no common parent in the "
                "unified hierarchy (mount -t cgroup2; not with `runtime`); take trace out of observers"
            )
        self.tracer.arm(scope, out_dir, watched.devices, self.target)
        if self._layers is not None:
            self._layers.arm(scope if isinstance(scope, int) else scope.cgroup_id)

    def live(self) -> dict[str, Any]:
        """Socket and spool of the tracer while it records."""
        source = self.tracer.beside()
        return {
            "pid": source.daemon.pid,
            "socket": str(source.daemon.socket_path),
            "mode": source.mode,
            "events": str(source.spool),
            "names": str(source.names),
        }

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """Write the events to `bundle`; returns verdicts, files and the closing sentence."""
        if self._layers is not None:
            self._layers.halt(salvage=self._salvage)
        traced = self.tracer.disarm(bundle, run=run, salvage=self._salvage)
        if self._layers is not None:
            from penstock.observe.trace.layers.tables import with_layers  # pandas

            traced = with_layers(traced, self._layers)
            missing = what_layers_miss(traced.receipt.get("layers") or {})
            closing = f"{traced.closing} {missing}".rstrip()
            traced = dataclasses.replace(traced, closing=closing)
        self._result = traced
        lost = int(traced.receipt.get("lost", 0))
        about: dict[str, Any] = {"closing": traced.closing}
        if self.filters:
            about["filters"] = dict(self.filters)
        if self._layers is not None:
            lost += int(traced.receipt["layers"]["lost"])
        return Seen(traced.tables, traced.receipt, lost, traced.events_path, about)

    def stop(self) -> None:
        """End the daemons."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.tracer.stop)
            if self._layers is not None:
                stack.callback(self._layers.stop)
