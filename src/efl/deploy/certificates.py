"""Certificates and keys: a certificate authority, the server's certificate, a key for every node.

For trying things out on one machine, and to see what real machines need. Private keys are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from efl.errors import UserError

VALID = timedelta(days=365)


@dataclass(frozen=True)
class Certificates:
    """The files: the authority's certificate, which everybody gets, and the server's certificate with its key."""

    authority: Path
    server: Path
    server_key: Path

    @classmethod
    def in_directory(cls, directory: Path) -> Certificates:
        """Those in a folder, by the names that `make_certificates` gives them; `UserError` if one is missing."""
        found = cls(directory / "ca.pem", directory / "server.pem", directory / "server.key")
        for path in (found.authority, found.server, found.server_key):
            if not path.is_file():
                raise UserError(f"{path}: no such file; docs/deploy.md says how to make one")
        return cls(found.authority.absolute(), found.server.absolute(), found.server_key.absolute())


def make_certificates(directory: Path, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Certificates:
    """An authority and a certificate for a server that goes by these names and addresses."""
    directory.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "elastic-fl authority")])
    authority = (
        _certificate(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _certificate(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]), authority_name, server_key.public_key()
        )
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.server.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_key(made.server_key, server_key, serialization.PrivateFormat.PKCS8)
    return made


def make_node_key(directory: Path, name: str) -> tuple[Path, Path]:
    """A node's private key and the public one to register, as Flower wants them."""
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = directory / name, directory / f"{name}.pub"
    _write_key(private, key, serialization.PrivateFormat.OpenSSH)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return private, public


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + VALID)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
