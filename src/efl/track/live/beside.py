"""The live page of a run that this process is about to make, served by a process of its own.

A thread would take time from the training, and hold sockets that worker processes inherit.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from efl.errors import UserError
from efl.processes import end_with_parent, terminates_by_interrupt
from efl.track.live.feed import Feed
from efl.track.live.server import serving

START = 60.0  # seconds in which the process has to answer, on a busy machine
STOP = 5.0


@contextmanager
def served_beside(paths: Sequence[Path]) -> Iterator[str]:
    """Within, the page of run directories that may not exist yet is served to this machine.

    Yields:
        The address of the page.

    Raises:
        UserError: If it cannot be served.
    """
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_serve, args=([path.absolute() for path in paths], theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield _address(ours)
    finally:
        process.terminate()
        process.join(STOP)
        if process.is_alive():
            process.kill()
        ours.close()


def _address(pipe: Connection) -> str:
    try:
        if pipe.poll(START):
            found = pipe.recv()
            if isinstance(found, UserError):
                raise found
            return str(found)
    except EOFError:
        pass
    raise UserError("the live page cannot be served: its process ended, or does not answer")


def _serve(paths: Sequence[Path], pipe: Connection) -> None:
    """What the other process does until it is asked to end; Ctrl-C is meant for the run."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(KeyboardInterrupt), terminates_by_interrupt():
        try:
            with serving(Feed(paths, waiting=True)) as server:
                pipe.send(server.url)
                server.watch()
        except UserError as error:  # before the address is known, or when the run directory is deleted
            with suppress(OSError):
                pipe.send(error)
