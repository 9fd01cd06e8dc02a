"""Conformance of an engine with its declared support: each parameter and hint by bytes on the nodes' disks.

Needs a running store with at least three storage nodes that are clients too and have a disk each. An
unsupported parameter or hint must be refused on request, without side effects.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.store import Store
from penstock.spec.store import Support

FOLDER = "conformance"
MIB = 2**20
#: a node has a copy above the first share of a file's size on its disk, and none below the second
_HOLDS, _EMPTY = 0.9, 0.25
#: space of the engine's own files, as a share of the data
_OVERHEAD = 0.5
_SMALL_FILES = 1000
_WRITERS = 4
#: time limit for replication [s]
_SETTLES_WITHIN_S = 30.0


@dataclass(frozen=True)
class Shown:
    """One cell of the matrix: declared support, result, and observation."""

    cell: str
    support: Support
    holds: bool
    evidence: str


def conform(
    store: Store, heard: Callable[[Shown], None] | None = None, *, small_files: int = _SMALL_FILES
) -> list[Shown]:
    """Every cell of a store's engine. BadInput if the store has too few nodes."""
    if not store.mounted:
        raise BadInput(
            f"{store.name}: found no mount of {store.spec.engine}; expected one to try it by"
        )
    both = [n for n in store.roles.storage if n in store.roles.clients]
    nodes = store.cluster.nodes
    if len(both) < 3 or any(not nodes[n].disks for n in store.roles.storage):
        raise BadInput(
            f"{store.name}: found {len(both)} nodes that store and are clients; expected three or more, "
            "each storage node with a disk"
        )
    trial = _Trial(store, both)
    shown = []
    for one in trial.cells(small_files):
        shown.append(one)
        if heard is not None:
            heard(one)
    return shown


class _Trial:
    def __init__(self, store: Store, both: list[str]) -> None:
        self._store = store
        self._both = both
        self._support = store.support()
        self._run(both[0], "rm", "-rf", "--", store.inside(FOLDER))

    def cells(self, small_files: int) -> Iterator[Shown]:
        yield self._identical()
        for copies in (1, 2, 3):
            yield self._shown(f"Replication={copies}", "Replication", partial(self._copies, copies))
        yield self._shown("DP=local", "DP local", self._local)
        yield self._shown("DP=collocation", "DP collocation", self._collocated)
        if "DP host" in self._support:
            yield self._shown("DP=host", "DP host", self._on_host)
        yield self._shown("DP=scatter 4", "DP scatter", self._scattered)
        for width in (1, 2, len(self._store.roles.storage)):
            yield self._shown(f"StripeWidth={width}", "StripeWidth", partial(self._wide, width))
        for size in (64 * 1024, 256 * 1024, MIB):
            yield self._shown(f"ChunkSize={size // 1024}KiB", "ChunkSize", partial(self._cut, size))
        for key, value in (("CacheSize", "4MiB"), ("deduplication", "true")):
            yield self._shown(f"{key}={value}", key, partial(self._taken, key, value))
        if self._store.spec.watched:
            yield self._shown("DP=local by setxattr(2)", "setfattr", self._by_programs)
        yield self._plain("four files, four layouts", self._versatile)
        yield self._plain("an unknown tag is stored", self._unknown)
        yield self._plain("a file with data is refused, or migrated", self._migrated)
        yield self._plain(f"{small_files} small files", partial(self._small, small_files))
        yield self._plain(f"{_WRITERS} writers of one directory", self._together)

    def _shown(self, cell: str, key: str, act: Callable[[], str]) -> Shown:
        """A cell that the engine supports or refuses; `act` returns an empty string on success."""
        support = self._support[key]
        try:
            trouble = act()
        except PenstockError as error:
            trouble = str(error)
        if trouble.startswith("refused: "):
            reason = trouble.removeprefix("refused: ")
            declared = support.how == "refused" or support.partly
            return Shown(cell, Support("refused", reason), declared, "refused when requested")
        if support.how == "refused":
            return Shown(cell, support, False, trouble or "it was taken up")
        return Shown(cell, support, not trouble, trouble or self._evidence)

    def _plain(self, cell: str, act: Callable[[], str]) -> Shown:
        try:
            trouble = act()
        except PenstockError as error:
            trouble = str(error)
        return Shown(cell, Support("native", ""), not trouble, trouble or self._evidence)

    _evidence = ""

    def _run(self, node: str, *argv: str) -> str:
        return self._store.run(self._store.cluster.nodes[node], argv, what="a trial")

    def _taken(self, key: str, value: str) -> str:
        return self._refusal(f"{FOLDER}/{key}", self._both[0], {key: value})

    def _refusal(self, path: str, node: str, tags: dict[str, str]) -> str:
        results = self._store.tag(path, tags, node=node, create=True)
        return next(
            (f"refused: {r.support.why}" for r in results if r.support.how == "refused"), ""
        )

    def _written(self, path: str, node: str, size: int) -> dict[str, float]:
        """Write a file; share of its bytes that each storage node's disk received."""
        full_path = self._store.inside(f"{FOLDER}/{path}")
        before = self._taken_bytes()
        script = 'mkdir -p "$(dirname "$1")"; head -c "$2" /dev/urandom > "$1" && sync "$1"'
        self._run(node, "/bin/sh", "-c", script, "sh", full_path, str(size))
        return self._settled(before, size)

    def _settled(self, before: dict[str, int], size: int) -> dict[str, float]:
        """Shares after they stop growing: replication may be asynchronous."""
        shares: dict[str, float] = {}
        until = time.monotonic() + _SETTLES_WITHIN_S
        while time.monotonic() < until:
            now = self._taken_bytes()
            taken = {n: (now[n] - before[n]) / size for n in now}
            if taken == shares and sum(taken.values()) >= _HOLDS:
                break
            shares = taken
            time.sleep(0.5)
        self._evidence = "bytes on disks: " + ", ".join(
            f"{n} {100 * s:.0f} %" for n, s in shares.items()
        )
        return shares

    def _taken_bytes(self) -> dict[str, int]:
        nodes = self._store.cluster.nodes
        for name in self._store.roles.storage:
            for disk in nodes[name].disks.values():
                _sync(nodes[name], disk.mount)
        rows = {r["name"]: r for r in self._store.cluster.status()}
        return {
            n: sum(
                int((d["stats"] or {}).get("written_bytes", 0)) for d in rows[n]["disks"].values()
            )
            for n in self._store.roles.storage
        }

    def _holders(self, shares: dict[str, float], share: float = _HOLDS) -> list[str]:
        return [n for n, s in shares.items() if s >= share]

    def _located(self, path: str, size: int, copies: int) -> str:
        """Error in the reply of `locate`, which must cover the file once per copy."""
        extents = self._store.locate(f"{FOLDER}/{path}")
        at = 0
        for extent in extents:
            if extent.offset_bytes != at:
                return f"locate omits bytes {at} to {extent.offset_bytes}"
            if len(set(extent.nodes)) != copies:
                return f"locate names {len(set(extent.nodes))} copies of {copies} at byte {at}"
            at += extent.length_bytes
        return "" if at == size else f"locate ends at {at} of {size} bytes"

    def _identical(self) -> Shown:
        def act() -> str:
            size = 3 * MIB + 17
            self._written("same", self._both[0], size)
            full_path = self._store.inside(f"{FOLDER}/same")
            sums = {self._run(n, "sha256sum", full_path).split()[0] for n in self._both}
            return "" if len(sums) == 1 else f"{len(sums)} contents of one file"

        return self._plain("read on another node as it was written", act)

    def _copies(self, copies: int) -> str:
        path, size = f"copies{copies}", 4 * MIB
        if refusal := self._refusal(
            f"{FOLDER}/{path}", self._both[0], {"Replication": str(copies)}
        ):
            return refusal
        total = sum(self._written(path, self._both[0], size).values())
        if not copies <= total + 0.1 <= copies * (1 + _OVERHEAD) + 0.1:
            return f"{total:.2f} times its bytes on the disks; expected {copies}"
        return self._located(path, size, copies)

    def _local(self) -> str:
        for number, node in enumerate(self._both[1:3]):
            path = f"local{number}"
            if refusal := self._refusal(f"{FOLDER}/{path}", node, {"DP": "local"}):
                return refusal
            shares = self._written(path, node, 4 * MIB)
            if self._holders(shares) != [node]:
                return f"written on {node}, found on {self._holders(shares) or 'several nodes'}"
            if refusal := self._located(path, 4 * MIB, 1):
                return refusal
        return ""

    def _on_host(self) -> str:
        writer, target = self._both[0], self._both[-1]
        if refusal := self._refusal(f"{FOLDER}/hosted", writer, {"DP": f"host {target}"}):
            return refusal
        shares = self._written("hosted", writer, 4 * MIB)
        if self._holders(shares) != [target]:
            return f"requested on {target}, found on {self._holders(shares) or 'several nodes'}"
        return self._located("hosted", 4 * MIB, 1)

    def _by_programs(self) -> str:
        """Tags set by programs with setxattr, on two nodes in turn."""
        for number, node in enumerate(self._both[1:3]):
            path = f"own{number}"
            full_path = self._store.inside(f"{FOLDER}/{path}")
            self._run(node, "/bin/sh", "-c", 'mkdir -p "${1%/*}"; : > "$1"', "sh", full_path)
            set_it = "import os, sys; os.setxattr(sys.argv[1], 'user.penstock.DP', b'local')"
            self._run(node, sys.executable, "-I", "-c", set_it, full_path)
            shares = self._written(path, node, 4 * MIB)
            if self._holders(shares) != [node]:
                return f"written on {node}, found on {self._holders(shares) or 'several nodes'}"
        return ""

    def _collocated(self) -> str:
        holders = set()
        for number, node in enumerate(self._both[:3]):
            path = f"group{number}"
            if refusal := self._refusal(f"{FOLDER}/{path}", node, {"DP": "collocation trial"}):
                return refusal
            holders.add(tuple(self._holders(self._written(path, node, 2 * MIB))))
        return (
            ""
            if len(holders) == 1 and len(holders.pop()) == 1
            else f"one group on {sorted(holders)}"
        )

    def _scattered(self) -> str:
        path = "scattered"
        if refusal := self._refusal(f"{FOLDER}/{path}", self._both[0], {"DP": "scatter 4"}):
            return refusal
        self._written(path, self._both[0], 16 * MIB)
        extents = self._store.locate(f"{FOLDER}/{path}")
        runs: list[tuple[str, int]] = []
        for e in extents:
            node = e.nodes[0]
            if runs and runs[-1][0] == node:
                runs[-1] = (node, runs[-1][1] + e.length_bytes)
            else:
                runs.append((node, e.length_bytes))
        chunk = self._store.spec.parameters.get("chunk", MIB)
        short = [n for n, size in runs[:-1] if size % (4 * chunk)]
        what = f"4 chunks of {chunk // 1024} KiB"
        return f"{len(short)} of {len(runs)} stretches are no {what}" if short else ""

    def _wide(self, width: int) -> str:
        path, size = f"wide{width}", 8 * MIB
        if refusal := self._refusal(f"{FOLDER}/{path}", self._both[0], {"StripeWidth": str(width)}):
            return refusal
        shares = self._written(path, self._both[0], size)
        holders = self._holders(shares, 0.5 / width)
        return "" if len(holders) == width else f"on {len(holders)} nodes; expected {width}"

    def _cut(self, size: int) -> str:
        path = f"cut{size}"
        if refusal := self._refusal(f"{FOLDER}/{path}", self._both[0], {"ChunkSize": str(size)}):
            return refusal
        self._written(path, self._both[0], 4 * MIB)
        lengths = {e.length_bytes for e in self._store.locate(f"{FOLDER}/{path}")}
        return (
            ""
            if lengths and max(lengths) <= size
            else f"extents of {max(lengths, default=0)} bytes"
        )

    def _versatile(self) -> str:
        """Four files of one store, each with another supported layout."""
        tags_by_name = {"local": {"DP": "local"}, "copies": {"Replication": "2"}, "plain": {}}
        tags_by_name["cut"] = {"ChunkSize": "256KiB"}
        layouts = {}
        for name, tags in tags_by_name.items():
            if tags and self._refusal(f"{FOLDER}/four/{name}", self._both[-1], tags):
                continue
            shares = self._written(f"four/{name}", self._both[-1], 4 * MIB)
            layouts[name] = shares
        if "local" in layouts and self._holders(layouts["local"]) != [self._both[-1]]:
            return "the local file is not with its writer"
        if "copies" in layouts and sum(layouts["copies"].values()) < 2 * _HOLDS:
            return "the file with two copies does not have two"
        self._evidence = f"{', '.join(layouts)}: each as reported"
        return ""

    def _unknown(self) -> str:
        path = f"{FOLDER}/tagged"
        self._store.tag(path, {"colour": "blue"}, node=self._both[0], create=True)
        read_tags = self._store.attributes(path, self._both[1])
        self._evidence = "set on one node, read on another"
        return "" if read_tags.get("colour") == "blue" else f"it came back as {read_tags}"

    def _migrated(self) -> str:
        path, node = "moved", self._both[1]
        self._written(path, self._both[0], 2 * MIB)
        full_path = self._store.inside(f"{FOLDER}/{path}")
        before = self._run(node, "sha256sum", full_path).split()[0]
        (plain,) = self._store.tag(f"{FOLDER}/{path}", {"DP": "local"}, node=node)
        (moved,) = self._store.tag(f"{FOLDER}/{path}", {"DP": "local"}, node=node, migrate=True)
        after = self._run(self._both[0], "sha256sum", full_path).split()[0]
        if before != after:
            return "a file that was migrated has other bytes"
        if plain.support.how != "refused" and moved.support.how == "refused":
            return "what a written file takes is refused when it is migrated"
        if moved.support.how == "refused":
            self._evidence = "refused both ways, bytes unchanged"
            return ""
        extents = self._store.locate(f"{FOLDER}/{path}")
        if any(node not in e.nodes for e in extents):
            return f"migrated to {node}, found on {extents[0].nodes}"
        self._evidence = f"refused with data; migrated to {node}, equal by SHA-256"
        return ""

    def _small(self, count: int) -> str:
        place = self._store.inside(f"{FOLDER}/small")
        script = 'mkdir -p "$1"; i=0; while [ $i -lt "$2" ]; do echo $i > "$1/$i"; i=$((i+1)); done'
        self._run(self._both[0], "/bin/sh", "-c", script, "sh", place, str(count))
        argv = [
            "/bin/sh",
            "-c",
            'cd "$1" && ls | wc -l && cat * | sort -n | uniq | wc -l',
            "sh",
            place,
        ]
        counts = self._run(self._both[1], *argv).split()
        self._evidence = "all there, all different, seen from another node"
        return "" if counts == [str(count)] * 2 else f"{' and '.join(counts)} of {count}"

    def _together(self) -> str:
        place = self._store.inside(f"{FOLDER}/together")
        # created beforehand: GlusterFS 10 may return a stale handle if several clients create it concurrently
        self._run(self._both[0], "mkdir", "-p", place)
        script = 'for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > "$1/$2-$i"; done'
        writers = [self._both[i % len(self._both)] for i in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as pool:
            done = [
                pool.submit(self._run, n, "/bin/sh", "-c", script, "sh", place, f"{n}-{i}")
                for i, n in enumerate(writers)
            ]
        for one in done:
            one.result()
        count = self._run(self._both[0], "/bin/sh", "-c", 'ls "$1" | wc -l', "sh", place).strip()
        self._evidence = f"{_WRITERS} × 10 files"
        return "" if count == str(10 * _WRITERS) else f"{count} of {10 * _WRITERS} files"


def _sync(node: RunningNode, mount: str) -> None:
    """Sync the servers' writes to disk."""
    node.run(["sync", "-f", mount], stdout=os.devnull, stderr=os.devnull)
