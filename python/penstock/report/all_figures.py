"""All figures of a report, for the page (wide and narrow) and for `figures/`, drawn on all idle
processors."""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from penstock.analyse.outcome import Outcome
from penstock.report import figures, render, style

Key = tuple[str, str | None]
#: drawn for the main response only: they concern its question, or repeat other figures of a response
MAIN_ONLY = ("costs", "pareto", "fraction", "half-normal", "main-effects", "cube")
#: figures with at most this many marks in a panel are omitted: the page's table is clearer
FEW = 3
#: processor time before other processes are started, which spend seconds on imports [s]
ALONE_S = 8.0
TABLED = ("costs", "pareto", "effects", "responses", "predictions", "fidelity")


@dataclass(frozen=True)
class Plate:
    """One figure: its SVG for wide and narrow pages, or the reason why there is none.

    `tabulated`: a table of the page has the same values.
    """

    name: str
    wide: str = ""
    narrow: str = ""
    reason: str = ""
    tabulated: bool = False

    @property
    def drawn(self) -> bool:
        """True if the figure was drawn."""
        return bool(self.wide)


def plates(outcome: Outcome, folder: Path | None) -> dict[Key, Plate]:
    """Draw every figure of the report; SVG and PDF go to `folder` unless it is `None`."""
    keys: list[Key] = [(kind, None) for kind in (*figures.BY_RUN, *figures.BY_STUDY)]
    for i, r in enumerate(outcome.responses):
        keys += [(kind, r.name) for kind in figures.BY_RESPONSE if i == 0 or kind not in MAIN_ONLY]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[Key, Plate] = {}
    began = time.process_time()
    for key in keys:
        if time.process_time() - began > ALONE_S:
            break
        drawn[key] = plate(outcome, key, folder)
    rest = keys[len(drawn) :]
    workers = min(3, _idle_processors())
    if workers and len(rest) > 1:
        # small containers and embedded interpreters cannot start workers
        with contextlib.suppress(BrokenProcessPool, OSError):
            drawn |= _drawn_by_workers(outcome, rest, folder, workers)
    return {key: drawn[key] if key in drawn else plate(outcome, key, folder) for key in keys}


def _idle_processors() -> int:
    """Number of processors without a running thread."""
    running, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
    return max(0, (os.cpu_count() or 1) - int(running))


def _drawn_by_workers(
    outcome: Outcome, keys: list[Key], folder: Path | None, workers: int
) -> dict[Key, Plate]:
    """Figures drawn by other processes from the first on, and by this process from the last on."""
    where = None if folder is None else str(folder)
    # a fork server: threads of this process are not forked
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        jobs = {key: pool.submit(_job, (str(outcome.path), key, where)) for key in keys}
        drawn = {}
        for key in reversed(keys):
            if jobs[key].cancel():  # not yet started by a worker
                drawn[key] = plate(outcome, key, folder)
        return drawn | {key: job.result() for key, job in jobs.items() if key not in drawn}


_read: dict[str, Outcome] = {}


def _job(job: tuple[str, Key, str | None]) -> Plate:
    path, key, folder = job
    if path not in _read:
        _read[path] = Outcome.read(path)
    return plate(_read[path], key, None if folder is None else Path(folder))


def plate(outcome: Outcome, key: Key, folder: Path | None) -> Plate:
    """Draw one figure in all its formats."""
    kind, response = key
    name = kind if response is None else f"{kind}-{_safe(response)}"
    title = f"{kind} of {response}" if response else kind
    try:
        wide = figures.draw(outcome, kind, style.WIDE_INCHES, response)
        if kind in TABLED and style.most_marks(wide) <= FEW:
            return Plate(name, tabulated=True)
        narrow = figures.draw(outcome, kind, style.NARROW_INCHES, response)
        if folder is not None:
            render.write(wide, folder, name)
        return Plate(
            name,
            render.inline(wide, f"{name}-w", title),
            render.inline(narrow, f"{name}-n", title),
        )
    except style.NotDrawn as missing:
        return Plate(name, reason=str(missing))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        # an unexpected table must not cost hours of runs their report
        return Plate(name, reason=f"could not be drawn from these tables ({error!r})")


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
