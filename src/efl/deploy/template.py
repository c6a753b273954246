"""`efl deploy init`: a Flower app to start from."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from efl.errors import UserError

SUFFIX = ".template"
CLIENTS = 4
DIGITS, EACH = 10, 3  # classes of the example's data, and how many of them a client has, if together they have all


def example_partition(clients: int) -> str:
    """How the example's data are dealt out to so many clients.

    >>> example_partition(4), example_partition(2)
    ('classes:3', 'classes:5')
    """
    return f"classes:{max(EACH, -(-DIGITS // clients))}"


def write_app(directory: Path, clients: int = CLIENTS) -> list[Path]:
    """Write the template's files into ``directory``, which must be new or empty, for so many clients."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not empty; choose another folder")
    written: list[Path] = []
    words = {"clients": clients, "last": clients - 1, "partition": example_partition(clients)}
    try:
        for parts, source in sorted(_files(files("efl.deploy") / "template")):
            target = directory.joinpath(*parts[:-1], parts[-1].removesuffix(SUFFIX))
            target.parent.mkdir(parents=True, exist_ok=True)
            text = Template(source.read_text(encoding="utf-8")).substitute(words)
            target.write_text(text, encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror})") from None
    return written


def _files(folder: Traversable, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Traversable]]:
    """The template's files and where each belongs."""
    found: list[tuple[tuple[str, ...], Traversable]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files(entry, (*above, entry.name))
        elif entry.name.endswith(SUFFIX):
            found.append(((*above, entry.name), entry))
    return found
