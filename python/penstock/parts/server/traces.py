"""Served studies and traces, each trace with a page and an index of every viewed file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.completeness import check_manifest, reading
from penstock.archive.selection import is_study, select
from penstock.errors import BadInput
from penstock.parts.server.index import FileIndex, View
from penstock.parts.server.studies import ServedStudy
from penstock.report.trace.gather import Gathered, gather
from penstock.report.trace.page import trace_page
from penstock.report.trace.sections import name_of
from penstock.scratch import Scratch

#: maximum number of rows in one response
MOST_ROWS = 10_000


class ServedTrace:
    """One bundle. `folder` is the directory of its temporary indexes."""

    def __init__(self, path: Path, folder: Path):
        self.path = path
        self._folder = folder
        self._lock = threading.Lock()
        self._gathered: Gathered | None = None
        self._page = ""
        self._indexes: dict[int, FileIndex] = {}

    @cached_property
    def run(self) -> TracedRun:
        """Its tables. Raises BadInput if they are damaged."""
        with reading(self.path):
            return TracedRun(self.path)

    @property
    def name(self) -> str:
        """The name of its directory; `OUT:r001` for a run of a study."""
        folder = self.path.resolve()
        is_run = folder.parent.name == "runs" and is_study(folder.parent.parent)
        return f"{folder.parent.parent.name}:{folder.name}" if is_run else folder.name

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return check_manifest(self.path / "manifest.json")

    def gathered(self) -> Gathered | None:
        """The data of its figures; None without events."""
        with self._lock:
            if self._gathered is None:
                self._gathered = gather(self.run)
            return self._gathered

    def page(self) -> str:
        """The HTML page, with the script that fetches details below the resolution of the page."""
        gathered = self.gathered()
        with self._lock:
            if not self._page:
                self._page = trace_page(self.run, gathered, served=True)
            return self._page

    def files(self) -> list[dict[str, Any]]:
        """Totals per file with its path, in descending order of time."""
        gathered = self.gathered()
        files = gathered.files if gathered else []
        return [{**f, "path": name_of(self.run, f["file_id"])} for f in files]

    def tables(self) -> dict[str, int]:
        """Number of rows of each table."""
        return {
            p.stem: int(pq.read_metadata(p).num_rows) for p in sorted(self.path.glob("*.parquet"))
        }

    def rows(self, table: str, first: int, most: int) -> list[dict[str, Any]]:
        """At most `most` rows of a table from `first` on. Raises BadInput if there is no such table."""
        if table not in self.tables():
            raise BadInput(f"found table {table}; expected one of {', '.join(self.tables())}")
        most = min(most, MOST_ROWS)
        with self._lock:
            return self.run.rows(table, first, most)

    def view(self, file_id: int, view: View) -> tuple[dict[str, Any], bytes]:
        """A view of one file's figure (`FileIndex.answer`). Raises BadInput if the trace has no such file."""
        gathered = self.gathered()
        if gathered is None:
            raise BadInput("the trace has no events")
        with self._lock:
            if file_id not in self._indexes:
                matches = [f for f in gathered.files if f["file_id"] == file_id]
                if not matches:
                    raise BadInput(f"found file {file_id}; the trace has none of that number")
                self._indexes[file_id] = FileIndex(
                    self.run, matches[0], gathered.origin_ns, self._folder
                )
            index = self._indexes[file_id]
        if view.axis == "time" and not index.ordered:
            raise BadInput("the trace is not in order of time; expected the axis number")
        return index.answer(view)


class Served:
    """All bundles of a server, and the directory of their indexes, which `close` removes.

    A study adds the traces of all its runs, a treatment those of its valid runs. Raises BadInput for an
    unknown name and for a damaged trace.
    """

    def __init__(self, arguments: Sequence[Path], cache: Path | None = None):
        self.studies: list[ServedStudy] = []
        paths: list[Path] = []
        for selection in [select(name) for name in arguments]:
            if selection.kind == "study":
                self.studies.append(ServedStudy(selection.path, len(paths)))
                paths += self.studies[-1].traced
                continue
            with reading(selection.one, *selection.traced):
                paths += selection.traced
        self._scratch = Scratch("serve", cache)
        self.folder = self._scratch.path
        self.traces = []
        for number, path in enumerate(paths):
            folder = self.folder / str(number)
            folder.mkdir()
            self.traces.append(ServedTrace(path, folder))

    @property
    def one_trace(self) -> bool:
        """True if a single trace and no study is served."""
        return len(self.traces) == 1 and not self.studies

    def study(self, number: int) -> ServedStudy:
        """The study of that number. Raises BadInput if there is none."""
        if not 0 <= number < len(self.studies):
            raise BadInput(f"found study {number}; {len(self.studies)} are served")
        return self.studies[number]

    def trace(self, number: int) -> ServedTrace:
        """The bundle of that number. Raises BadInput if there is none."""
        if not 0 <= number < len(self.traces):
            raise BadInput(f"found trace {number}; {len(self.traces)} are served")
        return self.traces[number]

    def close(self) -> None:
        self._scratch.close()
