"""Settings of this process, and processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_C = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # numbers of glibc's mallopt
_NEVER = 2**31 - 1


def end_with_parent() -> None:
    """To be called in a new process, on Linux: be asked to end when its parent is no more, even killed without a word.

    Elsewhere nothing happens.
    """
    if _C is not None:
        _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def quick_arithmetic() -> Iterator[None]:
    """What `set_up_process` does, with threads and small numbers as they were at the end."""
    import torch

    before = torch.get_num_threads()
    set_up_process()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def set_up_process() -> None:
    """One thread, numbers below 1e-38 taken as zero, and freed memory kept.

    Small operations on a busy machine are many times slower on several threads than on one, and so is arithmetic on
    such tiny numbers, which squared gradients are full of. Memory given back to the system is fetched again a moment
    later, page by page, which takes as long as the arithmetic done in it.
    """
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError):
            return  # another C library than glibc
        mallopt(_MMAP_THRESHOLD, _NEVER)
        mallopt(_TRIM_THRESHOLD, _NEVER)
