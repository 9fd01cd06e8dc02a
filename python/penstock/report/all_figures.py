"""All figures of a report: in the page wide and narrow, and in `figures/`; idle processors share the work."""

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
#: drawn for the main response only: its question, and what the other figures of a response also show
MAIN_ONLY = ("costs", "pareto", "fraction", "half-normal", "main-effects", "cube")
#: drawn from more marks in a panel than this: of fewer, the page's table says more
FEW = 3
#: processor time that a process spends before it starts others, which spend some seconds on imports [s]
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
        """True if there is a picture."""
        return bool(self.wide)


def plates(outcome: Outcome, folder: Path | None) -> dict[Key, Plate]:
    """Draws every figure of the report; SVG and PDF go to `folder` unless it is `None`."""
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
        # no worker can be started in a small container or an embedded interpreter
        with contextlib.suppress(BrokenProcessPool, OSError):
            drawn |= _drawn_by_workers(outcome, rest, folder, workers)
    return {key: drawn[key] if key in drawn else plate(outcome, key, folder) for key in keys}


def _idle_processors() -> int:
    """Processors without a running thread at this moment."""
    running, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
    return max(0, (os.cpu_count() or 1) - int(running))


def _drawn_by_workers(
    outcome: Outcome, keys: list[Key], folder: Path | None, workers: int
) -> dict[Key, Plate]:
    """Figures drawn by other processes from the first on, and by this one from the last on."""
    where = None if folder is None else str(folder)
    # a fork server: no thread of this process is forked
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        jobs = {key: pool.submit(_job, (str(outcome.path), key, where)) for key in keys}
        drawn = {}
        for key in reversed(keys):
            if jobs[key].cancel():  # no worker has started it
                drawn[key] = plate(outcome, key, folder)
        return drawn | {key: job.result() for key, job in jobs.items() if key not in drawn}


_read: dict[str, Outcome] = {}


def _job(job: tuple[str, Key, str | None]) -> Plate:
    path, key, folder = job
    if path not in _read:
        _read[path] = Outcome.read(path)
    return plate(_read[path], key, None if folder is None else Path(folder))


def plate(outcome: Outcome, key: Key, folder: Path | None) -> Plate:
    """Draws one figure in all its forms."""
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
        # hours of runs must not lose their report to one odd table
        return Plate(name, reason=f"could not be drawn from these tables ({error!r})")


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
