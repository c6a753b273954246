"""Whose data: clients, how samples are dealt out to them, and where samples come from."""

from efl.federation.federation import Federation
from efl.federation.sources import SOURCES, load, prepare

__all__ = ["SOURCES", "Federation", "load", "prepare"]
