"""Creates a certificate authority, the server's certificate, and a key pair for every client."""

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
_CLOCK_TOLERANCE = timedelta(minutes=5)
"""Certificates are valid this long before their creation, for machines whose clock is late."""


@dataclass(frozen=True)
class Certificates:
    """Files of the server's TLS certificate. Clients need only `authority`."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, by which clients authenticate the server."""
        return self.folder / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """The authority's private key. It must stay secret: its holder can impersonate the server."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"


@dataclass(frozen=True)
class KeyPair:
    """A client's key pair. The private key stays with the client; the public key is registered at the SuperLink."""

    private: Path

    @property
    def public(self) -> Path:
        return self.private.with_suffix(".pub")


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> Certificates:
    """Create a certificate authority, and a certificate for the server signed by it.

    Args:
        folder: The folder for the four files.
        hosts: Host names and IP addresses by which clients reach the server.
        days: Days for which the certificates are valid.

    Raises:
        ValueError: If `hosts` is empty.
        FileExistsError: If the folder has keys already; they are never replaced.
    """
    if not hosts:
        raise ValueError("Certificates: 'hosts' must name the server at least once, got none")
    files = Certificates(folder)
    _refuse_to_replace(files.authority_key, files.server_key)
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    for path, key in ((files.authority_key, authority_key), (files.server_key, server_key)):
        write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files.authority.write_bytes(_authority_certificate(authority_key, days).public_bytes(Encoding.PEM))
    server = _server_certificate(authority_key, server_key.public_key(), hosts, days)
    files.server.write_bytes(server.public_bytes(Encoding.PEM))
    return files


def make_key(path: Path) -> KeyPair:
    """Create a client's key pair, `path` and `path`.pub, in the OpenSSH format that Flower reads."""
    pair = KeyPair(path)
    _refuse_to_replace(pair.private)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return pair


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its creation on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _refuse_to_replace(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise FileExistsError(f"Cannot make {path} because it exists; use another folder, or remove it first")


def _authority_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    name = _common_name(AUTHORITY)
    return (
        _certificate_builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    authority_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePublicKey, hosts: Sequence[str], days: int
) -> x509.Certificate:
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _certificate_builder(_common_name(hosts[0]), _common_name(AUTHORITY), key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative_name(host) for host in hosts]), critical=False)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(now + timedelta(days=days))
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
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


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
