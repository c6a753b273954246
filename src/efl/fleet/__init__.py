"""Simulated clients: when they are available, how fast they are, and what becomes of each request."""

from efl.fleet.behaviour import RoundBehaviour
from efl.fleet.calendar import NO_DEPARTURE, Calendar
from efl.fleet.clock import Clock
from efl.fleet.fleet import Fleet

__all__ = ["NO_DEPARTURE", "Calendar", "Clock", "Fleet", "RoundBehaviour"]
