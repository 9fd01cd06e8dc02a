"""`penstock serve`: a trace's page in the browser, with zoom down to every request."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def command(
    bundles: list[Path] = typer.Argument(..., metavar="BUNDLE...", help="Trace bundles."),
    port: int = typer.Option(8642, min=0, max=65535, help="0 takes any that is free."),
    host: str = typer.Option(
        "127.0.0.1",
        help="Address to listen on. Whoever reaches it reads the traces: there is no password.",
    ),
    cache: Path | None = typer.Option(
        None,
        help="Where indexes lie while it runs, 28 bytes a request (default: the temporary directory).",
    ),
) -> None:
    """Serve the page of traces on this machine until Ctrl-C."""
    import socket

    import uvicorn

    from penstock.archive.whole import check_trace
    from penstock.errors import BadInput, PenstockError
    from penstock.serve.app import LOOPBACK, application
    from penstock.serve.traces import Served

    for bundle in bundles:
        check_trace(bundle)
    if cache is not None and not cache.is_dir():
        raise BadInput(f"--cache: found no directory {cache}")
    served = Served(bundles, cache)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((host, port))
                listening.listen(64)  # whoever reads the address below may connect at once
            except OSError as error:
                wrong = BadInput if isinstance(error, socket.gaierror) else PenstockError
                raise wrong(f"--host {host} --port {port}: {error.strerror}") from None
            address, taken = listening.getsockname()[:2]
            shown = f"[{address}]" if ":" in address else address
            print(f"http://{shown}:{taken}/", flush=True)
            if not _is_loopback(address):
                print("penstock: whoever reaches this address can read the traces", file=sys.stderr)
            names = LOOPBACK | {host, address} if _is_loopback(address) else None
            app = application(served, names)
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    finally:
        served.close()


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
