"""Who shows up: which clients are there and asked, and what becomes of each request."""

from efl.fleet.behaviour import RoundBehaviour
from efl.fleet.calendar import NEVER, Calendar
from efl.fleet.clock import Clock
from efl.fleet.fleet import Fleet
from efl.fleet.membership import Change, Membership
from efl.fleet.selection import Selection

__all__ = ["NEVER", "Calendar", "Change", "Clock", "Fleet", "Membership", "RoundBehaviour", "Selection"]
