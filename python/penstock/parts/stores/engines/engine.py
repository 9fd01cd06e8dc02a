"""Protocol of an engine of shared stores, and its site."""

from __future__ import annotations

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

#: longest that one command of an engine may take [s]
PATIENCE_S = 120.0
#: of a command's output, what an error quotes
_LAST_LINES = 3


def address(node: RunningNode) -> str:
    """The node's address. PenstockError if it is in no network."""
    if node.address is None:
        raise PenstockError(f"node {node.name} is in no network; a store needs one")
    return node.address


@dataclass(frozen=True)
class Site:
    """Site of a store: the nodes by role, and the engine's state between two commands.

    `state` holds JSON values; it persists from `up` to every later call.
    """

    name: str
    spec: StoreSpec
    managers: tuple[RunningNode, ...]
    storage: tuple[RunningNode, ...]
    clients: tuple[RunningNode, ...]
    #: the cluster's own directory on this host
    home: Path
    state: dict[str, Any] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=Sessions)

    @property
    def mount(self) -> str:
        """Mount point of the store on every client node."""
        return self.spec.mount

    def data(self, node: RunningNode) -> str:
        """The directory of a node for the engine's files: on its first disk, or in the node's own root."""
        disk = next(iter(node.disks.values()), None)
        return f"{disk.mount}/.store" if disk is not None else "/var/lib/penstock-store"

    def node_of(self, address: str) -> str:
        """The name of the node with an address; the address itself where none has it."""
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

        Daemons that it leaves behind may keep its output open: it goes to a file, not to a pipe.
        """
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
        """The reply of `node_agent.py`, without the start of a program. PenstockError where it fails."""
        return self.sessions.request(node, name, *arguments, timeout_s=PATIENCE_S)

    def ask(self, node: RunningNode, argv: Sequence[str], *, what: str) -> str:
        """As `run`, for commands that leave no daemon: begun by a program that is in the node already."""
        done = self.sessions.request(node, "run", list(argv), PATIENCE_S, timeout_s=2 * PATIENCE_S)
        if done["status"] != 0:
            raise _failed(node, argv, what, done["status"], done["output"])
        if len(done["output"]) > MOST_OUTPUT:
            raise _too_much()
        return str(done["output"])

    def write(self, node: RunningNode, path: str, text: str) -> None:
        """Writes a file in a node, with its directory; closed to other users."""
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
        """Waits until `ready`. PenstockError with `what` when it does not become so."""
        until = time.monotonic() + within_s
        while not ready():
            if time.monotonic() > until:
                raise PenstockError(f"{what} within {within_s:g} s")
            time.sleep(every_s)


def _failed(
    node: RunningNode, argv: Sequence[str], what: str, status: int | None, output: str
) -> PenstockError:
    """The error of a command that failed; no status where it took too long."""
    end = "took too long" if status is None else f"ended with status {status}"
    last = " | ".join(output.strip().splitlines()[-_LAST_LINES:])
    return PenstockError(f"{node.name}: {what}: {argv[0]} {end}: {last or 'it printed nothing'}")


def _too_much() -> PenstockError:
    """Half a listing would pass for a whole one."""
    return PenstockError(f"a command printed more than {MOST_OUTPUT >> 20} MiB")


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    raw = file.read(MOST_OUTPUT + 1)
    if len(raw) > MOST_OUTPUT:
        raise _too_much()
    return raw.decode(errors="replace")


class StoreEngine(Protocol):
    """An engine: how it is started on nodes, mounted, tagged, asked where data are, and ended.

    It is made anew for each command; what it must remember is in the site's `state`. All that it starts runs
    inside nodes, so that nothing of it outlives them; it touches nothing of the host.
    """

    name: str
    #: what client nodes must be let beside what every node is (docs/emulation.md)
    privileges: tuple[str, ...]
    #: the same of storage and manager nodes
    server_privileges: tuple[str, ...]

    def missing(self) -> str:
        """The part that this host lacks to run it, with the command that installs it; empty if nothing."""

    def support(self) -> Mapping[str, Support]:
        """Support of each of `spec.store.PARAMETERS`, and of each hint by its key."""

    def refusal(self, site: Site) -> str:
        """The part of this deployment that the engine cannot have, with the expected values; empty if
        nothing.

        Called before anything is started: the nodes of `site` are not running yet.
        """

    def up(self, site: Site) -> None:
        """Starts the servers, and returns when they can be mounted. Called once."""

    def mount(self, site: Site, node: RunningNode) -> None:
        """Has a client node see the store at `site.mount`."""

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Takes that back; what was written is with the servers afterwards."""

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Has a hint take effect on the file or directory `path` of a node, and says how far it does.

        `value` was checked by the hint. A hint that concerns the writer is of `node`. Where the file is not
        `empty` and the engine cannot change what was written, it is refused.
        """

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """Places of a file's bytes, in order, covering it once."""

    def status(self, site: Site) -> dict[str, Any]:
        """JSON values: at least `servers`, a list of `node` and whether it is `up`."""

    def down(self, site: Site) -> None:
        """Ends the servers in good order. Nodes that died are left out."""
