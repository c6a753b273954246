"""efl watch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from efl.cli.options import console, say


def watch(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories, or folders of them.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine's need the token in the page's address.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Default: 8642, or any that is free.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs as a live page in a browser, while they go on or afterwards."""
    from efl.track.live.feed import Feed
    from efl.track.live.server import serving

    with serving(Feed(directories), host, port) as server:
        say(f"Watch at {server.url} (Ctrl-C ends)")
        if open_:
            typer.launch(server.url)
        try:
            server.watch()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@contextmanager
def watched(directory: Path, asked: bool) -> Iterator[None]:
    """Within, runs are made in a directory: show them as a live page, if that is asked for.

    On a terminal the page stays when they are done, until Ctrl-C; a script goes on.
    """
    if not asked:
        yield
        return
    from efl.track.live.beside import served_beside

    with served_beside([directory]) as url:
        say(f"Watch at {url}")
        yield
        if console.is_terminal:
            say(f"The page stays at {url}; Ctrl-C ends it.")
            try:
                while True:
                    time.sleep(3600)
            except KeyboardInterrupt:
                raise typer.Exit(0) from None
