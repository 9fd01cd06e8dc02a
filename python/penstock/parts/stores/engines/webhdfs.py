"""HDFS over HTTP, as a standalone program for nodes: `webhdfs.py ADDRESS ACT WORDS…`.

ADDRESS is the name node's (`host:9870`); results are JSON on stdout, status 1 with a reason on stderr, 3 for
no such file. Data go to and come from a data node. The writing data node can be selected, and then has the
first copy. After the WebHDFS REST API of Hadoop 3.4; standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

_PIECE = 1 << 20
_ROOT = "/webhdfs/v1"
_PATIENCE_S = 110
_FLAGS = "CREATE,REPLACE"


class AbsentError(Exception):
    """No such file."""


class FailedError(Exception):
    """An error that the server reported."""


def _open(where: str, method: str, target: str, body: Any = None, size: int | None = None) -> Any:
    connection = http.client.HTTPConnection(where, timeout=_PATIENCE_S)
    headers = {} if size is None else {"Content-Length": str(size)}
    if body is not None:
        headers["Content-Type"] = "application/octet-stream"
    connection.request(method, target, body=body, headers=headers)
    answer = connection.getresponse()
    if answer.status < 400:
        return answer
    text = answer.read(1 << 16).decode(errors="replace")
    try:
        remote = json.loads(text)["RemoteException"]
        message = f"{remote['exception']}: {remote['message'].splitlines()[0]}"
    except (ValueError, KeyError, IndexError):
        message = f"status {answer.status}: {text[:200]}"
    if answer.status == 404 and "FileNotFound" in message:
        raise AbsentError(message)
    raise FailedError(message)


class Tree:
    """The files of a name node at `address`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, op: str, **values: str) -> Any:
        """The answer of a metadata operation of the name node."""
        raw = _open(self.address, method, _target(path, op, values)).read()
        return json.loads(raw) if raw else {}

    def _at_data(self, method: str, path: str, op: str, **values: str) -> tuple[str, str]:
        """The data node to which the name node redirects, and the target there."""
        location = self.ask(method, path, op, **values, noredirect="true")["Location"]
        # its path is not quoted
        return urlsplit(location).netloc, f"{_ROOT}{quote(path)}?{location.rpartition('?')[2]}"

    def stat(self, path: str) -> dict[str, Any]:
        """Facts of a file or directory: type, length, blockSize, replication, modificationTime."""
        status: dict[str, Any] = self.ask("GET", path, "GETFILESTATUS")["FileStatus"]
        return status

    def make(self, path: str, block_bytes: str, copies: str, writer: str) -> None:
        """Create an empty file and its directory, if absent; 0 bytes or copies: the file system's
        defaults."""
        values = {"overwrite": "false", "createparent": "true"}
        values |= {"blocksize": block_bytes} if int(block_bytes) else {}
        values |= {"replication": copies} if int(copies) else {}
        self._send("PUT", path, "CREATE", writer, None, 0, **values)

    def put(self, path: str, writer: str, groups: dict[str, str], content: IO[bytes]) -> None:
        """Replace the bytes of a file; an existing one retains its block size, copies and tags.

        Through the data node `writer` (empty: any), or that of the group in the file's tag DP.
        """
        try:
            status = self.stat(path)
        except AbsentError:
            self.make(path, "0", "0", writer)
        else:
            if status["length"]:
                self.ask("POST", path, "TRUNCATE", newlength="0")
            placement = self.attributes(path).get("user.penstock.DP", "").split()
            if len(placement) == 2 and placement[0] == "collocation":
                writer = groups.get(placement[1], writer)
        if size := os.fstat(content.fileno()).st_size:
            self._send("POST", path, "APPEND", writer, content, size)

    def remade(self, path: str, block_bytes: str, writer: str) -> None:
        """Recreate an empty file with another block size, retaining its copies and tags."""
        status, tags = self.stat(path), self.attributes(path)
        draft = f"{path.rpartition('/')[0]}/.penstock-{os.urandom(6).hex()}"
        self.make(draft, block_bytes, str(status["replication"]), writer)
        for name, value in tags.items():
            self.set_attribute(draft, name, value)
        if self.stat(path)["length"]:
            self.ask("DELETE", draft, "DELETE")
            raise FailedError("another program has written to it")
        self.ask("PUT", draft, "RENAME", destination=path, renameoptions="OVERWRITE")

    def _send(
        self, method: str, path: str, op: str, writer: str, body: Any, size: int, **values: str
    ) -> None:
        where, target = self._at_data(method, path, op, **values)
        _open(
            f"{writer}:{where.rpartition(':')[2]}" if writer else where, method, target, body, size
        ).read()

    def pieces(self, path: str) -> Iterator[bytes]:
        """The bytes of a file."""
        if not self.stat(path)["length"]:
            return
        where, target = self._at_data("GET", path, "OPEN")
        answer = _open(where, "GET", target)
        while piece := answer.read(_PIECE):
            yield piece

    def attributes(self, path: str) -> dict[str, str]:
        """Attributes of users."""
        attributes = self.ask("GET", path, "GETXATTRS", encoding="base64")["XAttrs"]
        return {
            one["name"]: base64.b64decode((one["value"] or "0s")[2:]).decode("utf-8", "replace")
            for one in attributes
            if one["name"].startswith("user.")
        }

    def set_attribute(self, path: str, name: str, value: str) -> None:
        """Set one attribute, new or not."""
        coded = "0s" + base64.b64encode(value.encode()).decode()
        values = {"xattr.name": name, "xattr.value": coded, "flag": _FLAGS}
        self.ask("PUT", path, "SETXATTR", **values)

    def files(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """All files below a directory, with their facts."""
        for one in self.ask("GET", path, "LISTSTATUS")["FileStatuses"]["FileStatus"]:
            full_path = f"{path.rstrip('/')}/{one['pathSuffix']}"
            if one["type"] == "DIRECTORY":
                yield from self.files(full_path)
            else:
                yield full_path, one

    def blocks(self, path: str) -> list[list[Any]]:
        """Extents of a file: each block's offset, length, and hosts."""
        length = str(self.stat(path)["length"])
        answer = self.ask("GET", path, "GETFILEBLOCKLOCATIONS", offset="0", length=length)
        locations = answer["BlockLocations"]["BlockLocation"]
        return [[one["offset"], one["length"], one["hosts"]] for one in locations]

    def bean(self, name: str) -> dict[str, Any]:
        """Counters of the name node."""
        raw = _open(self.address, "GET", f"/jmx?qry={quote(name)}").read()
        beans = json.loads(raw)["beans"]
        return dict(beans[0]) if beans else {}


def _target(path: str, op: str, values: dict[str, str]) -> str:
    return f"{_ROOT}{quote(path)}?{urlencode({'op': op, 'user.name': 'root', **values})}"


def act(tree: Tree, arguments: list[str]) -> Any:
    """Execute the command line; returns the value to print."""
    name, *rest = arguments
    if name == "put":
        path, writer, groups = rest
        return tree.put(path, writer, json.loads(groups), sys.stdin.buffer)
    if name == "read":
        for piece in tree.pieces(rest[0]):
            sys.stdout.buffer.write(piece)
        return None
    if name == "copy":
        source, target, writer, groups = rest
        with tempfile.TemporaryFile() as between:
            for piece in tree.pieces(source):
                between.write(piece)
            between.seek(0)
            return tree.put(target, writer, json.loads(groups), between)
    if name == "facts":
        return [_facts(tree, path) for path in rest]
    if name == "files":
        return [[p, f["length"], f["modificationTime"]] for p, f in tree.files(rest[0])]
    if name == "set":
        for pair in rest[1:]:
            key, _, value = pair.partition("=")
            tree.set_attribute(rest[0], key, value)
        return None
    if name == "ask":
        method, path, op, *pairs = rest
        return tree.ask(method, path, op, **dict(p.split("=", 1) for p in pairs))
    return _PLAIN[name](tree, *rest)


#: acts whose arguments are a path and words
_PLAIN: dict[str, Callable[..., Any]] = {
    "stat": Tree.stat,
    "get": Tree.attributes,
    "blocks": Tree.blocks,
    "bean": Tree.bean,
    "make": Tree.make,
    "remade": Tree.remade,
}


def _facts(tree: Tree, path: str) -> list[Any]:
    """Bytes, modification time [ms], SHA-256."""
    status, digest = tree.stat(path), hashlib.sha256()
    for piece in tree.pieces(path):
        digest.update(piece)
    return [status["length"], status["modificationTime"], digest.hexdigest()]


def main() -> int:
    """Exit status 0, 1, or 3."""
    address, *arguments = sys.argv[1:]
    try:
        result = act(Tree(address), arguments)
    except AbsentError as error:
        print(error, file=sys.stderr)
        return 3
    except (FailedError, OSError, http.client.HTTPException) as error:
        print(error, file=sys.stderr)
        return 1
    if result is not None:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
