"""elastic-fl on the same job: FedAvg with a worker for each processor."""

from contextlib import closing

import torch
from job import COHORT, arguments, clients, report
from networks import network
from torch import nn

import efl
from efl.config import parse
from efl.processes import processors, single_threaded
from efl.runs.setup import build


def main() -> None:
    """Rounds as a run plays them, without evaluation."""
    name, rounds = arguments()
    data = [(torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y)) for x, y in clients()]
    federation = efl.Federation.from_clients(data)
    workers = processors()
    table = {"federation": {"clients": len(data)}, "training": {"cohort": COHORT}, "engine": {"workers": workers}}
    reliable = efl.Fleet(stragglers=0.0, inactive=0.0)
    setup = build(parse(table), federation, nn.Sequential(*network(name)), efl.FedAvg(), reliable)
    coordinator = setup.coordinator()
    with closing(coordinator.transport), single_threaded():
        report(coordinator.run_round, rounds)


main()
