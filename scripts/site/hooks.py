"""What MkDocs calls while it builds the site: pages that are generated, and Markdown as its parser takes it.

A line ``{{ NAME … }}`` of a page of docs/reference is replaced by what the function of that name writes. Pages that
are kept at the top of the repository are added to the site.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import api
import commands
import dialect
import keys
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[2]
GENERATORS: dict[str, Callable[..., str]] = {
    "api": api.page,
    "commands": commands.page,
    "keys": keys.page,
    "settings": keys.settings_page,
}
CALL = re.compile(r"^\{\{ (\w+)((?: [\w.:]+)*) \}\}$", re.MULTILINE)
NOTEBOOK_LINK = re.compile(r'href="(?!\w+:)([^"#]+\.(?:md|ipynb))(#[^"]*)?"')
log = logging.getLogger("mkdocs.hooks.elastic-fl")  # a warning ends a strict build


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as GitHub makes them, so that links work in both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository."""
    for name, page in dialect.PAGES_AT_THE_TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is generated, and write links and lists as the parser takes them."""
    where = page.file.src_uri
    filled = CALL.sub(lambda call: GENERATORS[call[1]](*call[2].split()), markdown)
    return dialect.translated(filled, where)


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
    """Links of notebooks, which MkDocs does not follow by itself."""
    here = page.file.src_uri

    def followed(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), dialect.in_the_site(link[1], here)))
        found = files.get_file_from_path(target)
        if found is None:
            log.warning("%s links to %s, which is no page", here, link[1])
            return link[0]
        return f'href="{found.url_relative_to(page.file)}{link[2] or ""}"'

    return NOTEBOOK_LINK.sub(followed, html) if here.endswith(".ipynb") else html


def on_page_context(context: Any, page: Page, **_: Any) -> Any:
    """Code of notebooks needs the width of the table of contents."""
    if page.file.src_uri.endswith(".ipynb"):
        page.meta = {**(page.meta or {}), "hide": ["toc"]}
    return context


def on_env(env: Any, config: MkDocsConfig, files: Files) -> Any:
    """Say which public names no page documents."""
    pages = [file.content_string for file in files.documentation_pages() if file.src_uri.startswith("reference/")]
    asked = [call[2].split() for page in pages for call in CALL.finditer(page) if call[1] == "api"]
    for complaint in api.complaints(asked):
        log.warning("%s", complaint)
    return env
