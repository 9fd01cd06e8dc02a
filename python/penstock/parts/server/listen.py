"""Where the server listens, and by which names: on this host alone, with TLS, or openly where asked to."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from penstock.errors import BadInput, PenstockError


@dataclass(frozen=True)
class Door:
    """A socket that listens: its URL for clients on this host, the address that it is bound to, and the names
    that requests may be for."""

    socket: socket.socket
    url: str
    address: str
    port: int
    names: frozenset[str]
    loopback: bool


def names_of(cert: Path | None, key: Path | None) -> frozenset[str]:
    """The hosts that a certificate is for. Raises BadInput where server and key cannot be used."""
    if cert is None:
        if key is not None:
            raise BadInput("found --tls-key alone; expected --tls-cert with it")
        return frozenset()
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise BadInput(f"{option}: found no file {path}")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
        told = x509.load_pem_x509_certificates(cert.read_bytes())[0]
    except (OSError, ValueError) as error:
        expected = "expected a certificate in PEM, and its key in it or by --tls-key"
        raise BadInput(f"--tls-cert {cert}: {error}; {expected}") from None
    try:
        said = told.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(
        map(
            str,
            (*said.get_values_for_type(x509.DNSName), *said.get_values_for_type(x509.IPAddress)),
        )
    )


def opened(host: str, port: int, cert: Path | None, key: Path | None, *, insecure: bool) -> Door:
    """Listens. Raises BadInput for an address beyond this host without TLS, unless `insecure`."""
    named = names_of(cert, key)
    if insecure and cert is not None:
        raise BadInput("found --insecure and --tls-cert; expected one of them")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        address = ipaddress.ip_address(listening.getsockname()[0])
        if not (address.is_loopback or cert or insecure):
            raise BadInput(
                f"--host {host}: others reach it, and the token would go to it in clear; expected --tls-cert "
                "and --tls-key, or --insecure"
            )
        listening.listen(64)  # whoever reads the address may connect at once
    except (OSError, BadInput) as error:
        listening.close()
        if isinstance(error, BadInput):
            raise
        wrong = BadInput if isinstance(error, socket.gaierror) else PenstockError
        raise wrong(f"--host {host} --port {port}: {error.strerror}") from None
    here = "127.0.0.1" if address.version == 4 else "::1"
    near = here if address.is_unspecified else str(address)
    shown = f"[{near}]" if ":" in near else near
    taken = listening.getsockname()[1]
    return Door(
        listening,
        f"{'http' if cert is None else 'https'}://{shown}:{taken}/",
        str(address),
        taken,
        frozenset({"localhost", near, host, socket.gethostname(), *named}),
        address.is_loopback,
    )
