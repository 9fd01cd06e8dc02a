"""A small map-reduce job that sorts: its time is that of its disks.

    job.py make BLOCKS BLOCK_BYTES COPIES SEED DIRECTORY…    input blocks, COPIES of each, on that many disks
    job.py work NAME DISK HEAD NODE…                         a node of the job, until it is ended
    job.py run --out FILE NODE…                              the job, on nodes that work
    job.py local --out FILE NAME=DIRECTORY…                  both, with all nodes as processes of this host

As in Hadoop, a node has one map slot and takes its next task from a queue, one whose block lies
on its own disk where there is one; the nodes named by `--reduce` also run one reduce task each,
which begins when the maps are done (slow start 1.0). Map output is synced to the mapper's disk
and read there again for the shuffle, the reducers' output is synced to theirs. A NODE is a name
that resolves, or NAME=ADDRESS:PORT; HEAD is where `run` is.

FILE becomes one object: the tasks with their node, times (CLOCK_MONOTONIC, ns) and bytes; the
stages map, shuffle and write; the last map's and the last reducer's node; records and checksum.
stdout: `seconds: …` and the same in short.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import records
from files import FileServer, pieces

#: ports of the queue and of a node's file server
QUEUE_PORT, FILES_PORT = 21300, 21301
FETCHERS = 4
#: a silent node is lost after this time [s]
PATIENCE_S = 600.0
#: time that the end of a job waits for slots that were not dismissed yet [s]
GOODBYE_S = 10.0
#: nodes and queue may start in any order within this time [s]
START_S = 60.0


def make(blocks: int, block_bytes: int, copies: int, seed: int, places: list[Path]) -> None:
    """Write the blocks, each to `copies` places, and `blocks.json` to the first place."""
    rng = random.Random(seed)
    count = block_bytes // records.SIZE_BYTES
    total, listed = 0, []
    for place in places:
        (place / "in").mkdir(parents=True, exist_ok=True)
    for b in range(blocks):
        block = records.make(count, seed * 100_000 + b)
        total = (total + records.checksum(block)) % 2**64
        # the first copy in turn, so that all places store equally much; the others at random
        first = b % len(places)
        other_places = rng.sample([i for i in range(len(places)) if i != first], copies - 1)
        for i in (first, *other_places):
            (places[i] / "in" / f"{b:04d}").write_bytes(block.tobytes())
        listed.append(
            {"block": b, "on": [first, *other_places], "bytes": count * records.SIZE_BYTES}
        )
    index = {"blocks": listed, "records": blocks * count, "checksum": total}
    (places[0] / "blocks.json").write_text(json.dumps(index))


class Queue:
    """Remaining and completed tasks and their nodes; used by many threads."""

    def __init__(self, blocks: list[dict[str, Any]], names: list[str], reducers: int) -> None:
        self._names = names
        self._todo = list(blocks)
        self._maps = len(blocks)
        self._reduces = list(range(reducers))
        self._reducers = reducers
        self._changed = threading.Condition()
        self.outputs: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.failure: str | None = None
        self.ready: set[str] = set()
        self._dismissed = 0

    def take(self, node: str, kind: str) -> dict[str, Any] | None:
        """The next task of a kind for a node; None if there is none."""
        with self._changed:
            if kind == "map":
                return self._take_map(node)
            self._changed.wait_for(lambda: len(self.outputs) == self._maps or self.failure)
            if self.failure or not self._reduces:
                return None
            return {"part": self._reduces.pop(0), "outputs": self.outputs}

    def _take_map(self, node: str) -> dict[str, Any] | None:
        if not self._todo or self.failure:
            return None
        own = self._names.index(node)
        local = [block for block in self._todo if own in block["on"]]
        block = (local or self._todo)[0]
        self._todo.remove(block)
        source = own if local else block["on"][block["block"] % len(block["on"])]
        return {"block": block["block"], "source": self._names[source], "bytes": block["bytes"]}

    def done(self, task: dict[str, Any]) -> None:
        """Record the end of a task."""
        with self._changed:
            self.tasks.append(task)
            if task["kind"] == "map":
                self.outputs.append({k: task[k] for k in ("block", "node", "cuts")})
            self._changed.notify_all()

    def greet(self, node: str) -> None:
        """Register a node, and wait until all have registered, so that they start together."""
        with self._changed:
            self.ready.add(node)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.ready) == len(self._names) or self.failure)

    def fail(self, reason: str) -> None:
        """End the job without a result."""
        with self._changed:
            self.failure = self.failure or reason
            self._changed.notify_all()

    def dismissed(self) -> None:
        """Count a slot that was told that there are no more tasks."""
        with self._changed:
            self._dismissed += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the last reducer has ended and all slots know. RuntimeError with the failure."""
        slots = len(self._names) + self._reducers
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self.failure or sum(t["kind"] == "reduce" for t in self.tasks) == self._reducers
                )
            )
            if not self.failure:  # otherwise a node may be gone
                self._changed.wait_for(lambda: self._dismissed == slots, GOODBYE_S)
        if self.failure:
            raise RuntimeError(self.failure)


def conductor(queue_: Queue, address: str) -> ThreadingHTTPServer:
    """HTTP server of the queue: POST /greet, /take, /done, /fail with one JSON object each."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer: Any = None
            if self.path == "/take":
                answer = queue_.take(request["node"], request["kind"])
            elif self.path == "/done":
                queue_.done(request)
            elif self.path == "/greet":
                queue_.greet(request["node"])
            elif self.path == "/fail":
                queue_.fail(request["why"])
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            if self.path == "/take" and answer is None:
                queue_.dismissed()

        def log_message(self, *_: object) -> None:
            """No log."""

    server = ThreadingHTTPServer((address, QUEUE_PORT), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Worker:
    """One node: its disk, its file server, its two slots."""

    def __init__(
        self, name: str, nodes: dict[str, tuple[str, int]], disk: Path, head: str, parts: int
    ) -> None:
        self.name, self.nodes, self.disk, self.head, self.parts = name, nodes, disk, head, parts
        for part in ("map", "out"):
            (disk / part).mkdir(exist_ok=True)
        self._files = FileServer(disk, *nodes[name])
        threading.Thread(target=self._files.serve_forever, daemon=True).start()

    def ask(self, path: str, **fields: Any) -> Any:
        """One request to the queue."""
        connection = http.client.HTTPConnection(self.head, QUEUE_PORT, timeout=PATIENCE_S)
        try:
            connection.request("POST", path, json.dumps({"node": self.name, **fields}))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def work(self, reduces: bool) -> None:
        """Run both slots until no task remains; a failure is reported to the queue and raised."""
        _with_retries(lambda: self.ask("/greet"))
        failed: list[BaseException] = []

        def slot(kind: str, run: Any) -> None:
            try:
                while (task := self.ask("/take", kind=kind)) is not None:
                    self.ask("/done", kind=kind, **run(task))
            except BaseException as error:
                failed.append(error)
                self.ask("/fail", why=f"{self.name}: {kind}: {error!r}")

        slots = [threading.Thread(target=slot, args=("map", self.map))]
        if reduces:
            slots.append(threading.Thread(target=slot, args=("reduce", self.reduce)))
        for thread in slots:
            thread.start()
        for thread in slots:
            thread.join()
        if failed:
            raise failed[0]
        threading.Event().wait()  # other nodes may still fetch from this one; `run` ends it

    def fetch(self, source: str, path: str, begin: int, end: int, into: memoryview) -> None:
        """Bytes of a file of a node, from the local disk or over the network."""
        if source == self.name:
            at = 0
            for piece in pieces(self.disk / path, begin, end, direct=False):
                into[at : at + len(piece)] = piece
                at += len(piece)
            return
        connection = http.client.HTTPConnection(*self.nodes[source], timeout=PATIENCE_S)
        try:
            connection.request("GET", f"/{path}", headers={"Range": f"bytes={begin}-{end - 1}"})
            answer = connection.getresponse()
            at = 0
            while at < end - begin:
                received = answer.readinto(into[at:])
                if not received:
                    raise EOFError(f"{source}: {path} ended after {at} of {end - begin} bytes")
                at += received
        finally:
            connection.close()

    def write(self, path: str, content: memoryview) -> None:
        """Write a new file, durably, and drop it from the page cache."""
        fd = os.open(self.disk / path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            at = 0
            while at < len(content):
                at += os.write(fd, content[at : at + (1 << 20)])
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def map(self, task: dict[str, Any]) -> dict[str, Any]:
        """Sort a block and write it in parts, one after the other, with the limits `cuts`."""
        began = time.monotonic_ns()
        text = bytearray(task["bytes"])
        path = f"{task['block']:04d}"
        self.fetch(task["source"], f"in/{path}", 0, task["bytes"], memoryview(text))
        read = time.monotonic_ns()
        sorted_ = records.ordered(records.load(text))
        parts = records.divided(sorted_, self.parts)
        self.write(f"map/{path}", memoryview(sorted_.tobytes()))
        cuts = [0]
        for part in parts:
            cuts.append(cuts[-1] + part.nbytes)
        return {
            "block": task["block"],
            "cuts": cuts,
            "source": task["source"],
            "begin_ns": began,
            "read_ns": read,
            "end_ns": time.monotonic_ns(),
            "bytes": task["bytes"],
        }

    def reduce(self, task: dict[str, Any]) -> dict[str, Any]:
        """Fetch a part of every map's output, sort it and write it."""
        began, part = time.monotonic_ns(), task["part"]
        outputs = sorted(task["outputs"], key=lambda o: o["block"])
        random.Random(part).shuffle(outputs)
        sizes = [o["cuts"][part + 1] - o["cuts"][part] for o in outputs]
        text = bytearray(sum(sizes))
        todo: queue.SimpleQueue[tuple[dict[str, Any], int, int]] = queue.SimpleQueue()
        at = 0
        for output, size in zip(outputs, sizes, strict=True):
            todo.put((output, at, size))
            at += size
        failed: list[BaseException] = []

        def fetcher() -> None:
            try:
                while True:
                    output, at, size = todo.get_nowait()
                    begin = output["cuts"][part]
                    target = memoryview(text)[at : at + size]
                    if size:
                        path = f"map/{output['block']:04d}"
                        self.fetch(output["node"], path, begin, begin + size, target)
            except queue.Empty:
                return
            except BaseException as error:
                failed.append(error)

        fetchers = [threading.Thread(target=fetcher) for _ in range(FETCHERS)]
        for thread in fetchers:
            thread.start()
        for thread in fetchers:
            thread.join()
        if failed:
            raise failed[0]
        fetched = time.monotonic_ns()
        sorted_ = records.ordered(records.load(text))
        if not records.in_order(sorted_):
            raise RuntimeError(f"part {part} is not in order")
        self.write(f"out/{part:04d}", memoryview(sorted_.tobytes()))
        key = records.keys(sorted_)["high"]
        return {
            "part": part,
            "begin_ns": began,
            "read_ns": fetched,
            "end_ns": time.monotonic_ns(),
            "bytes": sorted_.nbytes,
            "records": len(sorted_),
            "checksum": records.checksum(sorted_),
            "keys": [int(key[0]), int(key[-1])] if len(key) else [],
        }


def result(tasks: list[dict[str, Any]], expected: dict[str, Any]) -> dict[str, Any]:
    """Result of the job; RuntimeError if the output is not the sorted input."""
    maps = [t for t in tasks if t["kind"] == "map"]
    reduces = sorted((t for t in tasks if t["kind"] == "reduce"), key=lambda t: t["part"])
    count, total = sum(t["records"] for t in reduces), sum(t["checksum"] for t in reduces) % 2**64
    if (count, total) != (expected["records"], expected["checksum"]):
        raise RuntimeError(
            f"{count} records with checksum {total:x} came out; "
            f"{expected['records']} with {expected['checksum']:x} went in"
        )
    limits = [key for task in reduces for key in task["keys"]]
    if limits != sorted(limits):
        raise RuntimeError("the parts overlap")
    begin = min(t["begin_ns"] for t in tasks)
    mapped = max(t["end_ns"] for t in maps)
    fetched = max(t["read_ns"] for t in reduces)
    end = max(t["end_ns"] for t in reduces)
    for task in tasks:
        task.pop("cuts", None)
    return {
        "seconds": (end - begin) / 1e9,
        "stages": {"map": [begin, mapped], "shuffle": [mapped, fetched], "write": [fetched, end]},
        "last_map": max(maps, key=lambda t: int(t["end_ns"]))["node"],
        "last_reducer": max(reduces, key=lambda t: int(t["end_ns"]))["node"],
        "remote_maps": sum(t["source"] != t["node"] for t in maps),
        "records": count,
        "checksum": f"{total:016x}",
        "tasks": tasks,
    }


def run(nodes: dict[str, tuple[str, int]], parts: int, out: Path) -> None:
    """Run the queue for the nodes until the last reducer has ended; write and print the result."""
    first = next(iter(nodes.values()))
    blocks = _with_retries(lambda: _blocks(first))
    jobs = Queue(blocks["blocks"], list(nodes), parts)
    server = conductor(jobs, "")
    try:
        jobs.wait()
    finally:
        server.shutdown()
    _write_result(result(jobs.tasks, blocks), out)


def local(places: dict[str, Path], reduce_on: list[str], out: Path) -> None:
    """Run the job with all nodes as processes of this host."""
    nodes = {name: ("127.0.0.1", FILES_PORT + i) for i, name in enumerate(places)}
    jobs_file = json.loads((next(iter(places.values())) / "blocks.json").read_text())
    jobs = Queue(jobs_file["blocks"], list(nodes), len(reduce_on))
    server = conductor(jobs, "127.0.0.1")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, disk in places.items():
            argv = [sys.executable, str(Path(__file__).resolve()), "work", name, str(disk)]
            argv += ["127.0.0.1", "--reduce", ",".join(reduce_on)]
            argv += [f"{n}={address}:{port}" for n, (address, port) in nodes.items()]
            started.append(subprocess.Popen(argv))
        threading.Thread(target=_watch, args=(started, list(nodes), jobs), daemon=True).start()
        jobs.wait()
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        server.shutdown()
    _write_result(result(jobs.tasks, jobs_file), out)


def _blocks(node: tuple[str, int]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(*node, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/blocks.json")
        return dict(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def _with_retries(ask: Callable[[], Any]) -> Any:
    """Repeat a request until it succeeds: the node may not be up yet."""
    until = time.monotonic() + START_S
    while True:
        try:
            return ask()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _write_result(document: dict[str, Any], out: Path) -> None:
    out.write_text(json.dumps(document))
    print(f"seconds: {document['seconds']:.6f}")
    for stage, (begin, end) in document["stages"].items():
        print(f"{stage}: {(end - begin) / 1e9:.6f}")
    for key in ("last_map", "last_reducer", "remote_maps", "records", "checksum"):
        print(f"{key}: {document[key]}")


def _watch(started: list[subprocess.Popen[bytes]], names: list[str], jobs: Queue) -> None:
    """Fail the job if a node ends with a status before it is done."""
    while True:
        for name, process in zip(names, started, strict=True):
            if process.poll():
                jobs.fail(f"{name} ended with status {process.returncode}")
                return
        time.sleep(0.1)


def _nodes(texts: list[str]) -> dict[str, tuple[str, int]]:
    """Address of each node's file server."""
    nodes = {}
    for text in texts:
        name, equals, at = text.partition("=")
        address, _, port = at.rpartition(":")
        nodes[name] = (address, int(port)) if equals else (name, FILES_PORT)
    return nodes


def main() -> int:
    """Exit status 1 with a reason if the job fails."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = options.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make")
    for name in ("blocks", "block_bytes", "copies", "seed"):
        verb.add_argument(name, type=int)
    verb.add_argument("places", type=Path, nargs="+")
    for verb in (verbs.add_parser(name) for name in ("work", "run", "local")):
        verb.add_argument(
            "--reduce", default="", help="nodes with a reduce slot; default every other"
        )
        verb.add_argument("--out", type=Path, default=Path("job.json"))
        if verb.prog.endswith("work"):
            for name in ("name", "disk", "head"):
                verb.add_argument(name)
        verb.add_argument("nodes", nargs="+")
    arguments = options.parse_args()
    if arguments.verb == "make":
        make(
            arguments.blocks,
            arguments.block_bytes,
            arguments.copies,
            arguments.seed,
            arguments.places,
        )
        return 0
    try:
        if arguments.verb == "local":
            places = {n: Path(d) for n, d in (text.split("=", 1) for text in arguments.nodes)}
            local(places, _reducers(arguments.reduce, list(places)), arguments.out)
            return 0
        nodes = _nodes(arguments.nodes)
        reduce_on = _reducers(arguments.reduce, list(nodes))
        if arguments.verb == "work":
            worker = Worker(
                arguments.name, nodes, Path(arguments.disk), arguments.head, len(reduce_on)
            )
            worker.work(arguments.name in reduce_on)
        else:
            run(nodes, len(reduce_on), arguments.out)
    except RuntimeError as error:
        print(f"job: {error}", file=sys.stderr)
        return 1
    return 0


def _reducers(names_text: str, names: list[str]) -> list[str]:
    return names_text.split(",") if names_text else names[::2]


if __name__ == "__main__":
    sys.exit(main())
