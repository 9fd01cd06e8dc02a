"""The recorder: order of start and end of observers, failures, the bundle of a command."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle, partial_path
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.observe.observer import Seen, Watched
from penstock.observe.recorder import Recorder, finish_bundle, new_bundle

NOBODY = Watched(None, None)


class Watcher:
    """An observer that records its calls."""

    def __init__(self, name: str, calls: list[str], fails: str = "") -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def _record(self, call: str) -> None:
        self.calls.append(f"{self.name} {call}")
        if call == self.fails:
            raise PenstockError(call)

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        self._record("start")

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        self._record("finish")
        return Seen({self.name: pa.table({"n": [1]})}, {"by": self.name}, 3, None, {self.name: 1})

    def stop(self) -> None:
        self._record("stop")


def test_the_last_observer_to_start_ends_first() -> None:
    calls: list[str] = []
    with Recorder({n: Watcher(n, calls) for n in "ab"}) as recorder:
        for _ in range(2):
            recorder.start(NOBODY, None)
            seen = recorder.finish(None, (1, 2))
    sequence = ["a start", "b start", "b finish", "a finish"]
    assert calls[:8] == sequence * 2
    assert sorted(calls[8:]) == ["a stop", "b stop"]
    assert seen.losses == {"a": 3, "b": 3}
    assert seen.receipts["b"] == {"by": "b"}
    assert seen.manifest == {"a": 1, "b": 1}
    assert set(seen.observed) == {"a", "b"}
    assert [c["point"] for c in seen.clocks] == ["start", "end"]
    assert seen.clocks[0]["monotonic_ns"] <= seen.clocks[1]["monotonic_ns"]


def test_all_observers_stop_if_one_cannot_start() -> None:
    calls: list[str] = []
    observers = {"a": Watcher("a", calls), "b": Watcher("b", calls, fails="start")}
    with Recorder(observers) as recorder:
        with pytest.raises(PenstockError, match="start"):
            recorder.start(NOBODY, None)
        assert recorder.finish(None, None).clocks == []
    assert calls[:3] == ["a start", "b start", "a finish"]
    assert sorted(calls[3:]) == ["a stop", "b stop"]


def test_an_observer_that_fails_to_stop_does_not_block_others() -> None:
    calls: list[str] = []
    with pytest.raises(PenstockError), Recorder({n: Watcher(n, calls, "stop") for n in "ab"}):
        pass
    assert sorted(calls) == ["a stop", "b stop"]


def test_the_error_names_an_unknown_observer(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="moniter"):
        Recorder.of_names(Journal(tmp_path / "journal"), tmp_path, {"moniter": {}})


def _break(journal: Journal, output: Path) -> None:
    with new_bundle(journal, output, ["true"]):
        (entry,) = journal.open_entries()
        assert (entry.kind, entry.target) == ("directory", str(partial_path(output)))
        assert partial_path(output).exists()
        raise PenstockError("it broke")


def test_a_bundle_is_written_atomically(tmp_path: Path) -> None:
    journal, output = Journal(tmp_path / "journal"), tmp_path / "out"
    with Recorder({"a": Watcher("a", [])}) as recorder:
        with pytest.raises(PenstockError, match="it broke"):
            _break(journal, output)
        assert sorted(p.name for p in tmp_path.iterdir() if "journal" not in p.name) == []
        assert journal.open_entries() == []
        with new_bundle(journal, output, ["true"]) as bundle:
            assert bundle is not None
            recorder.start(NOBODY, None)
            seen = recorder.finish(bundle, (5, 8))
            phase = {"phase_id": "workload", "start_ns": 5, "end_ns": 8}
            assert finish_bundle(bundle, seen, [phase], 3, (5, 8), {"outlived": 2}) == output
    stored = Bundle.open(output)
    assert {"a", "clocks", "phases"} == set(stored.tables)
    assert stored.manifest["state"] == "failed"
    assert stored.manifest["responses"] == {"wall_s": {"value": 3e-9, "unit": "s"}}
    assert (stored.manifest["a"], stored.manifest["outlived"]) == (1, 2)
    assert stored.manifest["losses"] == {"a": 3}
    assert not list(output.glob(".penstock-*"))
    assert journal.open_entries() == []


def test_an_unwritable_bundle_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadInput, match=r"-o: .*expected a path to write"),
        new_bundle(journal, tmp_path / "file" / "out", []),
    ):
        pass
    assert journal.open_entries() == []
    with new_bundle(journal, None, []) as bundle:
        assert bundle is None
