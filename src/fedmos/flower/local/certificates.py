"""Creates a certificate authority, the server's certificate, and a key pair for every client."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY = "fedmos authority"
LOOPBACK = ("localhost", "127.0.0.1")
"""Names that every server certificate has, for the operator and the reverse proxy on the server."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
_RESERVED = {"ca", "server", "apps"}
_SUFFIXES = (".pem", ".key", ".pub", ".secret")
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

    @property
    def secret(self) -> Path:
        """The secret between `fedmos deploy apps` and the SuperLink or SuperNode of the same machine."""
        return self.folder / "apps.secret"

    def expiry(self) -> dict[Path, datetime]:
        """Return when each certificate ends to be valid."""
        return {path: _read(path).not_valid_after_utc for path in (self.authority, self.server) if path.exists()}

    def hosts(self) -> list[str]:
        """Return the names and addresses of the server's certificate."""
        try:
            names = _read(self.server).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return []
        return [str(name.value) for name in names]

    def clients(self) -> list[str]:
        """Return the names of clients that have a public key in the folder."""
        return sorted(path.name.removesuffix(".pub") for path in self.folder.glob("*.pub"))


@dataclass(frozen=True)
class KeyPair:
    """A client's key pair. The private key stays with the client; the public key is registered at the SuperLink."""

    private: Path

    @property
    def public(self) -> Path:
        return self.private.with_name(f"{self.private.name}.pub")


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> Certificates:
    """Create a certificate authority, and a certificate for the server signed by it.

    Args:
        folder: The folder for the four files.
        hosts: Host names and IP addresses by which clients reach the server.
        days: Days for which the certificates are valid.

    Raises:
        ValueError: If `hosts` is empty, or if one of them is neither a host name nor an address.
        FileExistsError: If the folder has keys already; they are never replaced.
    """
    if not hosts:
        raise ValueError("Certificates: 'hosts' must name the server at least once, got none")
    _check_hosts(hosts)
    files = Certificates(folder)
    _refuse_to_replace(files.authority_key, files.server_key)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (files.authority_key, files.server_key):
        key = ec.generate_private_key(ec.SECP256R1())
        write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _issue(files, hosts, days)
    return files


def renew_certificates(folder: Path, days: int = 365, further_hosts: Sequence[str] = ()) -> Certificates:
    """Replace the certificates of the authority and of the server by new ones of the same keys.

    Clients that hold the old `ca.pem` accept the new server certificate until the old one expires.

    Args:
        folder: The folder that `make_certificates` has written.
        days: Days for which the new certificates are valid.
        further_hosts: Host names and addresses to add to those of the old certificate.

    Raises:
        FileNotFoundError: If the folder has no keys or certificate to renew.
        ValueError: If a further host is neither a host name nor an address.
    """
    _check_hosts(further_hosts)
    files = Certificates(folder)
    for path in (files.authority_key, files.server_key, files.server):
        if not path.exists():
            raise FileNotFoundError(
                f"Cannot renew the certificates because {path} is missing; use the folder of ca.key"
            )
    _issue(files, [*files.hosts(), *further_hosts], days)
    return files


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if not _HOST.fullmatch(host):
                raise ValueError(
                    f"deploy keys: '--host' must be a host name or an address, without port or https://, got {host!r}"
                ) from None


def _issue(files: Certificates, hosts: Sequence[str], days: int) -> None:
    """Write certificates for the keys of a folder."""
    authority_key, server_key = _read_key(files.authority_key), _read_key(files.server_key)
    names = list(dict.fromkeys((*hosts, *LOOPBACK)))
    server = _server_certificate(authority_key, server_key.public_key(), names, days)
    for path, made in ((files.authority, _authority_certificate(authority_key, days)), (files.server, server)):
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(made.public_bytes(Encoding.PEM))
        new.chmod(0o644)
        new.replace(path)


def client_key(folder: Path, name: str) -> KeyPair:
    """Create the key pair of a client in a folder.

    Raises:
        ValueError: If the name cannot be that of a file, or is that of another file of the folder.
        FileExistsError: If the client has a key already; it is never replaced.
    """
    if not _NAME.fullmatch(name) or name in _RESERVED or name.endswith(_SUFFIXES):
        raise ValueError(
            "deploy keys: the name of a client must be 1 to 64 letters, digits, '.', '_' and '-', must begin with a "
            f"letter or digit, must not be {', '.join(sorted(_RESERVED))}, and must not end with "
            f"{', '.join(_SUFFIXES)}, got {name!r}"
        )
    return make_key(folder / name)


def make_secret(folder: Path) -> Path:
    """Return the secret file of a folder; it is created if it is missing."""
    path = Certificates(folder).secret
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_secret(path, secrets.token_bytes(32))
    return path


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


def _read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


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
