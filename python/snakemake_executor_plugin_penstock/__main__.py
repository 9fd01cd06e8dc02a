"""Run a command with a store mounted: `python -m snakemake_executor_plugin_penstock [--store NAME] COMMAND`.

For the modes of Snakemake that do not load the executor: dry runs, `--touch`, `--unlock`, reports.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.snakemake.store_view import open_view


def main() -> None:
    """Mount the store, then become the command."""
    parser = argparse.ArgumentParser(prog="python -m snakemake_executor_plugin_penstock")
    parser.add_argument("--store", help="store that is up (default: the only one)")
    parser.add_argument("--platform", type=Path, help="platform file of the store")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args()
    if not options.command:
        parser.error("found no command; expected one, such as snakemake -n")
    try:
        open_view(options.store, options.platform)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
