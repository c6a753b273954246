"""`efl deploy keys`: the server's certificates, and a key for every client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from efl.deploy.certificates import make_certificates, make_node_key
from efl.errors import UserError
from efl.server.registry import NAME

LOCAL = ("localhost", "127.0.0.1")  # by which a server reaches itself


def write_certificates(directory: Path, hosts: Sequence[str]) -> list[Path]:
    """An authority and a certificate for a server by these names, and by those it reaches itself by.

    Args:
        directory: Where to write ca.pem, server.pem and server.key.
        hosts: Names and addresses of the server.

    Returns:
        The files.

    Raises:
        UserError: There are certificates already.
    """
    _check_new([directory / name for name in ("ca.pem", "server.pem", "server.key")])
    made = make_certificates(directory, tuple(dict.fromkeys([*hosts, *LOCAL])))
    return [made.authority, made.server, made.server_key]


def write_client_keys(directory: Path, clients: Sequence[int]) -> list[Path]:
    """For each client a private key, which stays on its machine, and the public one to register on the server.

    Args:
        directory: Where to write client-K and client-K.pub.
        clients: Their numbers.

    Returns:
        The files.

    Raises:
        UserError: One of them has a key already.
    """
    _check_new([directory / f"{NAME}{client}" for client in clients])
    return [path for client in clients for path in make_node_key(directory, f"{NAME}{client}")]


def _check_new(paths: Sequence[Path]) -> None:
    """Others rely on keys that exist: they are never replaced."""
    for path in paths:
        if path.exists():
            raise UserError(f"{path} is there already; to make a new one, delete it or choose another folder")
