"""The errors a user meets. Each says in one line what to change."""


class UserError(ValueError):
    """A mistake in what the user asked for; the command prints it without a traceback and exits with code 2."""


class WireError(Exception):
    """Bytes that are not a valid message. The receiver refuses them; nothing of them has been used."""


class DivergedError(Exception):
    """Training left the finite numbers. Reported as such, never averaged away."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, in one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
