"""The errors a user meets. Each says in one line what to change."""


class UserError(ValueError):
    """A mistake in what the user asked for; the command prints it without a traceback and exits with code 2."""


class WireError(Exception):
    r"""Bytes that are not a valid message. The receiver refuses them; nothing of them has been used.

    What is said about them goes into logs and records, and may quote them: it is one short line, whatever they are.

    >>> str(WireError("an answer to\n\x1b[2Janother run"))
    'an answer to [2Janother run'
    """

    LONGEST = 200

    def __str__(self) -> str:
        text = super().__str__()[: 10 * self.LONGEST]
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[: self.LONGEST]


class DivergedError(Exception):
    """Training left the finite numbers. Reported as such, never averaged away."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, in one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
