"""Reading clients.json, the server's book of everybody who ever came: what cannot be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from efl.fleet import NO_DEPARTURE
from efl.reading import DamagedError, parse_json, read_text, readable, whole

MOST_SAMPLES = 10**9  # that a client may say it has
LONGEST_KEY = 1000  # characters
ENTRIES = {"samples": (1, MOST_SAMPLES), "arrives": (0, int(NO_DEPARTURE)), "departs": (0, int(NO_DEPARTURE))}
ENTRIES |= {"away": (0, int(NO_DEPARTURE))}


def read_book(path: Path, clients: int) -> tuple[int, dict[int, dict[str, Any]]]:
    """The last round that was opened, and the entry of every client, checked.

    Args:
        path: The file.
        clients: How many places there are.

    Raises:
        UserError: It is damaged, or of another federation.
    """
    with readable(path, "delete it, and the clients will be asked again who they are"):
        book = parse_json(read_text(path), finite=True)
        if not isinstance(book, dict) or not isinstance(book.get("clients"), dict):
            raise DamagedError("not a table of clients")
        opened = whole(book.get("round"), -1, int(NO_DEPARTURE) - 1, "round")
        return opened, {_client(name, clients): _entry(name, entry) for name, entry in book["clients"].items()}


def _client(name: str, clients: int) -> int:
    if len(name) > 12 or not (name.isascii() and name.isdecimal()) or str(int(name)) != name or int(name) >= clients:
        raise DamagedError(f"there is no client {name!r:.40}; they are numbered 0 … {clients - 1}")
    return int(name)


def _entry(name: str, entry: Any) -> dict[str, Any]:
    """One client's entry; keys that are not known here are passed on."""
    if not isinstance(entry, dict):
        raise DamagedError(f"client {name} has no entry")
    for key, (least, most) in ENTRIES.items():
        whole(entry.get(key), least, most, f"{key} of client {name}")
    if not isinstance(entry.get("key"), str) or len(entry["key"]) > LONGEST_KEY:
        raise DamagedError(f"key of client {name} is no key")
    if not isinstance(entry.get("named"), bool):
        raise DamagedError(f"named of client {name} is not true or false")
    return entry
