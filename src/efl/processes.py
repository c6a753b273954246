"""Processes that do not outlive the one that started them."""

import ctypes
import signal
import sys

_C = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def end_with_parent() -> None:
    """To be called in a new process, on Linux: be asked to end when its parent is no more, even killed without a word.

    Elsewhere nothing happens.
    """
    if _C is not None:
        _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
