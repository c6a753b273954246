"""`efl deploy move-client`: a client's place for another key."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from efl.errors import UserError
from efl.runs.directory import RunDirectory
from efl.server.places import promise_place
from efl.server.registry import Registry


def move_client(run: Path, client: int, key: Path) -> None:
    """Give a client's place in a run to another key.

    Args:
        run: The run directory.
        client: The client.
        key: The file of the public key, in the form in which it was registered with Flower.
    """
    experiment = RunDirectory.open(run).experiment()
    clients, public = experiment.federation.clients, public_key(key)
    if client >= clients:
        raise UserError(f"there is no client {client}; clients are 0 … {clients - 1}")
    registry = Registry(clients, experiment.network.patience, run / "clients.json")
    for other, held in registry.keys.items():
        if held == public:
            raise UserError(f"{key} is the key of client {other}{' already' if other == client else ''}")
    promise_place(run, client, public)


def public_key(path: Path) -> str:
    """A public key as Flower's server knows nodes by it."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path}: no public key in OpenSSH's form ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path}: Flower's nodes have elliptic keys; make one with: ssh-keygen -t ecdsa -b 384")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).hex()
