"""Who shows up: which clients are asked, and what becomes of each request."""

from efl.fleet.behaviour import Fleet, RoundBehaviour
from efl.fleet.selection import Selection

__all__ = ["Fleet", "RoundBehaviour", "Selection"]
