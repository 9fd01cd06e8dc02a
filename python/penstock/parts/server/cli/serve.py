"""`penstock serve`: the HTTP interface to emulated resources, experiments, studies and traces."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.host.processes.servers import LocalServer
    from penstock.parts.server.traces import Served


def command(
    bundles: list[Path] = typer.Argument(
        None,
        metavar="[OUT|TRACE]...",
        help="Studies, their runs or treatments (OUT:r001, OUT:t01), traces; optional.",
    ),
    port: int = typer.Option(5000, min=0, max=65535, help="TCP port; 0 selects a free one."),
    host: str = typer.Option(
        "127.0.0.1",
        help="Address to listen on; addresses that other hosts can reach need TLS or --insecure.",
    ),
    tls_cert: Path | None = typer.Option(
        None, help="Certificate with its chain (PEM): serve over TLS."
    ),
    tls_key: Path | None = typer.Option(
        None, help="Private key, if it is not in the file of the certificate."
    ),
    insecure: bool = typer.Option(
        False, "--insecure", help="Accept unencrypted connections from other hosts."
    ),
    config: Path | None = typer.Option(
        None, help="JSON file with servers and metrics by name, in the format of MonEx."
    ),
    ask_token: bool = typer.Option(
        False,
        "--ask-token",
        hidden=True,
        help="Accepted for older scripts: a token is always needed.",
    ),
    open_reads: bool = typer.Option(
        False,
        "--open-reads",
        help="Let all clients, other users of this host included, read this user's experiments.",
    ),
    token_file: Path | None = typer.Option(
        None, help="File with the token, mode 600 (default: create a new token)."
    ),
    cache: Path | None = typer.Option(
        None,
        help="Directory of temporary indexes, 28 bytes per request (default: the temporary directory).",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the address as one JSON object."),
) -> None:
    """Serve experiments, emulated resources of this host, and pages of studies and traces, until Ctrl-C.

    /api/v1 has clusters, nodes, disks, links, schedules and jobs as resources (/openapi.json describes
    them); /live shows their current state. All paths except pages need the token, in
    `Authorization: Bearer TOKEN`; addresses printed on a terminal contain it after the #. Experiments
    (/exp/NAME) also accept tokens of `penstock monitor token`. Commands of the same user on this host read
    their token from a file. Connections from this host have no other privileges.
    """
    import signal

    import uvicorn

    from penstock.errors import BadInput
    from penstock.host.processes.servers import LocalServer, announced
    from penstock.parts.server.api.token import load_or_create, new_token
    from penstock.parts.server.app import application
    from penstock.parts.server.connections import BACKLOG, AnnouncedServer, limited_protocol
    from penstock.parts.server.listen import listen
    from penstock.parts.server.traces import Served
    from penstock.routes.connections import most_connections
    from penstock.routes.memory import return_large_blocks

    return_large_blocks()
    if cache is not None and not cache.is_dir():
        raise BadInput(f"--cache: found no directory {cache}")
    with (
        contextlib.closing(Served(bundles or [], cache)) as served,
        contextlib.ExitStack() as stack,
    ):
        token, own_token = load_or_create(token_file), new_token()
        at = listen(host, port, tls_cert, tls_key, insecure=insecure)
        stack.enter_context(at.socket)
        cert = None if tls_cert is None else str(tls_cert.absolute())
        server = LocalServer(at.url, at.address, at.port, token, own_token, cert)
        app = application(
            served, token, at.names, config=config, own_token=own_token, open_reads=open_reads
        )

        def announce() -> None:
            # the files for clients of this user come first
            file, header = stack.enter_context(announced(server))
            _print_addresses(served, server, file, token_file, as_json)
            say(
                f"token file until the server stops: {file}; for experiments with curl: -H @{header}"
            )
            if insecure and not at.loopback:
                say(
                    "connections are not encrypted: others on the network can read the token and all data"
                )
            if open_reads:
                say("all clients, other users of this host included, may read your experiments")

        # uvicorn raises the signal that stopped it again
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn_config = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            ws="none",
            http=limited_protocol(most_connections()),
            backlog=BACKLOG,
            # an event stream has no end: close it when the server stops
            timeout_graceful_shutdown=1,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
        AnnouncedServer(uvicorn_config, announce).run(sockets=[at.socket])


def _print_addresses(
    served: Served, server: LocalServer, file: Path, token_file: Path | None, as_json: bool
) -> None:
    """Print the server's address on stdout, and those of its pages on stderr."""
    url = server.url
    pages = {"live": f"{url}live", "dashboards": f"{url}dashboards"}
    if served.traces or served.studies:
        target = "trace" if served.one_trace else "list of studies and traces"
        pages = {target: url, **pages}
    # only a terminal gets the token: files, pipes and the system's journal have other readers
    opening = "" if token_file is not None else f"#token={server.token}"
    first = url
    if opening and not as_json and sys.stdout.isatty():
        first = pages.pop(next(iter(pages))) + opening
    if not (opening and sys.stderr.isatty()):
        opening = f", with the token in {token_file or file}"
    location = {"url": url, "port": server.port, "token_file": str(file)}
    print(json.dumps(location) if as_json else first, flush=True)
    for target, page in pages.items():
        say(f"{target}: {page}{opening}")
