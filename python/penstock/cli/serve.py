"""`penstock serve`: what is emulated, over HTTP; traces in the browser, down to every request."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def command(
    bundles: list[Path] = typer.Argument(
        None, metavar="[BUNDLE]...", help="Trace bundles to be looked at; none are needed."
    ),
    port: int = typer.Option(8642, min=0, max=65535, help="0 takes any that is free."),
    host: str = typer.Option(
        "127.0.0.1",
        help="Address to listen on. Whoever reaches it reads the traces; nodes and disks want the token.",
    ),
    token_file: Path | None = typer.Option(
        None, help="A file with the token (mode 600); by default a new one is made and printed."
    ),
    cache: Path | None = typer.Option(
        None,
        help="Where indexes lie while it runs, 28 bytes a request (default: the temporary directory).",
    ),
) -> None:
    """Serve what is emulated on this host, and the pages of traces, until Ctrl-C.

    /api/v1 has clusters, nodes, disks, links, schedules and jobs as resources (/openapi.json describes
    them), /nodes shows them. The token goes into `Authorization: Bearer TOKEN`.
    """
    import signal
    import socket

    import uvicorn

    from penstock.archive.whole import check_trace
    from penstock.errors import BadInput, PenstockError
    from penstock.serve.api.token import kept, made
    from penstock.serve.app import LOOPBACK, application
    from penstock.serve.traces import Served

    bundles = bundles or []
    for bundle in bundles:
        check_trace(bundle)
    if cache is not None and not cache.is_dir():
        raise BadInput(f"--cache: found no directory {cache}")
    token = made(token_file)
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
            url = f"http://{shown}:{taken}/"
            loopback = _is_loopback(address)
            with kept(token, url) as file:
                print(url, flush=True)
                _say(
                    f"nodes and disks: {url}nodes#token={token}"
                    if token_file is None
                    else f"nodes and disks: {url}nodes, with the token in {token_file}"
                )
                _say(f"the token is in {file} while this runs")
                if not loopback:
                    _say(
                        "whoever reaches this address can read the traces; the token goes over it in clear"
                    )
                names = LOOPBACK | {host, address} if loopback else None
                app = application(served, names, token)
                # uvicorn raises the signal that ended it once more
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                # a stream of states has no end: it is cut when the server is told to stop
                config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
                uvicorn.Server(config).run(sockets=[listening])
    finally:
        served.close()


def _say(text: str) -> None:
    print(f"penstock: {text}", file=sys.stderr, flush=True)


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
