"""Settings of this process, and processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from efl.errors import UserError

log = logging.getLogger("efl")

_C = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # numbers of glibc's mallopt
_NEVER = 2**31 - 1


def end_with_parent() -> None:
    """To be called in a new process, on Linux: be asked to end when its parent is no more, even killed without a word.

    On other systems nothing happens.
    """
    if _C is not None:
        _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def needs_linux(what: str) -> None:
    """`UserError` on other systems."""
    if sys.platform != "linux":
        raise UserError(f"{what} needs Linux")


@contextmanager
def terminates_by_interrupt() -> Iterator[None]:
    """Within, being asked to end (SIGTERM) is as Ctrl-C, so that what was started is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def interrupts_deferred(until: str) -> Iterator[None]:
    """Within, a first Ctrl-C waits for the end, so that what is begun is finished; a second one takes effect at once.

    So it is where Ctrl-C does what it usually does; in other threads, and with a handler of somebody else's, nothing
    changes.

    Args:
        until: What the first one waits for, for the message.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        log.warning("stopping at the end of %s; Ctrl-C again stops at once", until)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if asked:
        raise KeyboardInterrupt


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within, PyTorch computes on one thread and takes numbers below 1e-38 as zero, in the calling thread alone.

    Small operations on a busy machine are many times slower on several threads than on one, and so is arithmetic on
    such tiny numbers, which squared gradients are full of. Both settings belong to a thread, so runs in several threads
    do not disturb each other; afterwards they are as they were found.
    """
    import torch

    threads, flushed = torch.get_num_threads(), _flushes_denormals()
    _compute_on_one_thread()
    if threads > 1:  # the setting is also what new threads start with: put that back from a thread of its own
        helper = threading.Thread(target=torch.set_num_threads, args=(threads,))
        helper.start()
        helper.join()
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def set_up_worker() -> None:
    """For a process that does nothing but our work: the same for good, and freed memory kept."""
    _compute_on_one_thread()
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for good; for processes of ours alone.

    Memory given back to the system is fetched again a moment later, page by page, which takes as long as the arithmetic
    done in it.
    """
    mallopt = getattr(_C, "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _NEVER)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def _compute_on_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _flushes_denormals() -> bool:
    """Whether this thread takes numbers below the smallest normal one as zero; nothing but arithmetic can tell."""
    smallest = sys.float_info.min
    return smallest / 2 == 0.0
