"""While penstock works as root, another user of the host tries all that it made."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.known_host import with_known_host
from tests.integration.receivers import Receivers, listens, posted
from tests.support import commands
from tests.support.environment import environment_in

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user"),
]

NOBODY = 65534
SET_ID = stat.S_ISUID | stat.S_ISGID
CAPABILITY = "security.capability"
#: version 2, effective: permitted all, inheritable none, by halves (linux/capability.h)
ALL_CAPABILITIES = struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
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
        with_known_host(self.base / "state")
        self.environment = environment_in(self.base)
        for name in ("backing", "mount", "out"):
            (self.base / name).mkdir(mode=0o700)

    def call(self, *words: str) -> None:
        """A command to its end, which is to succeed."""
        done = commands.run(
            [*PENSTOCK, *words], env=self.environment, capture_output=True, text=True, cwd=self.base
        )
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def beside(self, *words: str) -> Iterator[None]:
        """A command at work meanwhile."""
        said = self.base / "out" / "log"
        with open(said, "ab") as log:
            child = commands.popen(
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
        """Everything below the state and the runtime, whatever made it; disks are left out."""
        found = []
        for top in self.base.iterdir():
            if top.name.startswith(("state", "run")):
                found.append(top)
                for folder, folders, files in os.walk(top):
                    here = Path(folder)
                    folders[:] = [n for n in folders if not is_disk(here / n)]
                    found += [here / n for n in (*folders, *files)]
        return found

    def sockets(self) -> list[Path]:
        """Those of its daemons that run."""
        found = []
        for path in self.made():
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    found.append(path)
        return found

    def disk_up(self, *options: str) -> Path:
        """Puts a standing disk up; gives its server's socket."""
        places = ("--backing", f"{self.base}/backing", "--mount", f"{self.base}/mount")
        self.call("disk", "up", "none", *places, *options)
        (found,) = (path for path in self.sockets() if "disk" in path.name)
        return found

    def end(self) -> None:
        """Takes everything back."""
        if list(self.base.glob("state-passable/clusters/*")):
            self.call("nodes", "down")
        if os.path.ismount(self.base / "mount"):
            self.call("disk", "down", f"{self.base}/mount")
        self.call("undo")
        shutil.rmtree(self.base)


def is_disk(path: Path) -> bool:
    """Whether something is mounted there that programs keep their own files in."""
    return os.path.ismount(path) and not path.name.startswith("marks-")


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
    """Paths that give others any permission; a namespace bound to a name has the kernel's own (nsfs)."""
    found, nsfs = [], Path("/proc/self/ns/net").stat().st_dev
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            mode = status.st_mode
            if mode & 0o007 and not stat.S_ISLNK(mode) and status.st_dev != nsfs:
                found.append(f"{mode & 0o7777:o} {path}")
    return found


def awaited(what: Callable[[], bool], within_s: float = 60.0) -> None:
    """Waits until it is so."""
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


#: what no one guesses in a name
SECRET = re.compile(r"[0-9a-f]{12}")


def learnable(path: Path, base: Path) -> bool:
    """Whether another user can come to know what it is called: names on the way that cannot be guessed have
    to be listed where they lie."""
    for part in (path, *path.parents):
        if part == base:
            return True
        with contextlib.suppress(FileNotFoundError):
            if SECRET.search(part.name) and not part.parent.stat().st_mode & stat.S_IROTH:
                return False
    return True


def judged(ground: Ground, *, least_sockets: int = 1) -> None:
    paths = [path for path in ground.made() if learnable(path, ground.base)]
    assert len(ground.sockets()) >= least_sockets
    # what a traced program of any user writes its annotations to; nothing is stored of it
    allowed = {f"write {path}" for path in paths if path.name == "marks"}
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


def acting(top: Path) -> list[str]:
    """Files below that give who runs or opens them more: setuid, setgid, capabilities, devices."""
    found = []
    for path in top.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            privileged = bool(mode & SET_ID) or CAPABILITY in os.listxattr(path)
        else:
            privileged = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
        if privileged:
            found.append(f"{stat.filemode(mode)} {path.name}")
    return found


def mapped_write(path: str) -> None:
    """Changes the first bytes by way of a mapping, which clears no bits by itself."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:4] = b"mine"
        mapping.flush()


def chmod_open(path: str, mode: int) -> None:
    """By descriptor."""
    with open(path, "wb") as file:
        file.write(b"mine")
        os.fchmod(file.fileno(), mode)


def owned_tries(at: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """How the owner of a disk could leave what acts on the host, with files `had-…` that did before."""
    own = f"{at}/own"
    yield "file", lambda: Path(own).write_bytes(b"mine")
    yield "chmod u+s", lambda: os.chmod(own, 0o4755)
    yield "chmod g+s", lambda: os.chmod(own, 0o2755)
    yield "chown", lambda: os.chown(own, NOBODY, NOBODY)
    yield "chmod after chown", lambda: os.chmod(own, 0o6755)
    yield "rename", lambda: os.rename(own, f"{own}-renamed")
    yield "chmod after rename", lambda: os.chmod(f"{own}-renamed", 0o6777)
    yield "fchmod", lambda: chmod_open(f"{at}/by-descriptor", 0o6755)
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
    for number, mode in enumerate((0o4755, 0o2755, 0o6711)):
        path = f"{at}/created-{number}"
        yield "create", lambda path=path, mode=mode: os.close(os.open(path, flags, mode))
        yield "mknod", lambda path=path, mode=mode: os.mknod(f"{path}-node", stat.S_IFREG | mode)
    group = f"{at}/group"
    yield "mkdir", lambda: os.mkdir(group)
    yield "directory g+s", lambda: os.chmod(group, 0o2777)
    yield "create there", lambda: os.close(os.open(f"{group}/f", flags, 0o6755))
    yield "chmod there", lambda: os.chmod(f"{group}/f", 0o6755)
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        yield "device", lambda kind=kind: os.mknod(f"{at}/node", kind | 0o666, os.makedev(1, 3))
    yield "open a device", lambda: os.chmod(f"{at}/had-device", 0o666)
    yield "capability", lambda: os.setxattr(own, CAPABILITY, ALL_CAPABILITIES)
    yield "mapped", lambda: mapped_write(f"{at}/had-mapped")
    yield "truncate", lambda: os.truncate(f"{at}/had-truncated", 8)
    yield "ftruncate", lambda: os.close(os.open(f"{at}/had-opened", os.O_WRONLY | os.O_TRUNC))

    def allocate() -> None:
        with open(f"{at}/had-allocated", "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, 1 << 20)

    yield "fallocate", allocate
    yield "link", lambda: os.link(f"{at}/had-mapped", f"{at}/linked")
    yield "mapped by the link", lambda: mapped_write(f"{at}/linked")
    yield "rename what was there", lambda: os.rename(f"{at}/had-kept", f"{at}/moved")


def test_the_owner_of_a_disk_leaves_nothing_that_acts_on_the_host(ground: Ground) -> None:
    backing, at = ground.base / "backing", ground.base / "mount"
    before = Path("/bin/true").read_bytes()
    for name in ("mapped", "truncated", "opened", "allocated", "kept"):
        (backing / f"had-{name}").write_bytes(before)
        (backing / f"had-{name}").chmod(0o6755)
        if name != "kept":
            os.setxattr(backing / f"had-{name}", CAPABILITY, ALL_CAPABILITIES)
    os.mknod(backing / "had-device", stat.S_IFCHR | 0o600, os.makedev(1, 11))
    assert len(acting(backing)) == 6  # the search finds them
    ground.disk_up("--owner", f"{NOBODY}:{NOBODY}")

    def attack() -> dict[str, str]:
        os.umask(0)
        said = {}
        for what, attempt in owned_tries(str(at)):
            try:
                attempt()
                said[what] = ""
            except OSError as error:
                said[what] = error.strerror or "?"
        return said

    said = as_nobody(attack)
    assert isinstance(said, dict)
    assert {what for what, error in said.items() if error} == {
        *("device", "open a device", "capability")
    }
    assert sorted(acting(backing)) == ["-rwsr-sr-x moved", "crw------- had-device"]
    assert (backing / "moved").read_bytes() == before
    assert (backing / "had-mapped").read_bytes()[:4] == b"mine"
    for path in backing.rglob("*"):  # and the mount says what is so
        assert path.lstat().st_mode == (at / path.relative_to(backing)).lstat().st_mode
    assert (backing / "group").stat().st_mode & stat.S_ISGID  # of a directory: who made it
    # of others than the owner, too: a node's root is the host's
    (at / "by-root").write_bytes(before)
    (at / "by-root").chmod(0o6755)
    with pytest.raises(PermissionError):
        os.mknod(at / "node", stat.S_IFBLK | 0o600, os.makedev(1, 3))
    with pytest.raises(PermissionError):
        os.setxattr(at / "by-root", CAPABILITY, ALL_CAPABILITIES)
    assert sorted(acting(backing)) == ["-rwsr-sr-x moved", "crw------- had-device"]


def test_without_an_owner_root_keeps_what_it_makes(ground: Ground) -> None:
    ground.disk_up()
    (ground.base / "mount" / "f").write_bytes(b"")
    (ground.base / "mount" / "f").chmod(0o6755)
    os.mknod(ground.base / "mount" / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert sorted(acting(ground.base / "backing")) == ["-rwsr-sr-x f", "crw------- null"]


def test_virtual_nodes(ground: Ground) -> None:
    (ground.base / "cluster.yaml").write_text(PLATFORM)
    ground.call("nodes", "up", "cluster.yaml")
    judged(ground)


def test_a_trace_with_annotations(ground: Ground) -> None:
    words = ["trace", "--mode", "trace", "-o", f"{ground.base}/out/T", "--", "sleep", "20"]
    with ground.beside(*words):
        awaited(lambda: any(path.name == "marks" for path in ground.made()))
        awaited(lambda: len(ground.sockets()) > 0)
        judged(ground)
        (marks,) = (path for path in ground.made() if path.name == "marks")
        before = used(marks)

        def flood() -> int:
            with open(marks, "ab", buffering=0) as sink:
                return sum(sink.write(b"x" * (1 << 20)) for _ in range(64))

        assert as_nobody(flood) == 64 << 20
        assert (marks.stat().st_size, used(marks)) == (0, before)


def used(path: Path) -> int:
    """Bytes that the file system of a path has no more."""
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def test_a_monitored_command(ground: Ground) -> None:
    words = ["monitor", "run", "-i", "0.1", "-o", f"{ground.base}/out/M", "--", "sleep", "20"]
    with ground.beside(*words):
        awaited(lambda: len(ground.sockets()) > 0)
        judged(ground)


def test_a_server_of_pages(ground: Ground) -> None:
    """Its receivers at work for an experiment; what they keep is as closed as the rest."""
    receivers = Receivers.of(ground.base / "out")
    with ground.beside("serve", "--port", "0", "--config", str(receivers.config)):
        runtime = ground.base / "run"
        awaited(lambda: any(runtime.glob("serve-*.header")))  # it is the last one to be written
        (file,) = runtime.glob("serve-*.json")
        served = json.loads(file.read_text())
        right = {"Authorization": f"Bearer {served['experiments_token']}"}
        begin = urllib.request.Request(f"{served['url']}exp/attacked", b"", right)
        with urllib.request.urlopen(begin, timeout=60) as answer:
            assert answer.status == 201
        awaited(lambda: listens(receivers.influx))
        assert posted(receivers.influx, "/write", b"m v=1 1") == 204

        def write() -> list[int]:
            wrong = ({"Authorization": "Token x"}, {"Authorization": ""})
            return [posted(receivers.influx, "/write", b"m v=1 2", **words) for words in wrong]

        assert as_nobody(write) == [401, 401]
        assert any(path.suffix == ".batches" for path in ground.made())
        judged(ground, least_sockets=0)


def test_a_study(ground: Ground) -> None:
    (ground.base / "attacked.study.yaml").write_text(STUDY)
    with ground.beside("run", "attacked.study.yaml", "-o", f"{ground.base}/out/study"):
        work = ground.base / "state-passable" / "work"
        awaited(lambda: any(path.name == "file" for path in work.rglob("*")))
        judged(ground)
        (place,) = work.iterdir()
        work.chmod(0o755)  # planted: what is below can be found, and is
        assert f"list {place}" not in attacked([place])
        place.chmod(0o755)
        found = [path for path in ground.made() if learnable(path, ground.base)]
        assert f"list {place}" in attacked(found)
