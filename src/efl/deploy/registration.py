"""`efl deploy register`: the server lets nodes with these keys in."""

from __future__ import annotations

from pathlib import Path

from efl.deploy.places import public_key
from efl.deploy.superlink import CONNECTION, HOME, flwr
from efl.errors import UserError
from efl.server.registry import NAME

IN_USE = "Public key already in use"  # what Flower says of a key that is registered


def register_key(state: Path, key: Path) -> bool:
    """Register a client's public key by the name of its file, ``client-K.pub``, with the SuperLink that runs here.

    Args:
        state: Where ``efl deploy server`` keeps its files.
        key: The public key.

    Returns:
        Whether it is new.

    Raises:
        UserError: It is no such key, or there is no such server.
    """
    number = key.stem.removeprefix(NAME)
    if key.suffix != ".pub" or not key.stem.startswith(NAME) or not (number.isascii() and number.isdecimal()):
        raise UserError(
            f"{key}: the file's name says whose key it is; name it {NAME}K.pub, K being the client's number"
        )
    public_key(key)
    if not (state / HOME / "config.toml").is_file():
        raise UserError(
            f"{state}: no server keeps its files there; start it with: efl deploy server, or say --state DIR"
        )
    try:
        flwr(state.absolute(), "supernode", "register", str(key.absolute()), CONNECTION, "--name", key.stem)
    except UserError as error:
        if IN_USE in str(error):
            return False
        raise
    return True
