"""Listening socket of the server: on loopback addresses, or on others with TLS or `--insecure`."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from penstock.errors import BadInput, PenstockError


@dataclass(frozen=True)
class ListenAddress:
    """A listening socket.

    `url` is for clients on this host, `address` the address it is bound to. `names` are the valid values of
    the Host header.
    """

    socket: socket.socket
    url: str
    address: str
    port: int
    names: frozenset[str]
    loopback: bool


def names_of_certificate(cert: Path | None, key: Path | None) -> frozenset[str]:
    """The subject alternative names of a certificate. Raises BadInput for an unusable certificate or key."""
    if cert is None:
        if key is not None:
            raise BadInput("found --tls-key without --tls-cert; expected both")
        return frozenset()
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise BadInput(f"{option}: found no file {path}")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
        certificate = x509.load_pem_x509_certificates(cert.read_bytes())[0]
    except (OSError, ValueError) as error:
        expected = "expected a certificate in PEM, and its key in it or by --tls-key"
        raise BadInput(f"--tls-cert {cert}: {error}; {expected}") from None
    try:
        alternative_names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(
        map(
            str,
            (
                *alternative_names.get_values_for_type(x509.DNSName),
                *alternative_names.get_values_for_type(x509.IPAddress),
            ),
        )
    )


def listen(
    host: str, port: int, cert: Path | None, key: Path | None, *, insecure: bool
) -> ListenAddress:
    """Bind a TCP socket and listen.

    Raises BadInput for an address that other hosts reach without TLS, unless `insecure`; PenstockError if the
    address cannot be bound.
    """
    certificate_names = names_of_certificate(cert, key)
    if insecure and cert is not None:
        raise BadInput("found --insecure and --tls-cert; expected one of them")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        address = ipaddress.ip_address(listener.getsockname()[0])
        if not (address.is_loopback or cert or insecure):
            raise BadInput(
                f"--host {host}: others reach it, and the token would be sent unencrypted; expected "
                "--tls-cert and --tls-key, or --insecure"
            )
        listener.listen(64)  # clients may connect as soon as the address is printed
    except (OSError, BadInput) as error:
        listener.close()
        if isinstance(error, BadInput):
            raise
        error_type = BadInput if isinstance(error, socket.gaierror) else PenstockError
        raise error_type(f"--host {host} --port {port}: {error.strerror}") from None
    loopback = "127.0.0.1" if address.version == 4 else "::1"
    host_address = loopback if address.is_unspecified else str(address)
    url_host = f"[{host_address}]" if ":" in host_address else host_address
    bound_port = listener.getsockname()[1]
    return ListenAddress(
        listener,
        f"{'http' if cert is None else 'https'}://{url_host}:{bound_port}/",
        str(address),
        bound_port,
        frozenset({"localhost", host_address, host, socket.gethostname(), *certificate_names}),
        address.is_loopback,
    )
