"""Markdown as GitHub reads it, written as Python-Markdown does, and links that lead somewhere in the site."""

from __future__ import annotations

import posixpath
import re

# Files at the top of the repository that are pages of the site.
PAGES_AT_THE_TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"^ *<!-- not run: .+ -->\n", re.MULTILINE)
SAVED_AS = re.compile(r"^( *)<!-- file: (\S+) -->\n *```(\w+)$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(?=(?:#[^)\s]*)?\))")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def translated(markdown: str, page: str) -> str:
    """A page of the site from its source; ``page`` is its path in the site."""
    markdown = SAVED_AS.sub(r'\1```\3 title="\2"', NOT_RUN.sub("", markdown))
    parts = FENCED.split(_with_wider_items(markdown))
    for i in range(0, len(parts), 2):  # the others are code
        parts[i] = LINK.sub(lambda link: in_the_site(link[1], page), _with_blank_lines(parts[i]))
    return "".join(parts)


def in_the_site(target: str, page: str) -> str:
    """A link's target relative to the page in the site, from one relative to its source.

    >>> in_the_site("docs/wire.md", "contributing.md"), in_the_site("../CONTRIBUTING.md", "wire.md")
    ('wire.md', 'contributing.md')
    """
    top = {site: source for source, site in PAGES_AT_THE_TOP.items()}
    source = top.get(page, f"docs/{page}")
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    in_site = PAGES_AT_THE_TOP.get(linked, linked.removeprefix("docs/"))
    return posixpath.relpath(in_site, posixpath.dirname(page) or ".")


def _with_blank_lines(text: str) -> str:
    """An item that follows a paragraph at once, of the text or of the item before, begins only after a blank line."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        continues_item = before.startswith(" ") and not before.startswith("    ")
        if ITEM.match(line) and before.strip() and not ITEM.match(before) and not continues_item:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _with_wider_items(text: str) -> str:
    """What belongs to a numbered item is indented by four spaces, not three."""
    lines, inside = [], False
    for line in text.split("\n"):
        if re.match(r"\d+\. ", line):
            inside = True
        elif line and not line.startswith("   "):
            inside = False
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "\n".join(lines)
