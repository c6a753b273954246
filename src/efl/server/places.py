"""Places that the operator gives to another key: a file beside the book of clients, until that key's node has come."""

from __future__ import annotations

from pathlib import Path

from efl.storage import write_atomically

_PREFIX, _SUFFIX = "place-", ".key"


def promise_place(run: Path, client: int, key: str) -> None:
    """Give a client's place in a run to another key, from now on; the server may be running or not.

    Args:
        run: The run directory.
        client: The client.
        key: The key as Flower's nodes have it, in hexadecimal.
    """
    write_atomically(_file(run, client), key.encode())


def keep_promise(run: Path, client: int) -> None:
    """The key has come: the place is its own."""
    _file(run, client).unlink(missing_ok=True)


def promised_places(run: Path, clients: int) -> dict[int, str]:
    """The places of ``clients`` that wait for a certain key, and that key."""
    files = {_client(path): path for path in run.glob(f"{_PREFIX}*{_SUFFIX}")}
    return {client: path.read_text().strip() for client, path in files.items() if -1 < client < clients}


def _file(run: Path, client: int) -> Path:
    return run / f"{_PREFIX}{client}{_SUFFIX}"


def _client(path: Path) -> int:
    """Whose place it is; -1 if the file is something else."""
    number = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else -1
