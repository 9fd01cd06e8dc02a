"""`penstock serve`: what is emulated, over HTTP; traces in the browser, down to every request."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import typer

from penstock.terminal import say


def command(
    bundles: list[Path] = typer.Argument(
        None,
        metavar="[OUT|TRACE]...",
        help="Studies, runs or treatments of them (OUT:r001, OUT:t01), traces; none are needed.",
    ),
    port: int = typer.Option(5000, min=0, max=65535, help="0 takes any that is free."),
    host: str = typer.Option(
        "127.0.0.1", help="Address to listen on; one that others reach wants TLS, or --insecure."
    ),
    tls_cert: Path | None = typer.Option(
        None, help="Certificate (PEM, with its chain): serve over TLS, to the names it is for."
    ),
    tls_key: Path | None = typer.Option(None, help="Its key, if it is not in the same file."),
    insecure: bool = typer.Option(
        False, "--insecure", help="Let the token go to other hosts in clear."
    ),
    config: Path | None = typer.Option(
        None, help="Servers and metrics by name (JSON), as MonEx's configuration files."
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
        help="Let whoever reaches the server, other users of this host too, read this user's experiments.",
    ),
    token_file: Path | None = typer.Option(
        None, help="A file with the token (mode 600); by default a new one is made and printed."
    ),
    cache: Path | None = typer.Option(
        None,
        help="Where indexes lie while it runs, 28 bytes a request (default: the temporary directory).",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print where it listens as one JSON object."
    ),
) -> None:
    """Serve experiments, what is emulated on this host, and pages of studies and traces, until Ctrl-C.

    /api/v1 has clusters, nodes, disks, links, schedules and jobs as resources (/openapi.json describes
    them), /live shows what goes on. All but the pages themselves want the token, in
    `Authorization: Bearer TOKEN`; the printed addresses hold it behind the #. Experiments (/exp/NAME) are
    also for those with a token of `penstock monitor token`. Commands of the same user on this host find
    their token by themselves; nothing else is allowed for coming from this host.
    """
    import signal

    import uvicorn

    from penstock.errors import BadInput
    from penstock.host.processes.servers import LocalServer, announced
    from penstock.parts.monitoring.collectors.listeners import most_connections
    from penstock.parts.monitoring.experiments.targets import Targets, read_targets
    from penstock.parts.server.api.token import made, new_token
    from penstock.parts.server.app import application
    from penstock.parts.server.connections import BACKLOG, bounded
    from penstock.parts.server.experiments import local_store
    from penstock.parts.server.listen import opened
    from penstock.parts.server.memory import return_large_blocks
    from penstock.parts.server.traces import Served

    return_large_blocks()
    if cache is not None and not cache.is_dir():
        raise BadInput(f"--cache: found no directory {cache}")
    with (
        contextlib.closing(Served(bundles or [], cache)) as served,
        contextlib.ExitStack() as stack,
    ):
        token, own_token = made(token_file), new_token()
        door = opened(host, port, tls_cert, tls_key, insecure=insecure)
        stack.enter_context(door.socket)
        server = LocalServer(
            url=door.url,
            address=door.address,
            port=door.port,
            token=token,
            experiments_token=own_token,
            cert=None if tls_cert is None else str(tls_cert.absolute()),
        )
        # before anybody can know the address
        file, header = stack.enter_context(announced(server))
        store = local_store()
        targets = read_targets(config) if config is not None else Targets()
        app = application(
            served,
            token,
            door.names,
            lambda: store,
            targets=targets,
            own_token=own_token,
            open_reads=open_reads,
        )
        place = {"url": door.url, "port": door.port, "token_file": str(file)}
        print(json.dumps(place) if as_json else door.url, flush=True)
        key = f"#token={token}" if token_file is None else f", with the token in {token_file}"
        say(f"live: {door.url}live{key}")
        if served.traces or served.studies:
            what = "trace" if served.one_trace else "list of studies and traces"
            say(f"{what}: {door.url}{key}")
        say(f"the token is in {file} while this runs; for experiments with curl: -H @{header}")
        say(f"dashboards: {door.url}dashboards{key}")
        if insecure and not door.loopback:
            say("the token, and all that is served, goes to other hosts in clear")
        if open_reads:
            say(
                "whoever reaches this server, other users of this host too, may read your experiments"
            )
        # uvicorn raises the signal that ended it once more
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        settings = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            ws="none",
            http=bounded(most_connections()),
            backlog=BACKLOG,
            # a stream of states has no end: it is cut when the server is told to stop
            timeout_graceful_shutdown=1,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
        uvicorn.Server(settings).run(sockets=[door.socket])
