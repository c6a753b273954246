"""Where hostile clients of a simulation differ from others before anything is sent: data, counts, presence, host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.client.host import ClientHost
from efl.client.hostile import HostileHost
from efl.errors import UserError
from efl.federation import Federation
from efl.fleet import Calendar, Fleet
from efl.fleet.calendar import NO_DEPARTURE
from efl.server.membership import Membership
from efl.transport.local import Host


def poisoned(federation: Federation, fleet: Fleet, seed: int) -> Federation:
    """The federation with the training labels of hostile clients turned round, if that is their attack."""
    found = fleet.hostility(len(federation), seed)
    if found is None or not found[0].labels:
        return federation
    if not isinstance(federation.y, Tensor) or federation.y.is_floating_point():
        raise UserError("fleet.attack: labels can be flipped where classes lie in memory; choose another attack")
    labels = federation.y.clone()
    for client in found[1].tolist():
        mine = federation.train[client]
        labels[mine] = federation.classes - 1 - labels[mine]
    return replace(federation, y=labels)


def claimed(sizes: NDArray[np.int64], fleet: Fleet, seed: int) -> NDArray[np.int64]:
    """The sample counts that clients claim to have."""
    found, sizes = fleet.hostility(len(sizes), seed), sizes.copy()
    if found is not None:
        sizes[found[1]] *= found[0].counts
    return sizes


def without_absent(members: Membership, fleet: Fleet, seed: int) -> Membership:
    """The members without hostile clients, if these stay away."""
    calendar = members.calendar
    found = fleet.hostility(len(calendar.arrives), seed)
    if found is None or not found[0].absent:
        return members
    arrives = calendar.arrives.copy()
    arrives[found[1]] = NO_DEPARTURE
    return Membership(Calendar(arrives, calendar.departs, calendar.why), members.rule, members.drops_departed)


def with_hostile(host: ClientHost, fleet: Fleet, clients: int, seed: int) -> Host:
    """The host, whose hostile clients send what their attack makes up."""
    found = fleet.hostility(clients, seed)
    if found is None or found[0].absent:
        return host
    return HostileHost(host, found[1], found[0], seed)
