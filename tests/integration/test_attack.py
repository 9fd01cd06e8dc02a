"""Attacks of an unprivileged user on the files and sockets that penstock creates as root."""

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
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.known_host import with_known_host
from tests.integration.receivers import Receivers, listens, post
from tests.support import commands
from tests.support.environment import environment_in
from tests.support.files import files_below
from tests.support.waiting import until

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: changes the user"),
]

NOBODY = 65534
SET_ID = stat.S_ISUID | stat.S_ISGID
CAPABILITY = "security.capability"
#: struct vfs_cap_data of version 2 with the effective bit: all capabilities permitted, none inheritable
#: (linux/capability.h)
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
  command: dd if=/dev/zero of={data}/file bs={size} count=100 oflag=direct; sleep 250
  timeout: 5min
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
    """A state directory that every user can traverse, unlike pytest's directories."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="penstock-attack-", dir="/var/tmp"))
        self.base.chmod(0o755)
        with_known_host(self.base / "state")
        self.environment = environment_in(self.base)
        for name in ("backing", "mount", "out"):
            (self.base / name).mkdir(mode=0o700)

    def call(self, *argv: str) -> None:
        """Run a command; assert status 0."""
        result = commands.run(
            [*PENSTOCK, *argv], env=self.environment, capture_output=True, text=True, cwd=self.base
        )
        assert result.returncode == 0, result.stderr

    @contextlib.contextmanager
    def background(self, *argv: str) -> Iterator[None]:
        """Run a command in the background."""
        path = self.base / "out" / "log"
        with open(path, "ab") as log:
            child = commands.popen(
                [*PENSTOCK, *argv], env=self.environment, stdout=log, stderr=log, cwd=self.base
            )
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{argv[0]} printed: {path.read_text()}") from error
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(60)

    def created(self) -> list[Path]:
        """Paths in the state and runtime directories, without the contents of disks."""
        paths = []
        for top in self.base.iterdir():
            if top.name.startswith(("state", "run")):
                paths.append(top)
                for folder, folders, files in os.walk(top):
                    path = Path(folder)
                    folders[:] = [n for n in folders if not is_disk(path / n)]
                    paths += [path / n for n in (*folders, *files)]
        return paths

    def sockets(self) -> list[Path]:
        """Sockets of the running daemons."""
        paths = []
        for path in self.created():
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    paths.append(path)
        return paths

    def disk_up(self, *options: str) -> Path:
        """Start a persistent disk; return the socket of its server."""
        directories = ("--backing", f"{self.base}/backing", "--mount", f"{self.base}/mount")
        self.call("disk", "up", "none", *directories, *options)
        (server_socket,) = (path for path in self.sockets() if "disk" in path.name)
        return server_socket

    def end(self) -> None:
        """Stop nodes and the disk, undo all changes and remove the directory."""
        if list(self.base.glob("state-passable/clusters/*")):
            self.call("nodes", "down")
        if os.path.ismount(self.base / "mount"):
            self.call("disk", "down", f"{self.base}/mount")
        self.call("undo")
        shutil.rmtree(self.base)


def is_disk(path: Path) -> bool:
    """True for a mount point with files of programs, not of penstock."""
    return os.path.ismount(path) and not path.name.startswith("marks-")


@pytest.fixture
def ground() -> Iterator[Ground]:
    created = Ground()
    try:
        yield created
    finally:
        created.end()


def _accesses(path: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Accesses to a path that another user may attempt."""
    sibling = f"{path}.{os.getpid()}"
    yield "read", lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    yield "write", lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    yield "list", lambda: os.listdir(path)
    yield "follow", lambda: os.readlink(path)
    yield "create in it", lambda: os.mknod(f"{path}/{os.getpid()}")
    yield "create next to it", lambda: os.mknod(sibling)
    yield "replace", lambda: os.rename(path, sibling)
    yield "remove", lambda: os.unlink(path)
    yield "chmod", lambda: os.chmod(path, 0o777)
    yield "link to", lambda: os.link(path, f"/var/tmp/{os.getpid()}")
    yield "connect", lambda: socket.socket(socket.AF_UNIX).connect(path)


def as_nobody(action: Callable[[], object]) -> object:
    """Result of `action` in a process of user `nobody`, passed as JSON."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with open(writes, "w") as out:
                json.dump(action(), out)
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        result: object = json.load(pipe)
    os.waitpid(child, 0)
    return result


def successful_attacks(paths: list[Path]) -> list[str]:
    """Accesses to the paths in which user `nobody` succeeds."""

    def attack() -> list[str]:
        succeeded = []
        for path in map(str, paths):
            for access, attempt in _accesses(path):
                with contextlib.suppress(OSError):
                    attempt()
                    succeeded.append(f"{access} {path}")
        return succeeded

    succeeded = as_nobody(attack)
    assert isinstance(succeeded, list)
    return succeeded


def open_to_others(paths: list[Path]) -> list[str]:
    """Paths with any permission for others, except links and bind mounts of namespaces (nsfs)."""
    rows, nsfs = [], Path("/proc/self/ns/net").stat().st_dev
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            mode = status.st_mode
            if mode & 0o007 and not stat.S_ISLNK(mode) and status.st_dev != nsfs:
                rows.append(f"{mode & 0o7777:o} {path}")
    return rows


#: random part of a name
SECRET = re.compile(r"[0-9a-f]{12}")


def learnable(path: Path, base: Path) -> bool:
    """True if another user can learn the path: every directory with a random name in it can be listed."""
    for part in (path, *path.parents):
        if part == base:
            return True
        with contextlib.suppress(FileNotFoundError):
            if SECRET.search(part.name) and not part.parent.stat().st_mode & stat.S_IROTH:
                return False
    return True


def assert_closed(ground: Ground, *, least_sockets: int = 1) -> None:
    paths = [path for path in ground.created() if learnable(path, ground.base)]
    assert len(ground.sockets()) >= least_sockets
    # traced programs of any user write annotations to `marks`; it stores nothing
    allowed = {f"write {path}" for path in paths if path.name == "marks"}
    assert "\n".join(access for access in successful_attacks(paths) if access not in allowed) == ""
    passable = {"state-passable", "run-passable"}
    closed = [p for p in paths if not passable & {part.name for part in (p, *p.parents)}]
    assert "\n".join(open_to_others(closed)) == ""


def test_the_attack_succeeds_on_open_files(ground: Ground) -> None:
    directory = ground.base / "run-planted"
    directory.mkdir()
    directory.chmod(0o777)
    planted = directory / "planted.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(planted))
        planted.chmod(0o666)
        listener.listen()
        succeeded = successful_attacks(ground.created())
    assert {f"create in it {directory}", f"replace {planted}"} <= set(succeeded)


def test_a_persistent_disk(ground: Ground) -> None:
    server_socket = ground.disk_up()
    assert_closed(ground)
    server_socket.parent.chmod(0o755)
    assert successful_attacks([server_socket]) == []  # the mode of the socket denies access, too
    server_socket.chmod(0o666)
    # planted: an open socket
    assert f"connect {server_socket}" in successful_attacks([server_socket])


def test_a_caller_of_another_user_gets_no_answer(ground: Ground) -> None:
    server_socket = ground.disk_up()
    server_socket.parent.chmod(0o755)
    server_socket.chmod(0o666)

    def ping() -> str:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(server_socket))
            try:
                client.sendall(b'{"cmd": "ping"}\n')
                return client.recv(4096).decode()
            except ConnectionError:
                return ""

    assert json.loads(ping())["ok"]
    assert as_nobody(ping) == ""


def privileged_files(top: Path) -> list[str]:
    """Files that grant privileges to their users: setuid, setgid, capabilities and devices."""
    rows = []
    for path in top.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            privileged = bool(mode & SET_ID) or CAPABILITY in os.listxattr(path)
        else:
            privileged = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
        if privileged:
            rows.append(f"{stat.filemode(mode)} {path.name}")
    return rows


def mapped_write(path: str) -> None:
    """Change the first bytes through a mapping, which does not clear setuid bits by itself."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:4] = b"mine"
        mapping.flush()


def chmod_open(path: str, mode: int) -> None:
    """Write a file and set its mode with fchmod."""
    with open(path, "wb") as file:
        file.write(b"mine")
        os.fchmod(file.fileno(), mode)


def owner_actions(at: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Attempts of a disk's owner to leave privileged files on the host; `had-…` files exist before."""
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


def test_the_owner_of_a_disk_leaves_no_privileged_files_on_the_host(ground: Ground) -> None:
    backing, at = ground.base / "backing", ground.base / "mount"
    program = Path("/bin/true").read_bytes()
    for name in ("mapped", "truncated", "opened", "allocated", "kept"):
        (backing / f"had-{name}").write_bytes(program)
        (backing / f"had-{name}").chmod(0o6755)
        if name != "kept":
            os.setxattr(backing / f"had-{name}", CAPABILITY, ALL_CAPABILITIES)
    os.mknod(backing / "had-device", stat.S_IFCHR | 0o600, os.makedev(1, 11))
    assert len(privileged_files(backing)) == 6  # planted: the search finds them
    ground.disk_up("--owner", f"{NOBODY}:{NOBODY}")

    def attack() -> dict[str, str]:
        os.umask(0)
        errors = {}
        for action, attempt in owner_actions(str(at)):
            try:
                attempt()
                errors[action] = ""
            except OSError as error:
                errors[action] = error.strerror or "?"
        return errors

    errors = as_nobody(attack)
    assert isinstance(errors, dict)
    assert {action for action, error in errors.items() if error} == {
        *("device", "open a device", "capability")
    }
    assert sorted(privileged_files(backing)) == ["-rwsr-sr-x moved", "crw------- had-device"]
    assert (backing / "moved").read_bytes() == program
    assert (backing / "had-mapped").read_bytes()[:4] == b"mine"
    for path in backing.rglob("*"):  # the mount reports the stored modes
        assert path.lstat().st_mode == (at / path.relative_to(backing)).lstat().st_mode
    # setgid of a directory only sets the group of new files
    assert (backing / "group").stat().st_mode & stat.S_ISGID
    # the same rules apply to root: root of a node is root of the host
    (at / "by-root").write_bytes(program)
    (at / "by-root").chmod(0o6755)
    with pytest.raises(PermissionError):
        os.mknod(at / "node", stat.S_IFBLK | 0o600, os.makedev(1, 3))
    with pytest.raises(PermissionError):
        os.setxattr(at / "by-root", CAPABILITY, ALL_CAPABILITIES)
    assert sorted(privileged_files(backing)) == ["-rwsr-sr-x moved", "crw------- had-device"]


def test_without_an_owner_root_can_create_privileged_files(ground: Ground) -> None:
    ground.disk_up()
    (ground.base / "mount" / "f").write_bytes(b"")
    (ground.base / "mount" / "f").chmod(0o6755)
    os.mknod(ground.base / "mount" / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert sorted(privileged_files(ground.base / "backing")) == ["-rwsr-sr-x f", "crw------- null"]


def test_virtual_nodes(ground: Ground) -> None:
    (ground.base / "cluster.yaml").write_text(PLATFORM)
    ground.call("nodes", "up", "cluster.yaml")
    assert_closed(ground)


def test_a_trace_with_annotations(ground: Ground) -> None:
    argv = ["trace", "--mode", "trace", "-o", f"{ground.base}/out/T", "--", "sleep", "300"]
    with ground.background(*argv):
        until(lambda: any(path.name == "marks" for path in ground.created()))
        until(lambda: len(ground.sockets()) > 0)
        assert_closed(ground)
        (marks,) = (path for path in ground.created() if path.name == "marks")
        before = used_bytes(marks)

        def flood() -> int:
            with open(marks, "ab", buffering=0) as sink:
                return sum(sink.write(b"x" * (1 << 20)) for _ in range(64))

        assert as_nobody(flood) == 64 << 20
        assert (marks.stat().st_size, used_bytes(marks)) == (0, before)


def used_bytes(path: Path) -> int:
    """Used bytes of the file system of a path."""
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def test_a_monitored_command(ground: Ground) -> None:
    argv = ["monitor", "run", "-i", "0.1", "-o", f"{ground.base}/out/M", "--", "sleep", "300"]
    with ground.background(*argv):
        until(lambda: len(ground.sockets()) > 0)
        assert_closed(ground)


def test_a_server_with_receivers(ground: Ground) -> None:
    """Receivers store points of an experiment in files that other users cannot open."""
    receivers = Receivers.of(ground.base / "out")
    with ground.background("serve", "--port", "0", "--config", str(receivers.config)):
        runtime = ground.base / "run"
        # the last file that the server writes
        until(lambda: any(runtime.glob("serve-*.header")))
        (file,) = runtime.glob("serve-*.json")
        served = json.loads(file.read_text())
        authorized = {"Authorization": f"Bearer {served['experiments_token']}"}
        request = urllib.request.Request(f"{served['url']}exp/attacked", b"", authorized)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 201
        until(lambda: listens(receivers.influx))
        assert post(receivers.influx, "/write", b"m v=1 1") == 204

        def rejected_writes() -> list[int]:
            rejected = ({"Authorization": "Token x"}, {"Authorization": ""})
            return [post(receivers.influx, "/write", b"m v=1 2", **headers) for headers in rejected]

        assert as_nobody(rejected_writes) == [401, 401]
        assert any(path.suffix == ".batches" for path in ground.created())
        assert_closed(ground, least_sockets=0)


def test_a_study(ground: Ground) -> None:
    (ground.base / "attacked.study.yaml").write_text(STUDY)
    with ground.background("run", "attacked.study.yaml", "-o", f"{ground.base}/out/study"):
        work = ground.base / "state-passable" / "work"
        until(lambda: any(path.name == "file" for path, _ in files_below(work)))
        assert_closed(ground)
        (directory,) = work.iterdir()
        work.chmod(0o755)  # planted: the directories below can be found
        assert f"list {directory}" not in successful_attacks([directory])
        directory.chmod(0o755)
        paths = [path for path in ground.created() if learnable(path, ground.base)]
        assert f"list {directory}" in successful_attacks(paths)
