"""Inner loops in C, built when the package is installed."""

from efl.native.bindings import Loops
from efl.native.library import NotCompiledError, available, load, loaded, loops

__all__ = ["Loops", "NotCompiledError", "available", "load", "loaded", "loops"]
