"""Fleets that several tests use."""

from efl import Fleet

IRREGULAR = Fleet(stragglers=0.5, inactive=0.1)
