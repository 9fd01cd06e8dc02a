"""Entry point of the process that owns virtual nodes:
`python -m penstock.emulate.cluster.daemon nodes CONFIG.json`."""

from __future__ import annotations

import signal
import sys

from penstock.errors import PenstockError
from penstock.host.processes.native_daemon import begun


def main(argv: list[str]) -> int:
    """Run the supervisor; the spawner of nodes is forked while this process is small."""
    _, config = begun(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from penstock.host.nodes import spawner

    makes = spawner.start()
    from penstock.emulate.cluster.supervisor import nodes_main

    try:
        nodes_main(config, makes)
    except (PenstockError, RuntimeError, OSError, ValueError) as error:
        print(f"penstock-nodes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
