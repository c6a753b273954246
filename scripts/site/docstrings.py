"""Docstrings as Markdown: examples that begin with ``>>>`` become blocks of code, roles such as ``:meth:`` go."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
ROLE = re.compile(r":(?:meth|class|func|attr):(?=`)")


def as_markdown(text: str) -> str:
    r"""A docstring as Markdown.

    >>> as_markdown("Adds, as :meth:`sum`.\n\n>>> 1 + 1\n2")
    'Adds, as `sum`.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    return EXAMPLE.sub(lambda example: f"{example[1]}```pycon\n{example[0]}\n{example[1]}```", ROLE.sub("", text))


class Docstrings(griffe.Extension):
    """Griffe calls this for everything it reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
