"""Certificates of one campaign: its own authority, and one key for the conductor and for each host."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: longer than any campaign, short enough to limit the use of a leaked key
_VALID = datetime.timedelta(days=30)
_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Identity:
    """A key, its certificate, and the certificate of the campaign's authority; PEM texts."""

    authority: str
    certificate: str
    key: str

    def write(self, directory: Path) -> dict[str, str]:
        """Write the files to a directory with mode 0700; return their paths by `ca`, `cert` and `key`."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        paths = {}
        for name, text in (("ca", self.authority), ("cert", self.certificate), ("key", self.key)):
            path = directory / f"{name}.pem"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)
            paths[name] = str(path)
        return paths


def security(paths: dict[str, str]) -> Any:
    """Settings of Dask that require TLS with certificates of both sides."""
    from distributed.security import Security

    own = {
        f"tls_{role}_{what}": paths[what]
        for role in ("client", "scheduler", "worker")
        for what in ("cert", "key")
    }
    return Security(  # type: ignore[no-untyped-call]
        tls_ca_file=paths["ca"], require_encryption=True, **own
    )


class Authority:
    """Certificate authority of one campaign; its key is never written to a file."""

    def __init__(self, campaign: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"penstock {campaign}")
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def identity(self, name: str) -> Identity:
        """Create a key and certificate for the conductor or one host."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        authority = self._certificate.public_bytes(pem).decode()
        return Identity(authority, certificate.public_bytes(pem).decode(), private.decode())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])
