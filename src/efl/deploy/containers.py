"""`efl deploy compose`: a Compose file and a Dockerfile, with one image for the server and one for clients."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

from efl.deploy.client import address
from efl.deploy.supervisor import directory_of
from efl.errors import UserError
from efl.server.registry import NAME

FILES = {"compose.yaml": "compose.yaml", "Dockerfile": "Dockerfile", "dockerignore": ".dockerignore"}
PLAIN = re.compile(r"[\w.-]+", re.ASCII)  # what stands in these files without quotes


def write_containers(directory: Path, app: str, keys: str, clients: int, superlink: str) -> list[Path]:
    """Write compose.yaml, Dockerfile and .dockerignore into ``directory``, which has the app and the keys.

    Args:
        directory: The folder that images are built from.
        app: The app's folder, in it.
        keys: The folder of certificates and keys, in it.
        clients: How many clients there are.
        superlink: How clients on other machines reach the server, ``HOST:PORT``.

    Returns:
        The files.

    Raises:
        UserError: There is no such app, or one of the files is there already.
    """
    host, port = address(superlink)
    for name in (app, keys):
        if not PLAIN.fullmatch(name) or name in (".", ".."):
            raise UserError(f"{name}: images are built from one folder; give the name of a folder in {directory}")
    directory_of(directory / app)
    for name in FILES.values():
        if (directory / name).exists():
            raise UserError(f"{directory / name} is there already; delete it to write it anew")
    words = {"app": app, "keys": f"./{keys}", "host": host, "port": port, "clients": clients}
    numbers = range(clients)
    words["services"] = "".join(_template("service").substitute(words, client=client) for client in numbers).rstrip()
    words["volumes"] = "\n".join(f"  {NAME}{client}:" for client in numbers)
    written: list[Path] = []
    for source, name in FILES.items():
        path = directory / name
        path.write_text(_template(source).substitute(words), encoding="utf-8")
        written.append(path)
    return written


def _template(name: str) -> Template:
    return Template((files("efl.deploy") / "compose" / f"{name}.template").read_text(encoding="utf-8"))
