"""Inner loops in C, built when the package is installed."""

from efl.native.bindings import Loops, Order
from efl.native.library import NotCompiledError, available, load, loaded, loops

__all__ = ["Loops", "NotCompiledError", "Order", "available", "load", "loaded", "loops"]
