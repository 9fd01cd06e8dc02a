"""What a server was given: studies, and traces, each with a page and an index per file looked into."""

from __future__ import annotations

import shutil
import tempfile
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

#: rows of a table that one request gives at most
MOST_ROWS = 10_000


class ServedTrace:
    """One bundle; `folder` is where its indexes lie while it is served."""

    def __init__(self, path: Path, folder: Path):
        self.path = path
        self._folder = folder
        self._lock = threading.Lock()
        self._gathered: Gathered | None = None
        self._page = ""
        self._indexes: dict[int, FileIndex] = {}

    @cached_property
    def run(self) -> TracedRun:
        """Its tables. Raises BadInput where they are damaged."""
        with reading(self.path):
            return TracedRun(self.path)

    @property
    def name(self) -> str:
        """Its directory's name; of a study's run `OUT:r001`."""
        place = self.path.resolve()
        inside = place.parent.name == "runs" and is_study(place.parent.parent)
        return f"{place.parent.parent.name}:{place.name}" if inside else place.name

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What it says of itself."""
        return check_manifest(self.path / "manifest.json")

    def gathered(self) -> Gathered | None:
        """What its figures are drawn from."""
        with self._lock:
            if self._gathered is None:
                self._gathered = gather(self.run)
            return self._gathered

    def page(self) -> str:
        """Its page, with the script that asks for what lies below the page's own cells."""
        gathered = self.gathered()
        with self._lock:
            if not self._page:
                self._page = trace_page(self.run, gathered, served=True)
            return self._page

    def files(self) -> list[dict[str, Any]]:
        """Totals per file with its path, the one with most time first."""
        gathered = self.gathered()
        found = gathered.files if gathered else []
        return [{**f, "path": name_of(self.run, f["file_id"])} for f in found]

    def tables(self) -> dict[str, int]:
        """Rows of each table."""
        return {
            p.stem: int(pq.read_metadata(p).num_rows) for p in sorted(self.path.glob("*.parquet"))
        }

    def rows(self, table: str, first: int, most: int) -> list[dict[str, Any]]:
        """Rows of a table from `first` on. Raises BadInput where there is none of that name."""
        if table not in self.tables():
            raise BadInput(f"found table {table}; expected one of {', '.join(self.tables())}")
        most = min(most, MOST_ROWS)
        with self._lock:
            return self.run.rows(table, first, most)

    def view(self, file_id: int, view: View) -> tuple[dict[str, Any], bytes]:
        """A view of one file's figure. Raises BadInput where the trace has no such file."""
        gathered = self.gathered()
        if gathered is None:
            raise BadInput("the trace has no events")
        with self._lock:
            if file_id not in self._indexes:
                named = [f for f in gathered.files if f["file_id"] == file_id]
                if not named:
                    raise BadInput(f"found file {file_id}; the trace has none of that number")
                self._indexes[file_id] = FileIndex(
                    self.run, named[0], gathered.origin_ns, self._folder
                )
            index = self._indexes[file_id]
        if view.axis == "time" and not index.ordered:
            raise BadInput("the trace is not in order of time: look at request numbers")
        return index.answer(view)


class Served:
    """All that one server was given, and the directory of the indexes, which goes when the server ends.

    A study brings the traces of all its runs, a treatment those of its valid ones. Raises BadInput for
    what is named wrongly, and for a trace that is damaged.
    """

    def __init__(self, named: Sequence[Path], cache: Path | None = None):
        self.studies: list[ServedStudy] = []
        paths: list[Path] = []
        for selection in [select(name) for name in named]:
            if selection.kind == "study":
                self.studies.append(ServedStudy(selection.path, len(paths)))
                paths += self.studies[-1].traced
                continue
            with reading(selection.one, *selection.traced):
                paths += selection.traced
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-serve-", dir=cache))
        self.traces = []
        for number, path in enumerate(paths):
            folder = self.folder / str(number)
            folder.mkdir()
            self.traces.append(ServedTrace(path, folder))

    @property
    def one_trace(self) -> bool:
        """Whether there is nothing but one trace."""
        return len(self.traces) == 1 and not self.studies

    def study(self, number: int) -> ServedStudy:
        """The study of that number. Raises BadInput where there is none."""
        if not 0 <= number < len(self.studies):
            raise BadInput(f"found study {number}; {len(self.studies)} are served")
        return self.studies[number]

    def trace(self, number: int) -> ServedTrace:
        """The bundle of that number. Raises BadInput where there is none."""
        if not 0 <= number < len(self.traces):
            raise BadInput(f"found trace {number}; {len(self.traces)} are served")
        return self.traces[number]

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
