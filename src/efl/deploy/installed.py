"""Whether what a deployment needs is installed."""

from __future__ import annotations

from importlib.util import find_spec

from efl.errors import UserError

NEEDED = ("flwr", "cryptography")


def check_installed() -> None:
    """Raise `UserError` if Flower, or what comes with it, is missing: a plain installation simulates only."""
    for package in NEEDED:
        if find_spec(package) is None:
            raise UserError(f"{package} is not installed; run: pip install 'elastic-fl[flower]'")
