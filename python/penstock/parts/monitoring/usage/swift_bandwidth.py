"""Bandwidth of a Swift object server's devices and of its requests: `GET /bwinfo`, `GET /osinfo`.

A WSGI filter for the pipeline of an object server. This file is complete and needs only Python's standard
library, so that the Python of Swift can import it from any directory. Rates are in MB/s (10^6 bytes).

    [filter:bandwidth]
    paste.filter_factory = swift_bandwidth:filter_factory
    windows = 1 2 3 5          # minutes
    token_file =               # with a token, users other than root and the server's are admitted, too
    state =                    # a directory of the server's own, where it has several workers
    needed =                   # ACCOUNT=MB/s ...
    off_while =                # a path: while there is such a file nothing is counted

`bwinfo`: of each device the rate of the last second and mean, minimum, maximum over windows
(now - 60 k, now], and the share of the window for which there are samples. `osinfo`: object server, disk,
thread (one per account and policy), and its requests: those under way and the last that ended.
Both are answered only for the token, or for root and the server's own user on this host, by the kernel's
table of connections. Of client requests only the path and the range are kept, in a bounded number,
and only if the object server did not refuse the request.
"""

from __future__ import annotations

import collections
import hmac
import ipaddress
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

#: minutes
WINDOWS = (1, 2, 3, 5)
MOST_MINUTES = 60
#: devices of one server; requests that are remembered of each account and policy; such accounts
MOST_DEVICES = 256
MOST_OBJECTS = 20
MOST_THREADS = 64
#: requests of a server that are followed while they are under way
MOST_UNDER_WAY = 4096
#: how long a completed request is reported [s]
REMEMBER_S = 60.0
#: limit of a path and of a range [characters]
_LONGEST = 1500
_MB = 1e6
#: interval of a worker's writes for the others, and of its checks for `off_while` [s]
_WRITE_S = 1.0
_LOOK_S = 0.2
_LOCAL = re.compile(r"^(127\.\d+\.\d+\.\d+|::1|::ffff:127\.\d+\.\d+\.\d+)$")
_PORT = re.compile(r"^[0-9]{1,5}$")
_RANGE = re.compile(r"^bytes=[0-9, -]{1,100}$")
_DEVICE = re.compile(r"^[A-Za-z0-9._-]{1,100}$")


def accounts_of(address: str, port: int, to_port: int, protocol: str = "tcp") -> set[int]:
    """User ids of this host's sockets at `address` and `port` that send to `to_port`, by /proc/net.

    Empty if there is none, or it was closed: a socket without an inode has no owner, whatever the table
    shows. Receivers of points use it, too; it is here because this file has no imports from penstock.
    """
    ip = _ip(address)
    uids = set()
    digits = f":{port:04X} "  # of the port in the table, which may have many thousands of rows
    for table in ("/proc/net/" + protocol, "/proc/net/" + protocol + "6"):
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines if digits in line]
        except OSError:
            continue
        for row in rows:
            local, _, local_port = row[1].partition(":")
            remote_port = int(row[2].rpartition(":")[2], 16)
            datagrams = protocol == "udp"
            if int(local_port, 16) != port or row[9] == "0":
                continue
            if remote_port != to_port and not (datagrams and remote_port == 0):
                continue
            near = _table_ip(local)
            if near == ip or (datagrams and near.is_unspecified):
                uids.add(int(row[7]))
    return uids


def are_ours(uids: set[int]) -> bool:
    """True if all are root or the user of this process; false if there is none."""
    return bool(uids) and uids <= {0, os.geteuid()}


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; one of IPv4 that is written as IPv6 is the former."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _table_ip(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address of /proc/net: groups of 32 bits, each in the byte order of the host."""
    groups = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    ordered = [group[::-1] if sys.byteorder == "little" else group for group in groups]
    return _ip(str(ipaddress.ip_address(b"".join(ordered))))


def statistics(
    samples: Sequence[tuple[float, float]],
    now_s: float,
    windows: Iterable[int] = WINDOWS,
    step_s: float = 1.0,
) -> dict[str, float | None]:
    """Statistics of rates over windows (now - 60 k, now] of k minutes each.

    A sample (time, rate) is stamped at its end and covers the `step_s` before it; samples ascend by time.
    Missing samples count only in `cov` (0 to 1); the other statistics of a window without any are None.
    `insta` is the sample of the last `step_s`, None if there is none.
    """
    result: dict[str, float | None] = {"insta": None}
    latest = [rate for at, rate in samples if now_s - step_s < at <= now_s]
    if latest:
        result["insta"] = latest[-1]
    for minutes in windows:
        inside = [rate for at, rate in samples if now_s - 60 * minutes < at <= now_s]
        due = max(1, math.floor(60 * minutes / step_s))
        there = len(inside) > 0
        result[f"mean{minutes}min"] = math.fsum(inside) / len(inside) if there else None
        result[f"min{minutes}min"] = min(inside) if there else None
        result[f"max{minutes}min"] = max(inside) if there else None
        result[f"cov{minutes}min"] = min(1.0, len(inside) / due)
    return result


class Seconds:
    """Bytes by second, the last `length` of them."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._second = [-1] * length
        self._bytes = [0] * length

    def add(self, count: int, now_s: float) -> None:
        second = int(now_s)
        at = second % self._length
        if self._second[at] != second:
            self._second[at], self._bytes[at] = second, 0
        self._bytes[at] += count

    def since(self, second: int) -> dict[int, int]:
        """Bytes of the seconds from that one on in which there were any."""
        pairs = zip(self._second, self._bytes)  # noqa: B905 - of one length
        return {s: n for s, n in pairs if s >= second}


class Transfer:
    """One request for an object."""

    __slots__ = ("account", "begun_s", "bytes", "device", "ended_s", "oid", "policy", "range")

    def __init__(
        self, device: str, policy: str, account: str, oid: str, range_: str, now_s: float
    ) -> None:
        self.device, self.policy, self.account = device, policy, account
        self.oid, self.range = oid, range_
        self.begun_s, self.ended_s, self.bytes = now_s, math.nan, 0

    def report(self, now_s: float) -> dict[str, Any]:
        ended_s = now_s if math.isnan(self.ended_s) else self.ended_s
        took_s = max(ended_s - self.begun_s, 1e-6)
        return {
            "range": self.range,
            "oid": self.oid,
            "oid_calculated_BW": round(self.bytes / _MB / took_s, 6),
        }


class Counted:
    """Counts of one process of the server."""

    def __init__(self, longest_minutes: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._length = 60 * longest_minutes + 2
        self.begun_s = clock()
        self._devices: dict[str, Seconds] = {}
        self._under_way: dict[int, Transfer] = {}
        self._ended: collections.OrderedDict[tuple[str, str, str], collections.deque[Transfer]] = (
            collections.OrderedDict()
        )
        #: requests that were not followed because there were too many
        self.omitted = 0

    def device(self, name: str) -> None:
        if name not in self._devices and len(self._devices) < MOST_DEVICES:
            self._devices[name] = Seconds(self._length)

    def begin(self, transfer: Transfer) -> None:
        self.device(transfer.device)
        if len(self._under_way) < MOST_UNDER_WAY:
            self._under_way[id(transfer)] = transfer
        else:
            self.omitted += 1

    def moved(self, transfer: Transfer, count: int) -> None:
        transfer.bytes += count
        seconds = self._devices.get(transfer.device)
        if seconds is not None:
            seconds.add(count, self._clock())

    def end(self, transfer: Transfer) -> None:
        transfer.ended_s = self._clock()
        self._under_way.pop(id(transfer), None)
        key = (transfer.device, transfer.policy, transfer.account)
        recent = self._ended.setdefault(key, collections.deque(maxlen=MOST_OBJECTS))
        recent.append(transfer)
        self._ended.move_to_end(key)
        while len(self._ended) > MOST_THREADS:
            self._ended.popitem(last=False)

    def forget(self, transfer: Transfer) -> None:
        """A request that the object server refused."""
        self._under_way.pop(id(transfer), None)

    def document(self) -> dict[str, Any]:
        """All of it, as it is shared with the other workers of the server."""
        now_s = self._clock()
        first = int(now_s) - self._length
        threads: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for (device, policy, account), ended in list(self._ended.items()):
            recent = [t for t in list(ended) if now_s - t.ended_s <= REMEMBER_S]
            if recent:
                threads[device, policy, account] = [t.report(now_s) for t in recent]
        for one in list(self._under_way.values()):
            key = (one.device, one.policy, one.account)
            if key in threads or len(threads) < 2 * MOST_THREADS:
                rows = threads.setdefault(key, [])
                if len(rows) < 2 * MOST_OBJECTS:
                    rows.append(one.report(now_s))
        return {
            "begun_s": self.begun_s,
            "devices": {
                name: sorted(seconds.since(first).items())
                for name, seconds in list(self._devices.items())
            },
            "threads": [[*key, objects] for key, objects in threads.items()],
        }


def bandwidths(
    documents: Sequence[Mapping[str, Any]], now_s: float, windows: Sequence[int]
) -> dict[str, dict[str, float | None]]:
    """`bwinfo` of all workers of a server: the sum of their counts, second by second [MB/s].

    Samples begin with the second in which the first worker started.
    """
    if not documents:
        return {}
    begun = int(min(float(d["begun_s"]) for d in documents))
    first, last = max(begun, int(now_s) - 60 * max(windows)), int(now_s)
    moved: dict[str, dict[int, int]] = {}
    for document in documents:
        for name, seconds in document["devices"].items():
            of_device = moved.setdefault(name, {})
            for second, count in seconds:
                of_device[second] = of_device.get(second, 0) + count
    return {
        name: statistics(
            [(float(s + 1), counts.get(s, 0) / _MB) for s in range(first, last)], last, windows
        )
        for name, counts in sorted(moved.items())
    }


def requests(
    documents: Sequence[Mapping[str, Any]],
    server: str,
    needed: Mapping[str, float],
    policies: Mapping[str, str],
) -> dict[str, Any]:
    """`osinfo` of the requests of all workers of a server."""
    disks: dict[str, dict[str, Any]] = {name: {} for d in documents for name in d["devices"]}
    for document in documents:
        for device, policy, account, objects in document["threads"]:
            threads = disks.setdefault(device, {})
            threads[str(len(threads))] = {
                "policy": policies.get(policy, policy),
                "account": account,
                "identifier": "object",
                "needed_BW": needed.get(account, -1),
                "objects": objects,
            }
    return {server: disks}


class Shared:
    """One file per worker in the server's directory, so that any of them can answer for all."""

    def __init__(self, directory: str, counted: Counted, longest_s: float) -> None:
        self._directory, self._counted, self._longest_s = directory, counted, longest_s
        self._pid = os.getpid()
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def begin(self) -> None:
        """Write this worker's file every second from now on."""
        eventlet = sys.modules.get("eventlet")
        if eventlet is not None:  # Swift's threads are green ones, which must not block
            eventlet.spawn_n(self._go_on, eventlet.sleep)
        else:
            work = threading.Thread(target=self._go_on, args=(time.sleep,), daemon=True)
            work.start()

    def _go_on(self, sleep: Callable[[float], Any]) -> None:
        while os.getpid() == self._pid:
            self.write()
            sleep(_WRITE_S)

    def write(self) -> None:
        path = os.path.join(self._directory, f"{self._pid}.json")
        try:
            with open(path + ".partial", "w", encoding="ascii") as file:
                json.dump(self._counted.document(), file)
            os.replace(path + ".partial", path)
        except OSError:
            return  # serve objects even if the disk is full

    def others(self) -> list[dict[str, Any]]:
        """Documents of the other workers; the file of a worker that ended long ago is removed."""
        documents = []
        for name in sorted(os.listdir(self._directory))[:1000]:
            if name == f"{self._pid}.json" or not re.match(r"^\d+\.json$", name):
                continue
            path = os.path.join(self._directory, name)
            try:
                if time.time() - os.stat(path).st_mtime > self._longest_s + 60:
                    os.unlink(path)
                    continue
                with open(path, encoding="ascii") as file:
                    document = json.load(file)
            except (OSError, ValueError):
                continue
            if {"begun_s", "devices", "threads"} <= document.keys():
                documents.append(document)
        return documents


class Bandwidth:
    """The filter; see the module's docstring."""

    def __init__(
        self, app: Any, conf: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._clock = clock
        self._begun_s = clock()
        self.windows = _windows(conf.get("windows", ""))
        self._needed = _needed(conf.get("needed", ""))
        self._token = _token(conf.get("token_file", "").strip())
        self._state = conf.get("state", "").strip()
        self._server = conf.get("server", "").strip()
        self._policies = _policies()
        root = conf.get("devices", "").strip()
        self._declared = (
            sorted(d for d in os.listdir(root) if _DEVICE.match(d))[:MOST_DEVICES]
            if root and os.path.isdir(root)
            else None
        )
        self._off_while = conf.get("off_while", "").strip()
        self._off, self._looked_s = False, -math.inf
        self._pid = -1
        self._counted = Counted(max(self.windows), clock)
        self._shared: Shared | None = None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ.get("PATH_INFO", "")
        if path in ("/bwinfo", "/osinfo"):
            return self._reply(path, environ, start_response)
        if self._off_while and self._switched_off():
            return self._app(environ, start_response)
        if self._pid != os.getpid():
            self._begin()
        method = environ.get("REQUEST_METHOD")
        transfer = self._transfer(environ, path) if method in ("GET", "PUT") else None
        if transfer is None:
            return self._app(environ, start_response)
        self._counted.begin(transfer)
        if method == "PUT":
            environ["wsgi.input"] = _Input(environ["wsgi.input"], transfer, self._counted)
        accepted = [False]

        def answered(status: str, headers: Any, exc_info: Any = None) -> Any:
            accepted[0] = status[:1] == "2"
            return (
                start_response(status, headers, exc_info)
                if exc_info
                else start_response(status, headers)
            )

        try:
            body = self._app(environ, answered)
        except BaseException:
            self._counted.forget(transfer)
            raise
        return _Output(body, transfer, self._counted, method == "GET", accepted)

    def _switched_off(self) -> bool:
        now_s = self._clock()
        if now_s - self._looked_s >= _LOOK_S:
            self._off, self._looked_s = os.path.exists(self._off_while), now_s
        return self._off

    def _begin(self) -> None:
        """Start counting at the first request of this process: earlier counts are those of its parent."""
        self._pid = os.getpid()
        self._counted = Counted(max(self.windows), self._clock)
        self._counted.begun_s = self._begun_s
        for device in self._declared or ():
            self._counted.device(device)
        if self._state:
            self._shared = Shared(self._state, self._counted, 60.0 * max(self.windows))
            self._shared.begin()

    def _transfer(self, environ: Mapping[str, Any], path: str) -> Transfer | None:
        """`/DEVICE/PARTITION/ACCOUNT/CONTAINER/OBJECT`, else None."""
        parts = path.split("/", 5)
        if len(parts) != 6 or parts[0] or not all(parts[1:]):
            return None
        _, device, partition, account, container, name = parts
        declared = self._declared is None or device in self._declared
        if not (declared and _DEVICE.match(device) and partition.isdigit()):
            return None
        policy = environ.get("HTTP_X_BACKEND_STORAGE_POLICY_INDEX", "0")
        byte_range = environ.get("HTTP_RANGE", "")
        return Transfer(
            device,
            policy if policy.isdigit() and len(policy) < 6 else "0",
            _text(account),
            _text(f"/{account}/{container}/{name}"),
            byte_range[6:] if _RANGE.match(byte_range) else "0 - end",
            self._clock(),
        )

    def _reply(self, path: str, environ: Mapping[str, Any], start_response: Any) -> list[bytes]:
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", {"error": "expected GET"})
        if not self._may(environ):
            return _answer(start_response, "401 Unauthorized", {"error": "expected a token"})
        if self._pid != os.getpid():
            self._begin()
        now_s = self._clock()
        documents = [self._counted.document(), *(self._shared.others() if self._shared else ())]
        if path == "/bwinfo":
            if self._shared is not None:
                now_s -= 1.5 * _WRITE_S  # the others' last counts are not written yet
            content: Any = bandwidths(documents, now_s, self.windows)
        else:
            port = f"{environ.get('SERVER_NAME', '')}:{environ.get('SERVER_PORT', '')}"
            content = requests(documents, self._server or port, self._needed, self._policies)
        body = _answer(start_response, "200 OK", content)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else body

    def _may(self, environ: Mapping[str, Any]) -> bool:
        token = environ.get("HTTP_X_PENSTOCK_TOKEN", "")
        if self._token and hmac.compare_digest(token.encode("latin-1"), self._token):
            return True
        passed_on = "HTTP_X_FORWARDED_FOR" in environ or "HTTP_FORWARDED" in environ
        address, port = environ.get("REMOTE_ADDR", ""), str(environ.get("REMOTE_PORT", ""))
        own_port = str(environ.get("SERVER_PORT", ""))
        if passed_on or not (_LOCAL.match(address) and _PORT.match(port) and _PORT.match(own_port)):
            return False
        return are_ours(accounts_of(address, int(port), int(own_port)))


class _Input:
    """A body that is counted as it is read."""

    def __init__(self, body: Any, transfer: Transfer, counted: Counted) -> None:
        self._body, self._transfer, self._counted = body, transfer, counted

    def read(self, *size: Any) -> bytes:
        part: bytes = self._body.read(*size)
        self._counted.moved(self._transfer, len(part))
        return part

    def readline(self, *size: Any) -> bytes:
        part: bytes = self._body.readline(*size)
        self._counted.moved(self._transfer, len(part))
        return part

    def __iter__(self) -> Iterator[bytes]:
        for part in self._body:
            self._counted.moved(self._transfer, len(part))
            yield part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


class _Output:
    """An answer that ends its request when it is closed; with `counts`, counted as it is sent."""

    def __init__(
        self,
        body: Any,
        transfer: Transfer,
        counted: Counted,
        counts: bool,
        accepted: Sequence[bool],
    ) -> None:
        self._body, self._parts = body, iter(body)
        self._transfer, self._counted, self._accepted = transfer, counted, accepted
        self._counts = counts
        self._open = True

    def __iter__(self) -> _Output:
        return self

    def __next__(self) -> bytes:
        try:
            part: bytes = next(self._parts)
        except BaseException:
            self._end()
            raise
        if self._counts and self._accepted[0]:
            self._counted.moved(self._transfer, len(part))
        return part

    def close(self) -> None:
        self._end()
        close = getattr(self._body, "close", None)
        if close is not None:
            close()

    def _end(self) -> None:
        if self._open:
            self._open = False
            (self._counted.end if self._accepted[0] else self._counted.forget)(self._transfer)


def _answer(start_response: Any, status: str, content: Any) -> list[bytes]:
    body = json.dumps(content, allow_nan=False).encode("ascii")
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Penstock-Unit", "MB/s"),
    ]
    start_response(status, headers)
    return [body]


def _text(wsgi: str) -> str:
    """A path as text: WSGI decodes its UTF-8 as Latin-1."""
    return wsgi.encode("latin-1", "replace").decode("utf-8", "replace")[:_LONGEST]


def _windows(text: str) -> tuple[int, ...]:
    fields = text.replace(",", " ").split()
    try:
        windows = tuple(sorted({int(w) for w in fields})) or WINDOWS
    except ValueError:
        windows = (0,)
    if not all(1 <= k <= MOST_MINUTES for k in windows) or len(windows) > 20:
        raise ValueError(
            f"windows: found {text!r}; expected up to 20 of 1 to {MOST_MINUTES} minutes"
        )
    return windows


def _needed(text: str) -> dict[str, float]:
    rates: dict[str, float] = {}
    for word in text.split():
        account, equals, rate = word.partition("=")
        try:
            rates[account] = float(rate)
        except ValueError:
            equals = ""
        if not equals or not account or not 0 < rates[account] < math.inf:
            raise ValueError(f"needed: found {word!r}; expected ACCOUNT=MB/s")
    return rates


def _token(path: str) -> bytes:
    if not path:
        return b""
    with open(path, "rb") as file:
        token = file.read(1000).strip()
    if len(token) < 16:
        raise ValueError(f"token_file: {path} has {len(token)} bytes; expected 16 or more")
    return token


def _policies() -> dict[str, str]:
    """Names of Swift's storage policies by their number; none if Swift is not installed."""
    try:
        from swift.common.storage_policy import POLICIES  # type: ignore[import-not-found]
    except ImportError:
        return {}
    return {str(int(policy)): str(policy.name) for policy in POLICIES}


def filter_factory(global_conf: Mapping[str, str], **local_conf: str) -> Callable[[Any], Bandwidth]:
    """Factory of the filter for PasteDeploy."""
    conf = {**global_conf, **local_conf}
    return lambda app: Bandwidth(app, conf)
