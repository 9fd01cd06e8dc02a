"""While penstock works as root, another user of the host tries all that it made."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.host,
    pytest.mark.flaky(reruns=0),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user"),
]

NOBODY = 65534
PENSTOCK = [sys.executable, "-m", "penstock"]
STUDY = """\
penstock: 1
name: attacked
question: Does it hold?
factors:
  size: {levels: [4KiB, 8KiB]}
design: {kind: full, replicates: 1, seed: 1}
platform:
  nodes:
    - name: node1
      disks: [{name: data, profile: service-5ms}]
workload:
  command: dd if=/dev/zero of={data}/file bs={size} count=100 oflag=direct
  timeout: 1min
  parser: wall
responses:
  time: {from: wall_s, unit: s, better: lower}
observers:
  monitor: {interval: 1s}
  trace: {mode: trace}
"""
PLATFORM = """\
penstock_platform: 1
name: attacked
hosts:
  - group: one
    count: 1
    disks: [{name: d, profile: service-5ms, size: 1GiB}]
network: {bandwidth: 1 Gbit/s, latency: 1ms, loopback: 2 GB/s}
store: {allocation: none}
"""


class Ground:
    """A state of its own where every user may pass: pytest's own directories are closed."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="penstock-attack-", dir="/var/tmp"))
        self.base.chmod(0o755)
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(self.base / "state"),
            "PENSTOCK_RUNTIME": str(self.base / "run"),
        }
        self.environment.pop("PENSTOCK_ARCHIVE", None)
        for name in ("backing", "mount", "out"):
            (self.base / name).mkdir(mode=0o700)

    def call(self, *words: str) -> None:
        """A command to its end, which is to succeed."""
        done = subprocess.run(
            [*PENSTOCK, *words], env=self.environment, capture_output=True, text=True, cwd=self.base
        )
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def beside(self, *words: str) -> Iterator[None]:
        """A command at work meanwhile."""
        said = self.base / "out" / "log"
        with open(said, "ab") as log:
            child = subprocess.Popen(
                [*PENSTOCK, *words], env=self.environment, stdout=log, stderr=log, cwd=self.base
            )
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{words[0]} said: {said.read_text()}") from error
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(60)

    def made(self) -> list[Path]:
        """Everything below the state and the runtime, whatever made it; mounts are left out."""
        found = []
        for top in self.base.iterdir():
            if top.name.startswith(("state", "run")):
                found.append(top)
                for folder, folders, files in os.walk(top):
                    here = Path(folder)
                    folders[:] = [n for n in folders if not os.path.ismount(here / n)]
                    found += [here / n for n in (*folders, *files) if not os.path.ismount(here / n)]
        return found

    def sockets(self) -> list[Path]:
        """Those of its daemons that run."""
        found = []
        for path in self.made():
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    found.append(path)
        return found

    def disk_up(self) -> Path:
        """Puts a standing disk up; gives its server's socket."""
        places = ("--backing", f"{self.base}/backing", "--mount", f"{self.base}/mount")
        self.call("disk", "up", "service-5ms", *places)
        (found,) = (path for path in self.sockets() if "disk" in path.name)
        return found

    def end(self) -> None:
        """Takes everything back."""
        with contextlib.suppress(AssertionError):
            self.call("nodes", "down")
        if os.path.ismount(self.base / "mount"):
            self.call("disk", "down", f"{self.base}/mount")
        self.call("undo")
        shutil.rmtree(self.base)


@pytest.fixture
def ground() -> Iterator[Ground]:
    place = Ground()
    try:
        yield place
    finally:
        place.end()


def _tries(path: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """What another user could want with a path."""
    beside = f"{path}.{os.getpid()}"
    yield "read", lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    yield "write", lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    yield "list", lambda: os.listdir(path)
    yield "follow", lambda: os.readlink(path)
    yield "create in it", lambda: os.mknod(f"{path}/{os.getpid()}")
    yield "create beside it", lambda: os.mknod(beside)
    yield "replace", lambda: os.rename(path, beside)
    yield "remove", lambda: os.unlink(path)
    yield "chmod", lambda: os.chmod(path, 0o777)
    yield "link to", lambda: os.link(path, f"/var/tmp/{os.getpid()}")
    yield "connect", lambda: socket.socket(socket.AF_UNIX).connect(path)


def as_nobody(what: Callable[[], object]) -> object:
    """What a process of another user gets from `what`, as JSON carries it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with open(writes, "w") as out:
                json.dump(what(), out)
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as answer:
        got: object = json.load(answer)
    os.waitpid(child, 0)
    return got


def attacked(paths: list[Path]) -> list[str]:
    """What `nobody` can do with the paths."""

    def attack() -> list[str]:
        done = []
        for path in map(str, paths):
            for what, attempt in _tries(path):
                with contextlib.suppress(OSError):
                    attempt()
                    done.append(f"{what} {path}")
        return done

    done = as_nobody(attack)
    assert isinstance(done, list)
    return done


def open_to_others(paths: list[Path]) -> list[str]:
    """Paths that give others any permission."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if mode & 0o007 and not stat.S_ISLNK(mode):
                found.append(f"{mode & 0o7777:o} {path}")
    return found


def awaited(what: Callable[[], bool], within_s: float = 60.0) -> None:
    """Waits until it is so."""
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def judged(ground: Ground, *, least_sockets: int = 1) -> None:
    paths = ground.made()
    assert len(ground.sockets()) >= least_sockets
    # what a traced program of any user writes its annotations to; nothing is read from it
    allowed = {f"write {path}" for path in paths if path.name.startswith("marks-")}
    assert "\n".join(done for done in attacked(paths) if done not in allowed) == ""
    passable = {"state-passable", "run-passable"}
    closed = [p for p in paths if not passable & {part.name for part in (p, *p.parents)}]
    assert "\n".join(open_to_others(closed)) == ""


def test_the_attack_succeeds_where_nothing_is_closed(ground: Ground) -> None:
    place = ground.base / "run-planted"
    place.mkdir()
    place.chmod(0o777)
    planted = place / "planted.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(planted))
        planted.chmod(0o666)
        listener.listen()
        done = attacked(ground.made())
    assert {f"create in it {place}", f"replace {planted}"} <= set(done)


def test_a_standing_disk(ground: Ground) -> None:
    found = ground.disk_up()
    judged(ground)
    found.parent.chmod(0o755)
    assert attacked([found]) == []  # the socket's own mode keeps others out, too
    found.chmod(0o666)
    assert f"connect {found}" in attacked([found])  # planted, and found


def test_a_caller_of_another_user_gets_no_answer(ground: Ground) -> None:
    found = ground.disk_up()
    found.parent.chmod(0o755)
    found.chmod(0o666)

    def asked() -> str:
        with socket.socket(socket.AF_UNIX) as asker:
            asker.settimeout(10)
            asker.connect(str(found))
            try:
                asker.sendall(b'{"cmd": "ping"}\n')
                return asker.recv(4096).decode()
            except ConnectionError:
                return ""

    assert json.loads(asked())["ok"]
    assert as_nobody(asked) == ""


def test_virtual_nodes(ground: Ground) -> None:
    (ground.base / "cluster.yaml").write_text(PLATFORM)
    ground.call("nodes", "up", "cluster.yaml")
    judged(ground)


def test_a_trace_with_annotations(ground: Ground) -> None:
    words = ["trace", "--mode", "trace", "-o", f"{ground.base}/out/T", "--", "sleep", "20"]
    with ground.beside(*words):
        awaited(lambda: any(path.name.startswith("marks-") for path in ground.made()))
        awaited(lambda: len(ground.sockets()) > 0)
        judged(ground)


def test_a_server_of_pages(ground: Ground) -> None:
    with ground.beside("serve", "--port", "0"):
        awaited(lambda: any(path.name.startswith("serve-") for path in ground.made()))
        judged(ground, least_sockets=0)


def test_a_study(ground: Ground) -> None:
    (ground.base / "attacked.study.yaml").write_text(STUDY)
    with ground.beside("run", "attacked.study.yaml", "-o", f"{ground.base}/out/study"):
        awaited(lambda: any("disk-" in path.name for path in ground.sockets()))
        judged(ground)
