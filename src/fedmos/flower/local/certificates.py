"""Who is who: a certificate authority, the server's certificate, and a key for every client."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY = "fedmos authority"
_CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True)
class Certificates:
    """Files that a SuperLink needs to be known by name; clients need only `authority`."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """Keep it where no other machine reads it: who has it can pretend to be the server."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


@dataclass(frozen=True)
class KeyPair:
    """A client's key: the private half stays with the client, the public half is registered at the SuperLink."""

    private: Path

    @property
    def public(self) -> Path:
        return self.private.with_suffix(".pub")


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> Certificates:
    """Make an authority, and a certificate by it for a server that is reached by these names or addresses."""
    if not hosts:
        raise ValueError("Certificates: 'hosts' must name the server at least once, got none")
    made = Certificates(folder)
    _refuse_to_replace(made.authority_key, made.server_key)
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _named(AUTHORITY)
    authority = (
        _certificate(issuer, issuer, authority_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _certificate(_named(hosts[0]), issuer, server_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    for path, key in ((made.authority_key, authority_key), (made.server_key, server_key)):
        write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    made.server.write_bytes(server.public_bytes(Encoding.PEM))
    return made


def make_key(path: Path) -> KeyPair:
    """Make a client's key pair: PATH and PATH.pub, in the OpenSSH form that Flower reads."""
    made = KeyPair(path)
    _refuse_to_replace(made.private)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(made.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    made.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return made


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, not even while it is written."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _refuse_to_replace(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise FileExistsError(f"Cannot make {path} because it exists; use another folder, or remove it first")


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
