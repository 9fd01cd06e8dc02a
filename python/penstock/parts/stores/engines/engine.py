"""Protocol of an engine of shared stores, and its site."""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.agent_client import Sessions
from penstock.parts.stores.node_agent import MOST_OUTPUT
from penstock.spec.store import Extent, StoreSpec, Support
from penstock.spec.store_engines import Capabilities, Circumstances, capabilities

#: time limit of an engine's command [s]
PATIENCE_S = 120.0
#: lines of a command's output in an error message
_LAST_LINES = 3


def address(node: RunningNode) -> str:
    """The node's address. PenstockError if it has no network."""
    if node.address is None:
        raise PenstockError(f"node {node.name} is in no network; a store needs one")
    return node.address


@dataclass(frozen=True)
class Site:
    """Site of a store: the nodes by role, and the engine's state between two commands.

    `state` has JSON values; it persists from `up` to every later call.
    """

    name: str
    spec: StoreSpec
    managers: tuple[RunningNode, ...]
    storage: tuple[RunningNode, ...]
    clients: tuple[RunningNode, ...]
    #: the cluster's directory on this host
    home: Path
    state: dict[str, Any] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=Sessions)

    @property
    def mount(self) -> str:
        """Mount point of the store on every client node."""
        return self.spec.mount

    def circumstances(
        self, node: RunningNode | None = None, chunk_bytes: int | None = None
    ) -> Circumstances:
        """Circumstances of a value: of the store, or of a file with these chunks that `node` writes."""
        writers = self.clients if node is None else (node,)
        return Circumstances(
            tuple(n.name for n in self.storage),
            tuple(n.name for n in writers),
            self.spec.parameters.get("replicas", 1),
            chunk_bytes or self.chunk_bytes,
        )

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk, unless a file has a hint."""
        engine = capabilities(self.spec.engine) or Capabilities({})
        return int(self.spec.parameters.get("chunk", engine.chunk_bytes))

    def data(self, node: RunningNode) -> str:
        """A node's directory for the engine's files: on its first disk, or in the node's own root."""
        disk = next(iter(node.disks.values()), None)
        return f"{disk.mount}/.store" if disk is not None else "/var/lib/penstock-store"

    def node_of(self, address: str) -> str:
        """Name of the node with an address; the address itself if unknown."""
        nodes = (*self.managers, *self.storage, *self.clients)
        return next((n.name for n in nodes if address in n.addresses.values()), address)

    def run(
        self,
        node: RunningNode,
        argv: Sequence[str],
        *,
        what: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> str:
        """Run a command in a node; its output. PenstockError with its last lines if it fails.

        The output goes to a file instead of a pipe, because daemons that it starts may keep it open.
        """
        if not node.here:  # a connection to its host takes longer than most commands
            return self._request_run(node, argv, what, timeout_s, stdin, env)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as input_file:
            input_file.write(stdin)
            input_file.seek(0)
            done = node.run(
                argv, stdin=input_file, stdout=out, stderr=out, env=env, timeout_s=timeout_s
            )
            output = _read(out)
        if done.timed_out or done.exit_status != 0:
            raise _failed(node, argv, what, None if done.timed_out else done.exit_status, output)
        return output

    def request(self, node: RunningNode, name: str, *arguments: Any) -> Any:
        """Reply of `node_agent.py`, without the start of a process. PenstockError if it fails."""
        return self.sessions.request(node, name, *arguments, timeout_s=PATIENCE_S)

    def ask(self, node: RunningNode, argv: Sequence[str], *, what: str) -> str:
        """Like `run`, for commands that leave no daemon: executed by the resident agent of the node."""
        return self._request_run(node, argv, what, PATIENCE_S)

    def _request_run(
        self,
        node: RunningNode,
        argv: Sequence[str],
        what: str,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Output of a command that the resident agent of a node executes."""
        more = (base64.b64encode(stdin).decode(), dict(env or {}))
        done = self.sessions.request(
            node, "run", list(argv), timeout_s, *more, timeout_s=timeout_s + PATIENCE_S
        )
        if done["status"] != 0:
            raise _failed(node, argv, what, done["status"], done["output"])
        if done["too_long"]:
            raise _too_much()
        return str(done["output"])

    def write(self, node: RunningNode, path: str, text: str) -> None:
        """Write a file in a node, with its directory; not accessible to other users."""
        script = 'umask 077; mkdir -p "$(dirname "$1")" && cat > "$1"'
        argv = ["/bin/sh", "-c", script, "sh", path]
        self.run(node, argv, what=f"writing {path}", stdin=text.encode())

    def wait(
        self,
        ready: Callable[[], bool],
        what: str,
        within_s: float = 60.0,
        *,
        every_s: float = 0.1,
    ) -> None:
        """Wait until `ready`. PenstockError with `what` after `within_s`."""
        until = time.monotonic() + within_s
        while not ready():
            if time.monotonic() > until:
                raise PenstockError(f"{what} within {within_s:g} s")
            time.sleep(every_s)


def _failed(
    node: RunningNode, argv: Sequence[str], what: str, status: int | None, output: str
) -> PenstockError:
    """Error of a failed command; status None for a timeout."""
    end = "took too long" if status is None else f"ended with status {status}"
    last = " | ".join(output.strip().splitlines()[-_LAST_LINES:])
    return PenstockError(f"{node.name}: {what}: {argv[0]} {end}: {last or 'it printed nothing'}")


def _too_much() -> PenstockError:
    """Error for an oversized reply: a truncated listing could be taken for a complete one."""
    return PenstockError(f"a command printed more than {MOST_OUTPUT >> 20} MiB")


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    raw = file.read(MOST_OUTPUT + 1)
    if len(raw) > MOST_OUTPUT:
        raise _too_much()
    return raw.decode(errors="replace")


def verdict(engine: Capabilities, key: str, value: Any, circumstances: Circumstances) -> Support:
    """Support of a hint by its key and its parsed value (`parts/stores/hints.py`)."""
    if key != "DP":
        return engine.of(key, value, circumstances)
    values = {"scatter": value.chunks, "host": value.host, "collocation": value.group}
    return engine.of(f"DP {value.kind}", values.get(value.kind, ""), circumstances)


class StoreEngine(Protocol):
    """An engine: start on nodes, mount, tags, locations of data, stop.

    Each command creates a new instance; persistent values are in the site's `state`. All processes run inside
    nodes and end with them; the host is not modified.
    """

    name: str
    #: capabilities and devices of client nodes, in addition to those of every node (docs/emulation.md)
    privileges: tuple[str, ...]
    #: the same of storage and manager nodes
    server_privileges: tuple[str, ...]

    def missing(self) -> str:
        """The missing dependency on this host, with the command that installs it; empty if none."""

    def support(self) -> Mapping[str, Support]:
        """Support of each of `spec.store.PARAMETERS`, and of each hint by its key."""

    def refusal(self, site: Site) -> str:
        """The unsupported part of this deployment, with the expected values; empty if none.

        Called before anything is started: the nodes of `site` are not running yet.
        """

    def up(self, site: Site) -> None:
        """Start the servers; returns when they can be mounted. Called once."""

    def mount(self, site: Site, node: RunningNode) -> None:
        """Mount the store at `site.mount` of a client node."""

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Unmount; the servers have all writes afterwards."""

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Apply a hint to the file or directory `path` of a node; returns the degree of support.

        `value` was checked by the hint. A hint that concerns the writer refers to `node`. Refused if the file
        is not `empty` and the engine cannot change existing data.
        """

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """Extents of a file in order, each byte once."""

    def status(self, site: Site) -> dict[str, Any]:
        """JSON values: at least `servers`, a list of `node` and whether it is `up`."""

    def down(self, site: Site) -> None:
        """Stop the servers cleanly. Dead nodes are skipped."""
