"""Who is asked in a round: a cohort of those who are there, and now and then somebody who was given up."""

from __future__ import annotations

from dataclasses import replace

from efl.fleet import Clock, Fleet, Membership, Selection
from efl.server.client_table import Roster


def asked(
    fleet: Fleet, members: Membership, clock: Clock | None, roster: Roster, cohort: int, seed: int, round_: int
) -> Selection:
    """The cohort, drawn from the members that are present (or reachable), and abandoned clients whose turn it is.

    The roster notes who could be reached. Where only those are asked, the probability of being asked counts how often
    that is: who is away half of the time must weigh twice as much when it is there.
    """
    among = members.present(round_)
    only_available = fleet.selection == "available"
    roster.rounds += among
    if clock is not None:
        available = clock.available(among)
        roster.available += available
        among = available if only_available else among
    selection = fleet.select(roster.shares, cohort, seed, round_, among)
    if only_available:
        selection = replace(selection, probability=selection.probability * roster.availability()[selection.clients])
    return selection.joined_by(members.asked_again(round_))
