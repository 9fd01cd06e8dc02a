"""The recorder: which observer begins and ends when, what is left where one fails, a command's bundle."""

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
    """An observer that writes down what it is told."""

    def __init__(self, name: str, said: list[str], fails: str = "") -> None:
        self.name, self.said, self.fails = name, said, fails

    def _say(self, what: str) -> None:
        self.said.append(f"{self.name} {what}")
        if what == self.fails:
            raise PenstockError(what)

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        self._say("start")

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        self._say("finish")
        return Seen({self.name: pa.table({"n": [1]})}, {"by": self.name}, 3, None, {self.name: 1})

    def stop(self) -> None:
        self._say("stop")


def test_what_is_armed_last_ends_first() -> None:
    said: list[str] = []
    with Recorder({n: Watcher(n, said) for n in "ab"}) as recorder:
        for _ in range(2):
            recorder.start(NOBODY, None)
            seen = recorder.finish(None, (1, 2))
    turn = ["a start", "b start", "b finish", "a finish"]
    assert said[:8] == turn * 2
    assert sorted(said[8:]) == ["a stop", "b stop"]
    assert seen.losses == {"a": 3, "b": 3}
    assert seen.receipts["b"] == {"by": "b"}
    assert seen.manifest == {"a": 1, "b": 1}
    assert set(seen.observed) == {"a", "b"}
    assert [c["point"] for c in seen.clocks] == ["start", "end"]
    assert seen.clocks[0]["monotonic_ns"] <= seen.clocks[1]["monotonic_ns"]


def test_of_observers_one_of_which_cannot_begin_the_others_end_and_all_stop() -> None:
    said: list[str] = []
    observers = {"a": Watcher("a", said), "b": Watcher("b", said, fails="start")}
    with Recorder(observers) as recorder:
        with pytest.raises(PenstockError, match="start"):
            recorder.start(NOBODY, None)
        assert recorder.finish(None, None).clocks == []
    assert said[:3] == ["a start", "b start", "a finish"]
    assert sorted(said[3:]) == ["a stop", "b stop"]


def test_observers_that_fail_to_stop_keep_no_other_from_it() -> None:
    said: list[str] = []
    with pytest.raises(PenstockError), Recorder({n: Watcher(n, said, "stop") for n in "ab"}):
        pass
    assert sorted(said) == ["a stop", "b stop"]


def test_an_observer_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="moniter"):
        Recorder.of_names(Journal(tmp_path / "journal"), tmp_path, {"moniter": {}})


def _break(journal: Journal, output: Path) -> None:
    with new_bundle(journal, output, ["true"]):
        (entry,) = journal.open_entries()
        assert (entry.kind, entry.target) == ("directory", str(partial_path(output)))
        assert partial_path(output).exists()
        raise PenstockError("it broke")


def test_a_bundle_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
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
    found = Bundle.open(output)
    assert {"a", "clocks", "phases"} == set(found.tables)
    assert found.manifest["state"] == "failed"
    assert found.manifest["responses"] == {"wall_s": {"value": 3e-9, "unit": "s"}}
    assert (found.manifest["a"], found.manifest["outlived"]) == (1, 2)
    assert found.manifest["losses"] == {"a": 3}
    assert not list(output.glob(".penstock-*"))
    assert journal.open_entries() == []


def test_where_no_bundle_can_be_written_that_is_said(tmp_path: Path) -> None:
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
