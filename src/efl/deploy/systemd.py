"""systemd units: the supervised server, and a SuperNode per client, each started again whenever it ends too soon."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

from efl.deploy.client import address
from efl.deploy.superlink import scripts
from efl.errors import UserError

SERVER_UNIT, CLIENT_UNIT = "efl-server.service", "efl-client@.service"


def write_units(directory: Path, app: Path, keys: Path, state: Path, superlink: str) -> list[Path]:
    """Write both units into ``directory``; they are installed by copying them to /etc/systemd/system.

    Args:
        directory: Where to write them.
        app: The app's folder, on the server.
        keys: The folder of certificates and keys, on every machine.
        state: Where the server keeps its runs and clients their state.
        superlink: How clients reach the server, ``HOST:PORT``.

    Returns:
        The files.
    """
    _, port = address(superlink)
    words = {"app": app.absolute(), "keys": keys.absolute(), "state": state.absolute(), "scripts": scripts()}
    for name, path in words.items():
        if any(c.isspace() or c in "%$\"'\\" for c in str(path)):
            raise UserError(f"{name}: systemd needs a path without spaces, quotes, % and $, not {path}")
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name in (SERVER_UNIT, CLIENT_UNIT):
        text = (files("efl.deploy") / "units" / f"{name}.template").read_text(encoding="utf-8")
        path = directory / name
        path.write_text(Template(text).substitute(words, superlink=superlink, port=port), encoding="utf-8")
        written.append(path)
    return written
