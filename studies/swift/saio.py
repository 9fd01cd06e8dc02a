"""A Swift of one proxy and four devices in a private directory, as packaged: start and stop.

    saio.py up DIR [--port P] [--device D]… [--middleware] [--replicas N] [--workers N]   runs until SIGTERM
    saio.py daemon DIR PROGRAM CONFIGURATION   becomes one of its daemons

Needs Debian's swift-proxy, swift-account, swift-container, swift-object and memcached. All listen on
127.0.0.1, on free ports; the proxy's port is P if it is given. Each device is a directory with its own object
server (`--device`: existing directories, such as the disks of a node); one account server and one container
server serve all of them. `DIR/swift.json` contains all addresses as soon as it is ready. The account is
`test`, its user `tester`; the key is in `DIR/swift.json`, which has mode 0600. With `--middleware` the object
servers report bandwidths: `GET /bwinfo`, `GET /osinfo`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
MIDDLEWARE = HERE.parent.parent / "python/penstock/parts/monitoring/usage/swift_bandwidth.py"
DEVICES = 4
#: Swift's programs run with Debian's Python, independent of the path
PYTHON = "/usr/bin/python3"
PROGRAMS = {
    kind: f"/usr/bin/swift-{kind}-server" for kind in ("proxy", "account", "container", "object")
}
READY_S, END_S = 90.0, 10.0
POLICY = "gold"


class SwiftError(Exception):
    """Swift cannot be started, or does not answer."""


def missing() -> list[str]:
    """Missing Debian packages."""
    lacking = [f"swift-{kind}" for kind, path in PROGRAMS.items() if not os.path.exists(path)]
    return [*lacking, *([] if shutil.which("memcached") else ["memcached"])]


@dataclass
class Swift:
    """A running Swift. `objects`: the object servers, HOST:PORT by device."""

    directory: Path
    port: int
    key: str
    objects: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def down(self) -> None:
        """Stop its processes, by their ids."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + END_S
        for process in self.processes.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.processes = {}

    def client(self) -> Client:
        """A connection to its proxy, authenticated."""
        return Client(self.port, self.key)


class Client:
    """Operations of a client of the object store, over one persistent connection."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"X-Auth-User": "test:tester", "X-Auth-Key": key}
        _, answer, _ = self._send("GET", "/auth/v1.0", headers=headers)
        self._token = answer["x-auth-token"]
        self._root = urllib.parse.urlsplit(answer["x-storage-url"]).path

    def make(self, container: str) -> None:
        self.request("PUT", f"/{container}")

    def put(self, container: str, name: str, content: bytes) -> None:
        self.request("PUT", f"/{container}/{urllib.parse.quote(name)}", content)

    def get(self, container: str, name: str) -> bytes:
        return self.request("GET", f"/{container}/{urllib.parse.quote(name)}")

    def request(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """SwiftError unless the response is a success."""
        headers = {"X-Auth-Token": self._token}
        _, _, body = self._send(method, self._root + path, content, headers)
        return body

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        self._connection.request(method, path, content, headers or {})
        answer = self._connection.getresponse()
        body = answer.read()
        if not 200 <= answer.status < 300:
            raise SwiftError(f"{method} {path}: {answer.status} {answer.reason}: {body[:200]!r}")
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body

    def close(self) -> None:
        self._connection.close()


def up(
    directory: Path,
    *,
    port: int = 0,
    devices: list[Path] | None = None,
    middleware: bool = False,
    options: dict[str, str] | None = None,
    replicas: int = 3,
    workers: int = 0,
    more_code: str = "",
) -> Swift:
    """Start Swift in a new or empty directory. `options` are those of the middleware. `more_code` is appended
    to its copy of the middleware.

    Raises SwiftError with the reason; no process is left running then.
    """
    if absent := missing():
        raise SwiftError(f"missing Debian packages: {' '.join(absent)}")
    directory = directory.resolve()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SwiftError(f"found files in {directory}; expected an empty directory")
    roots = _devices(directory, devices)
    ports = _free_ports(len(roots) + 4)
    proxy, memcached, account, container, *objects = ports
    proxy = port or proxy
    key = secrets.token_urlsafe(24)
    (directory / "swift.conf").write_text(
        f"[swift-hash]\nswift_hash_path_suffix = {secrets.token_hex(8)}\n"
        f"swift_hash_path_prefix = {secrets.token_hex(8)}\n"
        f"[storage-policy:0]\nname = {POLICY}\ndefault = yes\n"
    )
    names = [f"sdb{i + 1}" for i in range(len(roots))]
    kinds = {
        "account": [(account, name) for name in names],
        "container": [(container, name) for name in names],
        "object": list(zip(objects, names, strict=True)),
    }
    _rings(directory, kinds, replicas)
    if middleware:
        (directory / "python").mkdir()
        text = MIDDLEWARE.read_text(encoding="utf-8") + more_code
        (directory / "python" / MIDDLEWARE.name).write_text(text, encoding="utf-8")
    conf = _Configuration(directory, workers, middleware, options or {})
    _private(directory / "proxy.conf", conf.proxy(proxy, memcached, key))
    (directory / "account.conf").write_text(conf.storage("account", account))
    (directory / "container.conf").write_text(conf.storage("container", container))
    for name, object_port in zip(names, objects, strict=True):
        (directory / f"object-{name}.conf").write_text(conf.storage("object", object_port, name))
    swift = Swift(
        directory,
        proxy,
        key,
        {n: f"127.0.0.1:{p}" for n, p in zip(names, objects, strict=True)},
    )
    try:
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        argv = ["memcached", "-l", "127.0.0.1", "-p", str(memcached), "-U", "0", "-m", "32", *user]
        _start(swift, "memcached", argv)
        daemon = [PYTHON, str(Path(__file__).resolve()), "daemon", str(directory)]
        for kind in ("account", "container"):
            _start(swift, kind, [*daemon, PROGRAMS[kind], f"{kind}.conf"])
        for name in names:
            _start(swift, f"object-{name}", [*daemon, PROGRAMS["object"], f"object-{name}.conf"])
        _start(swift, "proxy", [*daemon, PROGRAMS["proxy"], "proxy.conf"])
        for name, object_port in (("account", account), ("container", container), ("proxy", proxy)):
            _await(swift, name, object_port)
        for name, object_port in zip(names, objects, strict=True):
            _await(swift, f"object-{name}", object_port)
    except BaseException:
        swift.down()
        raise
    description = {
        "port": proxy,
        "auth": f"http://127.0.0.1:{proxy}/auth/v1.0",
        "user": "test:tester",
        "key": key,
        "objects": swift.objects,
        "pids": {name: process.pid for name, process in swift.processes.items()},
    }
    _private(directory / "swift.json", json.dumps(description, indent=1) + "\n")
    return swift


def _devices(directory: Path, directories: list[Path] | None) -> list[Path]:
    """`DIR/devices/sdb1` and so on: directories, or links to the given ones. `DIR/served/sdb1` contains the
    only device that the object server of sdb1 serves.
    """
    root = directory / "devices"
    root.mkdir()
    served = directory / "served"
    served.mkdir()
    paths = []
    for i in range(len(directories) if directories else DEVICES):
        path = root / f"sdb{i + 1}"
        if directories:
            if not directories[i].is_dir():
                raise SwiftError(f"found no directory {directories[i]}; expected a device")
            path.symlink_to(directories[i].resolve())
        else:
            path.mkdir()
        try:
            os.setxattr(path, "user.penstock", b"1")
        except OSError as error:
            raise SwiftError(f"{path}: {error.strerror}; expected extended attributes") from None
        (served / path.name).mkdir()
        (served / path.name / path.name).symlink_to(path)
        paths.append(path)
    return paths


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


def _rings(directory: Path, kinds: dict[str, list[tuple[int, str]]], replicas: int) -> None:
    """The three rings, built by Swift's own builder in one process of Swift's Python."""
    document = json.dumps({"kinds": kinds, "replicas": replicas})
    argv = [PYTHON, str(Path(__file__).resolve()), "rings", str(directory), document]
    result = subprocess.run(argv, capture_output=True, text=True)
    if result.returncode:
        raise SwiftError(f"no rings: {result.stderr[-300:].strip()}")


def build(directory: Path, kinds: dict[str, list[tuple[int, str]]], replicas: int) -> None:
    """Rings of 64 partitions over devices (port, name), each in its own zone."""
    from swift.common.ring import RingBuilder  # type: ignore[import-not-found]

    for kind, places in kinds.items():
        builder = RingBuilder(6, min(replicas, len(places)), 0)
        for zone, (port, device) in enumerate(places, 1):
            address = {"ip": "127.0.0.1", "port": port, "device": device}
            builder.add_dev({"region": 1, "zone": zone, "weight": 1.0, **address})
        builder.rebalance(seed="penstock")
        builder.get_ring().save(str(directory / f"{kind}.ring.gz"))


@dataclass
class _Configuration:
    directory: Path
    workers: int
    middleware: bool
    options: dict[str, str]

    def proxy(self, port: int, memcached: int, key: str) -> str:
        return f"""{self._common(port)}
[pipeline:main]
pipeline = catch_errors cache tempauth proxy-server

[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true

[filter:catch_errors]
use = egg:swift#catch_errors

[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}

[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {key} .admin
"""

    def storage(self, kind: str, port: int, device: str = "") -> str:
        watched = self.middleware and kind == "object"
        text = f"""{self._common(port, device)}
[pipeline:main]
pipeline = {"bandwidth " if watched else ""}{kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
"""
        if watched:
            lines = ["paste.filter_factory = swift_bandwidth:filter_factory"]
            lines += [f"{k} = {v}" for k, v in self.options.items()]
            if self.workers > 1:
                lines.append(f"state = {self.directory}/state-{device}")
            text += "\n[filter:bandwidth]\n" + "\n".join(lines) + "\n"
        return text

    def _common(self, port: int, device: str = "") -> str:
        return f"""[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {self.directory}
devices = {self.directory / (f"served/{device}" if device else "devices")}
mount_check = false
disable_fallocate = true
workers = {self.workers}
user = {"root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")}
recon_cache_path = {self.directory}/recon
"""


def _private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _start(swift: Swift, name: str, argv: list[str]) -> None:
    (swift.directory / "logs").mkdir(exist_ok=True)
    (swift.directory / "recon").mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV")}
    with open(swift.directory / "logs" / f"{name}.txt", "wb") as log:
        swift.processes[name] = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, "PYTHONPATH": str(swift.directory / "python")},
            start_new_session=True,
        )


def _await(swift: Swift, name: str, port: int) -> None:
    until = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        ended = swift.processes[name].poll() is not None
        if ended or time.monotonic() > until:
            log = (swift.directory / "logs" / f"{name}.txt").read_text(errors="replace")
            failure = "ended" if ended else f"did not listen within {READY_S:g} s"
            raise SwiftError(f"{name} {failure}: {log[-400:].strip()}")
        time.sleep(0.05)


@contextlib.contextmanager
def running(directory: Path, **options: object) -> Iterator[Swift]:
    """Start one as `up` does, and stop it afterwards."""
    swift = up(directory, **options)  # type: ignore[arg-type]
    try:
        yield swift
    finally:
        swift.down()


def become(directory: Path, program: str, configuration: str) -> None:
    """Turn this process into a daemon of Swift, with the swift.conf of the directory."""
    import runpy

    from swift.common.utils import set_swift_dir  # type: ignore[import-not-found]

    set_swift_dir(str(directory))
    sys.argv = [program, str(directory / configuration), "-v"]
    runpy.run_path(program, run_name="__main__")


def _stay(swift: Swift) -> int:
    signals: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    print(f"ready: http://127.0.0.1:{swift.port}/auth/v1.0", flush=True)
    while not signals:
        for name, process in swift.processes.items():
            if process.poll() is not None:
                print(f"saio: {name} has ended with {process.returncode}", file=sys.stderr)
                return 1
        time.sleep(0.2)
    return 0


def main() -> int:
    """Exit status: 0 terminated on request, 1 something failed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = options.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("up")
    make.add_argument("directory", type=Path)
    make.add_argument("--port", type=int, default=0)
    make.add_argument("--device", type=Path, action="append")
    make.add_argument("--middleware", action="store_true")
    make.add_argument("--replicas", type=int, default=3)
    make.add_argument("--workers", type=int, default=0)
    daemon = verbs.add_parser("daemon")
    daemon.add_argument("directory", type=Path)
    daemon.add_argument("program")
    daemon.add_argument("configuration")
    rings = verbs.add_parser("rings")
    rings.add_argument("directory", type=Path)
    rings.add_argument("document")
    arguments = options.parse_args()
    if arguments.verb == "daemon":
        become(arguments.directory, arguments.program, arguments.configuration)
        return 0
    if arguments.verb == "rings":
        document = json.loads(arguments.document)
        build(arguments.directory, document["kinds"], int(document["replicas"]))
        return 0
    try:
        swift = up(
            arguments.directory,
            port=arguments.port,
            devices=arguments.device,
            middleware=arguments.middleware,
            replicas=arguments.replicas,
            workers=arguments.workers,
        )
    except SwiftError as error:
        print(f"saio: {error}", file=sys.stderr)
        return 1
    try:
        return _stay(swift)
    finally:
        swift.down()


if __name__ == "__main__":
    sys.exit(main())
