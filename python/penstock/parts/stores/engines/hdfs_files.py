"""Files of HDFS from a node: over HTTP, by `webhdfs.py` in the node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.engines.engine import PATIENCE_S, Site
from penstock.parts.stores.files import Facts


class HdfsFiles:
    """From a node, over HTTP; writes go through its own data node, if any."""

    def __init__(self, site: Site, node: RunningNode) -> None:
        self._site = site
        self._node = node
        #: data node for its writes; empty for any
        self.writer = node.name if node.name in {n.name for n in site.storage} else ""

    def _ask(self, act: str, *arguments: str, **streams: Any) -> Any:
        return request(self._site, self._node, act, *arguments, **streams)

    def _at(self, path: str) -> str:
        return of(self._site, path)

    @property
    def _groups(self) -> str:
        return json.dumps(self._site.state.get("groups", {}))

    def kind(self, path: str) -> tuple[str, int] | None:
        """GETFILESTATUS."""
        status = self._ask("stat", self._at(path))
        if status is None:
            return None
        return ("directory" if status["type"] == "DIRECTORY" else "file"), status["length"]

    def make(self, path: str) -> None:
        """CREATE."""
        if self.kind(path) is None:
            self._ask("make", self._at(path), "0", "0", self.writer)

    def write(self, path: str, content: bytes) -> None:
        """CREATE and APPEND; data nodes sync closed files."""
        with tempfile.TemporaryFile() as source:
            source.write(content)
            source.seek(0)
            self._put(path, source)

    def _put(self, path: str, content: IO[bytes]) -> None:
        self._ask("put", self._at(path), self.writer, self._groups, stdin=content)

    def facts(self, paths: Sequence[str]) -> list[Facts]:
        """GETFILESTATUS, and a checksum of the data of OPEN."""
        answer = self._ask("facts", *map(self._at, paths))
        if answer is None:
            raise PenstockError(f"{paths[0]}: not in the store")
        return [Facts(size, str(changed), digest) for size, changed, digest in answer]

    def attributes(self, path: str) -> dict[str, str]:
        """GETXATTRS."""
        return dict(self._ask("get", self._at(path)) or {})

    def set_attributes(self, path: str, pairs: Mapping[str, str]) -> None:
        """SETXATTR."""
        self._ask("set", self._at(path), *(f"{k}={v}" for k, v in pairs.items()))

    def rewrite(self, path: str, draft: str) -> None:
        """OPEN and APPEND, through the node."""
        self._ask("copy", self._at(path), self._at(draft), self.writer, self._groups)

    def replace(self, draft: str, path: str) -> None:
        """RENAME."""
        arguments = [f"destination={self._at(path)}", "renameoptions=OVERWRITE"]
        self._ask("ask", "PUT", self._at(draft), "RENAME", *arguments)

    def remove(self, path: str) -> None:
        """DELETE."""
        self._ask("ask", "DELETE", self._at(path), "DELETE")

    def bring(self, source: Path, target: str) -> None:
        """One file after the other."""
        status = self.kind(target)
        into = status is not None and status[0] == "directory"
        place = f"{target.rstrip('/')}/{source.resolve().name}" if into else target
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file():
                below = "" if file == source else f"/{file.relative_to(source).as_posix()}"
                with open(file, "rb") as content:
                    self._put(f"{place}{below}", content)

    def fetch(self, path: str, target: Path) -> None:
        """OPEN, to a temporary file first."""
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=".penstock-", delete=False
        ) as out:
            try:
                self._ask("read", self._at(path), stdout=out)
                os.replace(out.name, target)
            except BaseException:
                os.unlink(out.name)
                raise

    def listing(self, *, links: bool = False) -> dict[str, tuple[int, str]]:
        """LISTSTATUS of every directory; HDFS has no links."""
        files = self._ask("files", "/") or []
        return {path.lstrip("/"): (size, str(changed)) for path, size, changed in files}


@cache
def _client() -> str:
    return (Path(__file__).parent / "webhdfs.py").read_text()


def request(
    site: Site,
    node: RunningNode,
    act: str,
    *arguments: str,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
) -> Any:
    """Answer of the name node to a program in a node; None for no such file, or an empty answer."""
    argv = [sys.executable, "-I", "-c", _client(), site.state["name"], act, *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = node.run(
            argv,
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout or out,
            stderr=err,
            timeout_s=PATIENCE_S,
        )
        out.seek(0)
        err.seek(0)
        output, why = out.read(), err.read(4096).decode(errors="replace").strip().splitlines()
    if done.exit_status == 3 and stdout is None and act != "put":
        return None
    if done.exit_status or done.timed_out:
        raise PenstockError(f"{node.name}: HDFS, {act}: {why[-1] if why else 'took too long'}")
    return json.loads(output) if output.strip() else None


def of(site: Site, path: str) -> str:
    """Path within the file system, without `site.mount`."""
    return path.removeprefix(site.mount) or "/"
