"""Settings and hints refused by engines: engines, predictions and explorations agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.engine_hints import supported
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.engines import cephfs, hdfs
from penstock.parts.stores.engines.engine import Site
from penstock.parts.stores.engines.glusterfs import GlusterFS, _bricks, _Parts
from penstock.parts.stores.store import check, planned
from penstock.platform.engine import (
    PATHS,
    as_supported,
    circumstances_of,
    refusals,
    require_supported,
    settings,
)
from penstock.platform.hosts import Platform, load_platform
from penstock.platform.stores import ready_store
from penstock.plugins import STORE_ENGINES, STORE_HINTS
from penstock.spec.store import PARAMETERS, Roles, StoreSpec, Support
from penstock.spec.store_engines import CAPABILITIES, Circumstances
from penstock.spec.units import parse_size
from tests.support import commands

ENGINES = ("moosefs", "glusterfs", "hdfs", "cephfs", "directory")
NODES = tuple(f"node-{i}" for i in range(4))
ROLES = Roles(("head-0",), NODES, NODES)

VALUES: dict[str, tuple[Any, ...]] = {
    "chunk": ("4KiB", "64KiB", "100kB", "256KiB", "4MiB", "8GiB"),
    "stripe": (1, 2, 4),
    "replicas": (1, 2, 4),
    "replication": ("chain", "parallel", "client"),
    "placement": (
        *("striped", "round_robin", "local", "collocate", "scatter", "random", "balanced"),
    ),
    "cache": ("1MiB", "64MiB"),
    "prefetch": (4,),
}
#: accepted values by engine and parameter, from the documentation of the engines
ACCEPTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "moosefs": {
        "chunk": (),
        "stripe": (),
        "replication": ("chain",),
        "placement": ("round_robin", "balanced"),
    },
    "glusterfs": {
        "chunk": ("4MiB", "8GiB"),
        "stripe": (1, 4),
        "replication": ("client",),
        "placement": ("striped", "random"),
        "prefetch": (),
    },
    "hdfs": {
        "chunk": ("64KiB", "256KiB", "4MiB", "8GiB"),
        "stripe": (),
        "replication": ("chain",),
        "placement": ("local",),
        "cache": (),
    },
    "cephfs": {
        "chunk": ("64KiB", "256KiB", "4MiB"),
        "replication": ("parallel",),
        "placement": ("random",),
    },
    "directory": dict.fromkeys(PARAMETERS, ()),
}

HINTS = {
    "Replication": ("1", "2", "4", "5"),
    "ChunkSize": ("4KiB", "64KiB", "4MiB", "2GiB"),
    "StripeWidth": ("1", "2", "4", "5"),
    "CacheSize": ("4MiB",),
    "deduplication": ("true",),
    "DP": ("local", "collocation g", "scatter 1", "scatter 4", "scatter 99999999", "host node-1"),
}


def document(engine: str | None, **changes: Any) -> dict[str, Any]:
    """A platform of four nodes that store and compute."""
    service = {"overhead": "1ms", "per_byte": "1ms/MiB"}
    node = {
        "group": "node",
        "count": 4,
        "roles": ["storage", "client"],
        "storage": {"read": service, "write": service},
    }
    store = {} if engine is None else {"engine": engine}
    values: dict[str, Any] = {
        "penstock_platform": 1,
        "name": "p",
        "hosts": [
            {"group": "head", "count": 1, "roles": ["manager"], "manager": {"service": "1ms"}},
            node,
        ],
        "network": {"bandwidth": "100 Mbit/s", "loopback": "1 GB/s"},
        "store": store,
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        values.setdefault(section, {})[key] = value
    return values


def platform(engine: str | None, **changes: Any) -> Platform:
    return Platform.from_dict(document(engine, **changes))


def path_of(key: str) -> str:
    return next(path for path, name in PATHS.items() if name == key)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("key", PARAMETERS)
def test_predictions_refuse_the_values_that_engines_refuse(engine: str, key: str) -> None:
    accepted: dict[str, list[Any]] = {"by the engine": [], "by a prediction": []}
    for value in VALUES[key]:
        number = parse_size(value) if key in ("chunk", "cache") else value
        try:
            spec = StoreSpec(engine, {key: number})
            check(STORE_ENGINES.load(engine)(), spec, ROLES, strict=True)
        except BadInput:
            pass
        else:
            accepted["by the engine"].append(value)
        with_value = platform(engine, **{path_of(key).replace(".", "__"): value})
        if not refusals(engine, settings(with_value), circumstances_of(with_value)):
            accepted["by a prediction"].append(value)
    expected = list(ACCEPTED[engine].get(key, VALUES[key]))
    assert accepted == {"by the engine": expected, "by a prediction": expected}


class _Site(Site):
    """A site without nodes: every command succeeds without output."""

    def ask(self, *_: Any, **__: Any) -> str:
        return ""

    run = request = ask


class _Files:
    """An empty file of HDFS."""

    def __init__(self, site: Site, node: Any) -> None:
        self.writer = node.name

    def kind(self, path: str) -> tuple[str, int]:
        return "file", 0

    def attributes(self, path: str) -> dict[str, str]:
        return {}


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines whose commands do nothing and find an empty file without hints."""
    monkeypatch.setattr(hdfs, "HdfsFiles", _Files)
    monkeypatch.setattr(hdfs, "request", lambda *_: None)
    monkeypatch.setattr(hdfs, "of", lambda _, path: path)
    layout_of_file: list[tuple[int, int]] = [(0, 0)]
    facts = {"directory": False, "chunk": None, "path": "/f", "id": "1"}
    monkeypatch.setattr(GlusterFS, "_facts", lambda *_: facts)
    monkeypatch.setattr(
        GlusterFS, "_parts", lambda *_: _Parts(layout_of_file[0][0], {}, (layout_of_file[0][1],))
    )
    monkeypatch.setattr(GlusterFS, "_lay", lambda *a: layout_of_file.__setitem__(0, (a[-2], a[-1])))
    chunk = CAPABILITIES["cephfs"].chunk_bytes
    layout = {"stripe_unit": chunk, "stripe_count": 1, "object_size": chunk, "pool": "data"}
    monkeypatch.setattr(cephfs, "layout_of", lambda *_: dict(layout))
    monkeypatch.setattr(cephfs, "set_layout", lambda *_: True)
    monkeypatch.setattr(cephfs, "pool", lambda *_: "data")


def tagged(engine: str, key: str, text: str, roles: Roles = ROLES) -> Support:
    """Reply of the engine to a tag of an empty file, set on the first client."""
    bare = planned(StoreSpec(engine, {}), roles)
    site = _Site(bare.name, bare.spec, bare.managers, bare.storage, bare.clients, bare.home)
    names = list(roles.storage)
    pools = {"data": {"first": None, "among": list(range(len(names))), "copies": 1}}
    labels = dict(zip(names, "ABCDEFGH", strict=False))
    site.state.update(labels=labels, classes={}, osds=names, pools=pools, copies=1)
    if engine == "glusterfs":
        site.state["bricks"] = _bricks(site, 1)
    value = STORE_HINTS.load(key).parse(text)
    reply: Support = STORE_ENGINES.load(engine)().tag(
        site, site.clients[0], "/f", key, value, empty=True
    )
    return reply


def predicted_hints(store_platform: Platform, key: str, text: str) -> Hints | None:
    """The hints of a file that a prediction keeps, of the one equivalent to a tag."""
    hint = STORE_HINTS.load(key)
    hints = Hints(**hint.model(hint.parse(text)))
    task = Task("t", (Operation("write", "f", 0, 1 << 20),))
    workload, _ = supported(Workload("w", (File("f", hints=hints),), (task,)), store_platform)
    return workload.files[0].hints


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("key", HINTS)
def test_predictions_drop_the_hints_that_engines_refuse(engine: str, key: str) -> None:
    for text in HINTS[key]:
        reply = tagged(engine, key, text)
        if key in ("CacheSize", "deduplication"):  # predictions ignore these
            circumstances = Circumstances(NODES, NODES)
            verdict = CAPABILITIES[engine].of(key, text, circumstances)
            assert reply == verdict
            assert reply.how == "refused"
            continue
        hints = predicted_hints(platform(engine), key, text)
        assert (hints is None) == (reply.how == "refused"), (text, reply, hints)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("engine", ENGINES)
def test_clients_that_store_nothing_have_no_local_files(engine: str) -> None:
    separate = document(engine)
    separate["hosts"][1]["roles"] = ["storage"]
    separate["hosts"].append({"group": "app", "count": 1, "roles": ["client"]})
    separate_platform = Platform.from_dict(separate)
    roles = Roles(("head-0",), NODES, ("app-0",))
    for text in ("local", "host app-0"):
        assert tagged(engine, "DP", text, roles).how == "refused"
        assert predicted_hints(separate_platform, "DP", text) is None
    hints = predicted_hints(separate_platform, "DP", "collocation g")
    assert (hints is None) == (engine == "directory")


def test_hints_of_one_file_are_decided_together() -> None:
    """CephFS puts a file on one node or over a width of at least as many nodes as copies."""
    for hints, expected in (
        (Hints(placement="local", stripe_width=2), Hints(placement="local")),
        (Hints(replicas=3, stripe_width=2), Hints(replicas=3)),
        (Hints(replicas=2, stripe_width=2), Hints(replicas=2, stripe_width=2)),
        (Hints(chunk_bytes=100, stripe_width=2), Hints(stripe_width=2)),
        (Hints(placement="striped"), None),
    ):
        files = (File("f", hints=hints),)
        workload, _ = supported(Workload("w", files, ()), platform("cephfs"))
        assert workload.files[0].hints == expected
        unchanged, _ = supported(Workload("w", files, ()), platform(None))
        assert unchanged.files[0].hints == hints
        assert unchanged.notes == ()


def test_hints_that_a_task_sets_are_dropped_too() -> None:
    step = Operation("set_xattr", "f", hints=Hints(stripe_width=2, replicas=2))
    workload, _ = supported(Workload("w", (), (Task("t", (step,)),)), platform("moosefs"))
    assert workload.tasks[0].operations[0].hints == Hints(replicas=2)
    assert workload.notes == (
        "the hint StripeWidth=2 of 1 file (f): moosefs refuses it: each server of a chunk has all of it; "
        "predicted without it",
    )


def test_refused_values_are_replaced_by_those_of_the_engine() -> None:
    refused_values = platform(
        "moosefs", store__chunk="1MiB", store__placement="striped", store__stripe=1
    )
    changed, notes = as_supported(refused_values)
    store = changed.lower()["store"]
    engine_store = ready_store(None, "moosefs")
    assert (store["chunk_bytes"], store["placement"]) == (256 * 1024, engine_store["placement"])
    assert [note.split(":")[0] for note in notes] == ["store.chunk 1MiB", "store.placement striped"]
    assert notes[0].endswith("; predicted with 256KiB")
    unchanged, no_notes = as_supported(platform("moosefs", store__chunk="256KiB"))
    assert (no_notes, unchanged.plain["store"]["chunk"]) == ([], "256KiB")
    of_mosastore, notes = as_supported(platform("cephfs", store__like="mosastore"))
    assert of_mosastore.lower()["store"]["replication"] == "parallel"
    assert {"store.replication chain", "store.placement striped"} == {
        n.split(":")[0] for n in notes
    }
    many_hosts = document("moosefs")
    many_hosts["hosts"][1]["count"] = 27
    assert as_supported(Platform.from_dict(many_hosts))[1] == [
        "moosefs refuses this store: found 27 storage nodes; expected at most 26 (labels are letters)"
    ]


def written(tmp_path: Path, engine: str) -> tuple[str, str]:
    """A platform file and a workload whose file is to be spread over four nodes."""
    platform_file, workload_file = tmp_path / "p.json", tmp_path / "w.json"
    platform_file.write_text(json.dumps(document(engine)))
    size = 8 << 20
    files = (File("f", hints=Hints(stripe_width=4)),)
    tasks = (
        Task("a", (Operation("write", "f", 0, size),)),
        Task("b", (Operation("read", "f", 0, size),)),
    )
    workload_file.write_text(Workload("w", files, tasks).to_json())
    return str(platform_file), str(workload_file)


def test_values_of_the_command_line_are_refused(tmp_path: Path) -> None:
    platform_file, _ = written(tmp_path, "moosefs")
    require_supported(load_platform(platform_file, ["store.replicas=2", "network.sharing=fair"]))
    with pytest.raises(
        BadInput, match=r"--set store\.chunk=1MiB.*moosefs refuses it: chunks are as"
    ):
        require_supported(load_platform(platform_file, ["store.chunk=1MiB"]))


def penstock(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command."""
    line = (sys.executable, "-m", "penstock", *arguments)
    result = commands.run(line, capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


def test_predict_leaves_out_refused_hints_with_a_note(tmp_path: Path) -> None:
    platform_file, workload_file = written(tmp_path, "moosefs")
    options = ("-p", platform_file, "--seeds", "1", "--no-explain")
    _, text, _ = penstock("predict", workload_file, *options, "--json")
    prediction = json.loads(text)
    notes = [r["text"] for r in prediction["applies"]["reasons"] if r["severity"] == "note"]
    assert any(n.startswith("the hint StripeWidth=4 of 1 file (f): moosefs") for n in notes)
    without_hint = tmp_path / "plain.json"
    without_hint.write_text(Path(workload_file).read_text().replace('"stripe_width": 4', ""))
    _, text, _ = penstock("predict", str(without_hint), *options, "--json")
    assert json.loads(text)["makespan_s"] == prediction["makespan_s"]
    status, _, errors = penstock("predict", workload_file, *options, "--set", "store.stripe=4")
    assert status == 2
    assert "moosefs refuses it: each server of a chunk has all of it" in errors


def explored(tmp_path: Path, engine: str, *axes: str) -> tuple[int, str, str]:
    platform_file, workload_file = written(tmp_path, engine)
    vary = [argument for axis in axes for argument in ("--vary", axis)]
    return penstock(
        "explore", workload_file, "-p", platform_file, *vary, "--seeds", "1", "--objective", "time"
    )


def test_explore_rejects_axes_without_a_supported_level(tmp_path: Path) -> None:
    for axis in ("store.stripe=1,4", "store.chunk=256KiB,1MiB"):
        status, text, errors = explored(tmp_path, "moosefs", axis, "store.replicas=1,2")
        assert (status, text) == (2, "")
        first = axis.replace("=", " ").split(",")[0]
        assert f"found {first}; moosefs refuses it: " in errors
        assert errors.count("refuses it") == 2


def test_explore_proposes_no_refused_level_and_names_it(tmp_path: Path) -> None:
    axes = ("store.placement=striped,balanced,local", "store.replicas=1,2")
    status, text, _ = explored(tmp_path, "moosefs", *axes)
    assert status == 0
    answer, _, tables = " ".join(text.split()).partition("Near the best")
    assert "Left out store.placement striped: moosefs refuses it: found striped; expected" in answer
    assert "store.placement local: moosefs refuses it" in answer
    assert "2 of 2 configurations" in tables
    assert "Note: the hint StripeWidth=4 of 1 file (f): moosefs refuses it" in tables
    assert "striped" not in tables


def test_explore_builds_no_refused_combination(tmp_path: Path) -> None:
    """GlusterFS spreads a file over one node or all of them, however many there are."""
    axes = ("hosts.node.count=2..4", "store.stripe=1,2,4", "store.chunk=1MiB,4MiB")
    status, text, _ = explored(tmp_path, "glusterfs", *axes)
    assert status == 0
    output = " ".join(text.split())
    assert "Left out store.chunk 1 MiB: glusterfs refuses it" in output
    # 2 nodes: 1, 2; 3 nodes: 1; 4 nodes: 1, 4
    assert "5 of 9 configurations predicted" in output
    assert "a store.stripe that glusterfs refuses" in output


def test_explore_adds_no_more_hosts_than_an_engine_supports(tmp_path: Path) -> None:
    status, text, _ = explored(tmp_path, "moosefs", "hosts.node.count=25..28")
    assert status == 0
    assert "2 of 4 configurations predicted" in " ".join(text.split())
    assert "more storage hosts than moosefs supports" in " ".join(text.split())
