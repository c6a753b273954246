"""Inner loops in C, compiled on first use."""

from efl.native.bindings import Loops
from efl.native.build import NotCompiledError, loaded, loops

__all__ = ["Loops", "NotCompiledError", "loaded", "loops"]
