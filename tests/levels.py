"""The instruction sets that this processor and this installation have, for tests that run with each of them."""

from contextlib import contextmanager

import pytest

from efl.native import NotCompiledError, available, library, load

try:
    LEVELS = available()
except NotCompiledError:  # then such tests are skipped
    LEVELS = []


@contextmanager
def using(level):
    """Within, compiled code is that of a level."""
    loops = load(level)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_attempt", lambda: loops)
        yield loops
