"""Inner loops in C, compiled on first use."""

from efl.native.build import NotCompiledError, loaded, loops

__all__ = ["NotCompiledError", "loaded", "loops"]
