"""Whose data: clients, how samples are dealt out to them, and where samples come from."""

from efl.federation.federation import Federation
from efl.federation.sources import load, prepare
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource

__all__ = ["SOURCES", "DatasetRequest", "DatasetSource", "Federation", "load", "prepare"]
